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

// For backward passes of other kernels with this workspace: the sums by distance of tiles of `block` rows, and the rows
// of the tables from them.
KernelLaunch positions_launch(const Problem& problem, int block, const DeviceInfo& device);
Resources positions_resources(const Workload& workload, int block);
KernelLaunch tables_launch(const Problem& problem, int block, const DeviceInfo& device);

}  // namespace turbotune::disentangled_attention::simt_backward
