#include "backward_kernels.h"

#include <fmt/format.h>

#include <algorithm>

#include "schedule.h"
#include "turbotune/base/error.h"

namespace turbotune::disentangled_attention {

namespace {

constexpr std::int64_t kTileRows = 64;
constexpr std::int64_t kTileBytes = kTileRows * kTileRows * 2;
constexpr std::int64_t kRegionAlignment = 256;  // bytes
constexpr int kPositionColumns = 64;            // most head_dim columns that a position block sums
constexpr int kThreads = 256;                   // of prepare and finish
constexpr int kFinishSlots = 8;                 // of a block of finish

std::int64_t blocks(std::int64_t count, std::int64_t size) {
    return (count + size - 1) / size;
}

bool has_terms(const Problem& problem) {
    return problem.c2p || problem.p2c;
}

}  // namespace

unsigned checked_grid(std::int64_t blocks) {
    if (blocks > INT32_MAX) throw Unsupported(fmt::format("{} blocks are needed; at most {}", blocks, INT32_MAX));
    return static_cast<unsigned>(blocks);
}

BackwardWorkspace::BackwardWorkspace(const Problem& problem, const PositionConfig& config) {
    const bool packed = problem.layout == Layout::packed;
    const std::int64_t row_tiles = blocks(problem.length, kTileRows);
    const std::int64_t tiles = packed ? problem.heads * (problem.tokens / kTileRows + problem.batch)
                                      : std::int64_t{problem.batch} * problem.heads * row_tiles;
    const std::int64_t rows = problem.heads * (packed ? problem.tokens : std::int64_t{problem.batch} * problem.length);
    std::int64_t sizes[4] = {3 * rows * 8, 0, 0, 0};
    if (has_terms(problem)) {
        const std::int64_t band = make_slot_table(problem.position_buckets, problem.max_relative_positions).band;
        const std::int64_t near_width = std::min((band + kTileRows - 2) / kTileRows, row_tiles - 1);
        const std::int64_t squares = blocks(row_tiles, config.tiles);
        const std::int64_t width = std::min(blocks(near_width, config.tiles), squares - 1), diagonals = 2 * width + 1;
        const std::int64_t items = problem.batch * (squares * diagonals - width * (width + 1));
        parts = blocks(items, blocks(items, blocks(config.position_blocks, problem.heads)));
        const std::int64_t piece_bytes = 2 * (2 * config.tiles * kTileRows) * problem.head_dim * 4;
        sizes[1] = tiles * std::min(2 * near_width + 1, row_tiles) * kTileBytes;
        sizes[2] = 2 * tiles * 2 * problem.head_dim * 4;
        sizes[3] = problem.heads * (parts + diagonals - 1) * piece_bytes;
    }
    for (int i = 0; i < 4; ++i) {
        regions[i] = bytes;
        bytes += blocks(sizes[i], kRegionAlignment) * kRegionAlignment;
    }
}

KernelLaunch backward_kernel(const Problem& problem, const DeviceInfo& device, const char* stem) {
    KernelLaunch launch;
    launch.spec.template_path = fmt::format("disentangled_attention/backward_{}.cu", stem);
    launch.spec.kernel_name = fmt::format("disentangled_attention_backward_{}", stem);
    launch.spec.parameters = problem_parameters(problem);
    launch.spec.parameters.set("aligned", FieldValue(has_aligned_rows(problem)));
    launch.spec.target = device.target();
    return launch;
}

KernelLaunch prepare_launch(const Problem& problem, const DeviceInfo& device) {
    KernelLaunch launch = backward_kernel(problem, device, "prepare");
    launch.shape.grid[0] = blocks_of(problem, kThreads / (problem.head_dim / 8));
    launch.shape.block[0] = kThreads;
    return launch;
}

int position_columns(std::int64_t head_dim) {
    return static_cast<int>(std::min<std::int64_t>(head_dim, kPositionColumns));
}

std::int64_t PositionConfig::shared_bytes(std::int64_t head_dim) const {
    const std::int64_t row_bytes = 2 * position_columns(head_dim), zeros = 16;
    return stages * (tiles * tiles * kTileBytes + 2 * tiles * kTileRows * row_bytes) + zeros;
}

int PositionConfig::registers() const {
    return registers_per_thread(kPositionThreads, tiles == 2 ? 1 : 2);
}

KernelLaunch position_launch(const Problem& problem, const PositionConfig& config, const DeviceInfo& device,
                             const char* stem, std::int64_t shared, int threads) {
    const int columns = position_columns(problem.head_dim);
    KernelLaunch launch = backward_kernel(problem, device, stem);
    launch.spec.parameters.set("tiles", config.tiles);
    launch.spec.parameters.set("stages", config.stages);
    launch.spec.parameters.set("position_blocks", config.position_blocks);
    launch.spec.parameters.set("dim_part", columns);
    launch.spec.parameters.set("shared_bytes", FieldValue(shared));  // checked against the template's own layout
    const std::int64_t parts = BackwardWorkspace(problem, config).parts;
    launch.shape.grid[0] = checked_grid(problem.heads * parts * (problem.head_dim / columns));
    launch.shape.block[0] = static_cast<unsigned>(threads);
    launch.shape.shared_bytes = static_cast<unsigned>(shared);
    return launch;
}

KernelLaunch finish_launch(const Problem& problem, const PositionConfig& config, const DeviceInfo& device) {
    const std::int64_t per_head = 2 + blocks(2 * problem.span(), kFinishSlots);  // the two end slots apart
    KernelLaunch launch = backward_kernel(problem, device, "finish");
    launch.spec.parameters.set("tiles", config.tiles);
    launch.spec.parameters.set("position_blocks", config.position_blocks);
    launch.shape.grid[0] = checked_grid((int{problem.c2p} + int{problem.p2c}) * problem.heads * per_head);
    launch.shape.block[0] = kThreads;
    return launch;
}

}  // namespace turbotune::disentangled_attention
