// The backward pass of the simt tier: configs, workspace and launches of backward_simt*.cu. Internal to
// ops/disentangled_attention.
#pragma once

#include <cstdint>
#include <vector>

#include "tier.h"

namespace turbotune::disentangled_attention::simt_backward {

// Best guess first.
std::vector<Config> candidates(const Workload& workload, const DeviceInfo& device);
// Throws InvalidArgument for a config that is never a candidate.
Resources resources(const Workload& workload, const Config& config);
// dQ, dK and dV, and with position terms the sums by distance and the rows of the tables.
std::vector<KernelLaunch> launches(const Problem& problem, const Config& config, const DeviceInfo& device);
std::size_t workspace_bytes(const Problem& problem, const Config& config);
// Sets the regions of the workspace.
void fill(const Problem& problem, const Config& config, BackwardParams& params);

}  // namespace turbotune::disentangled_attention::simt_backward
