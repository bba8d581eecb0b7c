// Float64 reference of the forward pass on the host, for parity and tests.
#pragma once

#include "turbotune/base/tensor.h"
#include "turbotune/ops/disentangled_attention/problem.h"

namespace turbotune::disentangled_attention {

// `inputs`: q, k, v [B, L, H*D] (packed [T, H*D]); position_key, position_query [2*span, H*D]; mask [B, L] u8 when
// problem.mask; cu_seqlens [B + 1] i32 when packed. Dense; the problem's strides are ignored. Returns "out" like q and
// "lse" [B, H, L] (packed [H, T]), base 2, both float64.
NamedTensors forward_reference(const Problem& problem, const NamedTensors& inputs);

}  // namespace turbotune::disentangled_attention
