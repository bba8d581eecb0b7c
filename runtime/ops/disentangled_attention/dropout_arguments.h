// The kernels' dropout arguments. Internal to ops/disentangled_attention; the snippets are those of the templates.
#pragma once

#include <cstdint>

#include "common/philox.h"
#include "disentangled_attention/params.h"

#include "disentangled_attention/dropout.h"  // needs the two above

namespace turbotune::disentangled_attention {

// What follows from the probability alone.
void set_probability(DropoutParams& params, float probability);
// What a call adds.
void set_seed(DropoutParams& params, std::uint64_t seed, std::uint64_t offset);

}  // namespace turbotune::disentangled_attention
