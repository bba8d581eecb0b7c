// What the backward passes of the CUDA tiers share: the workspace and the kernels around a tier's own KV and Q kernels.
// Internal to ops/disentangled_attention.
#pragma once

#include <cstdint>

#include "tier.h"

namespace turbotune::disentangled_attention {

// How the distances are summed (backward_distances.cuh): squares of `tiles` x `tiles` tiles of 64 x 64, `stages` of
// them in the ring, in about `position_blocks` parts.
struct PositionConfig {
    int tiles, stages, position_blocks;

    std::int64_t shared_bytes(std::int64_t head_dim) const;
    int registers() const;
};
constexpr int kPositionThreads = 256;

// Of head_dim columns, those that a position block sums.
int position_columns(std::int64_t head_dim);

// Throws Unsupported when there are too many.
unsigned checked_grid(std::int64_t blocks);

// Mirrors backward_layout.cuh, which says what lies in the workspace, and backward_distances.cuh.
struct BackwardWorkspace {
    BackwardWorkspace(const Problem& problem, const PositionConfig& config);

    std::int64_t parts = 0;  // of the distance sums of one head
    std::int64_t regions[4] = {};
    std::int64_t bytes = 0;
};

// A backward kernel of the operation with the parameters of the problem alone, "aligned" among them, and no shape yet.
// `stem`: "prepare" for backward_prepare.cu.
KernelLaunch backward_kernel(const Problem& problem, const DeviceInfo& device, const char* stem);

KernelLaunch prepare_launch(const Problem& problem, const DeviceInfo& device);

// Only for problems with position terms, as is finish_launch. `shared`: bytes, checked against the template's own
// layout.
KernelLaunch position_launch(const Problem& problem, const PositionConfig& config, const DeviceInfo& device,
                             const char* stem, std::int64_t shared, int threads);
KernelLaunch finish_launch(const Problem& problem, const PositionConfig& config, const DeviceInfo& device);

}  // namespace turbotune::disentangled_attention
