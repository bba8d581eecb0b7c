// The backward pass of the mma tier for fp32 tensors with tf32 products: configs, workspace and launches of
// backward_tf32*.cu. Internal to ops/disentangled_attention.
#pragma once

#include <cstdint>
#include <vector>

#include "tier.h"

namespace turbotune::disentangled_attention::tf32_backward {

// As the functions of Tier of the same names.
std::vector<Config> candidates(std::int64_t head_dim);
Resources resources(const Workload& workload, const Config& config);
std::vector<KernelLaunch> launches(const Problem& problem, const Config& config, const DeviceInfo& device);
std::size_t workspace_bytes(const Problem& problem);
void fill(const Problem& problem, BackwardParams& params);

}  // namespace turbotune::disentangled_attention::tf32_backward
