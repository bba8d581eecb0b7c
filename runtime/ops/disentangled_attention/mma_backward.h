// The backward pass of the mma tier. Internal to ops/disentangled_attention.
#pragma once

#include "schedule.h"
#include "tier.h"

namespace turbotune::disentangled_attention {

// As the functions of Tier of the same names; `terms` and `dropout` of the workload or the problem.
std::vector<Config> mma_backward_candidates(std::int64_t head_dim, std::int64_t length);
Resources mma_backward_resources(std::int64_t head_dim, PositionTerms terms, bool dropout, const Config& config);
std::vector<KernelLaunch> mma_backward_launches(const Problem& problem, const Config& config, const DeviceInfo& device);
std::size_t mma_backward_workspace_bytes(const Problem& problem, const Config& config);
void mma_backward_fill(const Problem& problem, const Config& config, BackwardParams& params);

}  // namespace turbotune::disentangled_attention
