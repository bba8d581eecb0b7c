// The backward pass of the sm90 tier. Internal to ops/disentangled_attention.
#pragma once

#include "schedule.h"
#include "tier.h"

namespace turbotune::disentangled_attention {

// As the functions of Tier of the same names.
std::vector<Config> sm90_backward_candidates(const Workload& workload);
Resources sm90_backward_resources(const Workload& workload, const Config& config);
std::vector<KernelLaunch> sm90_backward_launches(const Problem& problem, const Config& config,
                                                 const DeviceInfo& device);
std::size_t sm90_backward_workspace_bytes(const Problem& problem, const Config& config);
void sm90_backward_fill(const Problem& problem, const Config& config, BackwardParams& params);

}  // namespace turbotune::disentangled_attention
