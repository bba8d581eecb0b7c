// Float64 references on the host, for parity and tests.
#pragma once

#include <cstdint>

#include "turbotune/base/tensor.h"
#include "turbotune/ops/disentangled_attention/problem.h"

namespace turbotune::disentangled_attention {

// `inputs`: q, k, v [B, L, H*D] (packed [T, H*D]); position_key, position_query [2*span, H*D]; mask [B, L] u8 when
// problem.mask; cu_seqlens [B + 1] i32 when packed. Dense; the problem's strides are ignored. Returns "out" like q and
// "lse" [B, H, L] (packed [H, T]), base 2, both float64. Seed and offset matter with dropout only. The same bits
// whatever the number of threads. Throws InvalidArgument naming an input that is missing.
NamedTensors forward_reference(const Problem& problem, const NamedTensors& inputs, std::uint64_t seed,
                               std::uint64_t offset);

// `inputs` as above, and dout like q; out and lse are not asked for: the weights are computed anew. Returns what
// forward_reference does, and "dq", "dk", "dv" like q and "d_position_key", "d_position_query" [2*span, H*D] of the
// tables that the problem has, float64.
NamedTensors backward_reference(const Problem& problem, const NamedTensors& inputs, std::uint64_t seed,
                                std::uint64_t offset);

}  // namespace turbotune::disentangled_attention
