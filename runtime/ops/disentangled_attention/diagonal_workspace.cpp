#include "diagonal_workspace.h"

#include <algorithm>

#include "disentangled_attention/params.h"
#include "schedule.h"

namespace turbotune::disentangled_attention {

DiagonalWorkspace::DiagonalWorkspace(const Problem& problem, int block) {
    const PositionTerms terms{problem.c2p, problem.p2c};
    tiles = (problem.length + std::int64_t{block} - 1) / block;
    if (terms.count()) {
        const int band = make_slot_table(problem.position_buckets, problem.max_relative_positions).band;
        // A tile is near while some |i - j| < band.
        diagonals = 2 * std::min<std::int64_t>((band + block - 2) / block, tiles - 1) + 1;
        // Enough blocks to fill a GPU, each with some tiles to walk: every split costs workspace.
        constexpr std::int64_t kBlocks = 1024, kTiles = 16;
        splits = std::clamp<std::int64_t>(problem.batch * tiles / kTiles, 1,
                                          std::max<std::int64_t>(1, kBlocks / (problem.heads * diagonals)));
    }
    auto take = [&](std::int64_t floats) {
        const std::int64_t at = bytes;
        bytes += (floats * 4 + 255) / 256 * 256;
        return at;
    };
    const std::int64_t rows =
        problem.layout == Layout::packed ? problem.tokens : std::int64_t{problem.batch} * problem.length;
    delta = take(rows * problem.heads);
    for (std::int64_t& share : shares)
        share = take(terms.count() ? std::int64_t{problem.batch} * problem.heads * tiles * 2 * problem.head_dim : 0);
    sums = take(sum_blocks(problem) * terms.count() * 2 * block * std::int64_t{problem.head_dim});
}

void DiagonalWorkspace::fill(BackwardParams& params) const {
    params.regions[0] = delta;
    params.regions[1] = shares[0];
    params.regions[2] = shares[1];
    params.regions[3] = sums;
    params.regions[4] = splits;
    params.regions[5] = diagonals;
}

}  // namespace turbotune::disentangled_attention
