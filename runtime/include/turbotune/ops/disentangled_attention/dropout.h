// Which attention weights dropout drops: the mask that the kernels make and never store, for tests and for other
// implementations. Philox4x32 of 10 or 14 rounds; kernel_templates/disentangled_attention/dropout.h says how its numbers are used.
#pragma once

#include <cstdint>
#include <vector>

#include "turbotune/ops/disentangled_attention/problem.h"

namespace turbotune::disentangled_attention {

// [B, H, L, L], 1 = kept: element (b, h, i, j) says whether the weight of key j for query i survives. Packed: L is the
// problem's length, and rows and columns count within their sequence. All 1 without dropout.
std::vector<std::uint8_t> dropout_keep_mask(const Problem& problem, std::uint64_t seed, std::uint64_t offset);

}  // namespace turbotune::disentangled_attention
