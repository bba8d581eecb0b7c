// What the backward passes of the CUDA tiers share: the workspace and the kernels around a tier's own KV and Q kernels.
// Internal to ops/disentangled_attention.
#pragma once

#include <cstdint>

#include "tier.h"

namespace turbotune::disentangled_attention {

// Mirrors kernel_templates/disentangled_attention/backward_layout.cuh, which says what lies in the workspace.
struct BackwardWorkspace {
    explicit BackwardWorkspace(const Problem& problem);

    std::int64_t row_tiles = 0;  // of 64 rows, of the longest sequence
    std::int64_t diagonals = 0;  // of near tiles
    std::int64_t splits = 0;     // parts of the distance sums
    std::int64_t regions[4] = {};
    std::int64_t bytes = 0;
};

// A backward kernel of the operation with the parameters of the problem alone, "aligned" among them, and no shape yet.
// `stem`: "prepare" for backward_prepare.cu.
KernelLaunch backward_kernel(const Problem& problem, const DeviceInfo& device, const char* stem);

KernelLaunch prepare_launch(const Problem& problem, const DeviceInfo& device);

// How the position kernel is launched: `stages` tiles in its ring, `blocks_per_sm` as its launch bound.
struct PositionConfig {
    int stages, blocks_per_sm;

    std::int64_t shared_bytes(std::int64_t head_dim) const;
};
constexpr int kPositionThreads = 256;

// Only for problems with position terms, as is finish_launch.
KernelLaunch position_launch(const Problem& problem, const PositionConfig& config, const DeviceInfo& device);
KernelLaunch finish_launch(const Problem& problem, const DeviceInfo& device);

}  // namespace turbotune::disentangled_attention
