// q, k and v of the forward pass as tensor maps, for kernels that load boxes of rows. Internal to
// ops/disentangled_attention.
#pragma once

#include "disentangled_attention/params.h"
#include "turbotune/ops/disentangled_attention/problem.h"

namespace turbotune::disentangled_attention {

// Whether strides and alignment allow it.
bool has_tensor_maps(const Problem& problem);

// Maps of tensors that set_addresses will place. `params`: with its strides.
ForwardMaps encode_tensor_maps(const Problem& problem, const ForwardParams& params);
void set_addresses(ForwardMaps& maps, const ForwardParams& params);

}  // namespace turbotune::disentangled_attention
