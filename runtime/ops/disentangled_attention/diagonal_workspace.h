// Workspace of the backward passes that sum position gradients by diagonals of tiles: backward_simt.cu, where its
// regions are described, and backward_tf32.cu. Internal to ops/disentangled_attention.
#pragma once

#include <cstdint>

#include "tier.h"

namespace turbotune::disentangled_attention {

struct DiagonalWorkspace {
    // `block`: rows of a tile.
    DiagonalWorkspace(const Problem& problem, int block);

    std::int64_t tiles = 0;                            // of the longest sequence
    std::int64_t diagonals = 0, splits = 0;            // of near tiles; blocks that share a diagonal of a head
    std::int64_t delta = 0, shares[2] = {}, sums = 0;  // regions
    std::int64_t bytes = 0;

    std::int64_t sum_blocks(const Problem& problem) const { return diagonals * splits * problem.heads; }
    void fill(BackwardParams& params) const;
};

}  // namespace turbotune::disentangled_attention
