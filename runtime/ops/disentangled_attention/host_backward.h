// The CPU device's backward kernels, backward_host.cpp and backward_host_finish.cpp: configs, resources, launches and
// workspace, as Tier has them. block_m keys of a block, block_n queries of a tile, register tiles of micro_rows x
// micro_vectors, and key_parts parts of every sequence's key blocks (host_backward_layout.h).
#pragma once

#include "schedule.h"

namespace turbotune::disentangled_attention {

const std::vector<ScheduleAxis>& host_backward_axes();
std::vector<Config> host_backward_candidates(const Workload& workload, const DeviceInfo& device);
std::int64_t host_backward_scratch_bytes(int head_dim, const Config& config);  // of one thread
std::vector<KernelLaunch> host_backward_launches(const Problem& problem, const Config& config,
                                                 const DeviceInfo& device);
std::size_t host_backward_workspace_bytes(const Problem& problem, const Config& config);
void fill_host_backward(const Problem& problem, const Config& config, BackwardParams& params);

}  // namespace turbotune::disentangled_attention
