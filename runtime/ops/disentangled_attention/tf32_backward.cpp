#include "tf32_backward.h"

#include <fmt/format.h>

#include <algorithm>

#include "backward_kernels.h"
#include "diagonal_workspace.h"
#include "schedule.h"
#include "simt_backward.h"
#include "turbotune/base/error.h"

namespace turbotune::disentangled_attention::tf32_backward {

namespace {

constexpr const char* kMma = "mma";
constexpr int kBlock = 64;  // own rows of a block; tiles of diagonals have as many
constexpr int kRowWarps = kBlock / 16;
constexpr int kPositionWarps = 8, kPositionStages = 2;
constexpr int kBlockN = 32;  // rows of the other side that a warp takes at a time

const std::vector<ScheduleAxis> kAxes = {
    {"row_stages", {1, 2}},        // depth of their ring
    {"resident", {0, 1}},          // a block's own rows stay in registers
    {"blocks_per_sm", {1, 2, 3}},  // launch bound: caps registers
    {"tf32_positions", {0, 1}},    // sums by distance by tensor cores; else those of the simt tier
};

struct Tf32Config {
    int row_stages, resident, blocks_per_sm, tf32_positions;
};

// Best first, as measured on an H200. The last ones of head_dim 32 and 64 fit 99 KiB of shared memory; at head_dim 128
// the strips of a diagonal fit none.
const std::vector<Tf32Config> kHeadDim64 = {{2, 1, 2, 1}, {1, 1, 2, 1}, {1, 1, 2, 0}};
const std::vector<Tf32Config> kHeadDim32 = {{2, 1, 3, 1}, {1, 1, 3, 1}};
const std::vector<Tf32Config> kHeadDim128 = {{1, 0, 1, 0}};

const std::vector<Tf32Config>& table_of(std::int64_t head_dim) {
    return head_dim == 32 ? kHeadDim32 : head_dim == 64 ? kHeadDim64 : kHeadDim128;
}

Config to_fields(const Tf32Config& c) {
    return make_config(kMma, kAxes, {c.row_stages, c.resident, c.blocks_per_sm, c.tf32_positions});
}

Tf32Config listed(std::int64_t head_dim, const Config& config) {
    check_config(kMma, kAxes, config);
    for (const Tf32Config& c : table_of(head_dim))
        if (to_fields(c) == config) return c;
    throw InvalidArgument("config", fmt::format("{} is not a tf32 backward config of the mma tier for head_dim {}",
                                                config.to_string(), head_dim));
}

// The layout of mma_tiles.cuh, name by name, for blocks of kBlock own rows.
std::int64_t tiles_bytes(int stages, int warps, std::int64_t head_dim, PositionTerms terms) {
    const std::int64_t tile_bytes = 4 * kBlockN * head_dim;
    const int ring_chunks = (kBlock + kBlockN - 1) / kBlockN + 1 + stages - 1;
    const std::int64_t shift_bytes = terms.count() ? warps * 16 * (kBlockN + 4) * 4 : 0;
    return 2 * stages * tile_bytes + terms.count() * ring_chunks * tile_bytes + shift_bytes;
}

std::int64_t own_bytes(std::int64_t head_dim) {
    return 2 * kBlock * head_dim * 4;
}

// Of `rows` query rows.
std::int64_t dropped_bytes(int rows, bool dropout) {
    return dropout ? rows / 2 * 4 * 4 : 0;
}

std::int64_t rows_shared_bytes(const Tf32Config& c, std::int64_t head_dim, PositionTerms terms, bool dropout,
                               bool own_keys) {
    const std::int64_t statistics_bytes = own_keys ? kBlockN * 8 : 0, far_bytes = 2 * kBlock * 4;
    return tiles_bytes(c.row_stages, kRowWarps, head_dim, terms) + (c.resident ? 0 : own_bytes(head_dim)) + far_bytes +
           c.row_stages * (statistics_bytes + dropped_bytes(own_keys ? kBlockN : kBlock, dropout));
}

std::int64_t positions_shared_bytes(std::int64_t head_dim, PositionTerms terms, bool dropout) {
    return tiles_bytes(kPositionStages, kPositionWarps, head_dim, terms) + own_bytes(head_dim) +
           dropped_bytes(kBlock, dropout);
}

KernelLaunch tiled_launch(const Problem& problem, const DeviceInfo& device, const char* stem, int warps, int stages,
                          std::int64_t shared) {
    KernelLaunch launch = backward_kernel(problem, device, stem);
    launch.spec.parameters.set("block_m", kBlock);
    launch.spec.parameters.set("block_n", kBlockN);
    launch.spec.parameters.set("warps", warps);
    launch.spec.parameters.set("stages", stages);
    launch.spec.parameters.set("shared_bytes", FieldValue(shared));  // checked against the template's own layout
    launch.shape.block[0] = static_cast<unsigned>(32 * warps);
    launch.shape.shared_bytes = static_cast<unsigned>(shared);
    return launch;
}

KernelLaunch positions_launch(const Problem& problem, const DeviceInfo& device) {
    const std::int64_t blocks = DiagonalWorkspace(problem, kBlock).sum_blocks(problem);
    if (blocks > INT32_MAX)
        throw Unsupported(fmt::format("the position gradients need {} blocks; at most {}", blocks, INT32_MAX));
    KernelLaunch launch =
        tiled_launch(problem, device, "tf32_positions", kPositionWarps, kPositionStages,
                     positions_shared_bytes(problem.head_dim, {problem.c2p, problem.p2c}, problem.dropout > 0));
    launch.spec.parameters.set("own_keys", FieldValue(false));
    launch.shape.grid[0] = static_cast<unsigned>(blocks);
    return launch;
}

}  // namespace

std::vector<Config> candidates(std::int64_t head_dim) {
    std::vector<Config> fields;
    for (const Tf32Config& c : table_of(head_dim)) fields.push_back(to_fields(c));
    return fields;
}

// Of the kernel that needs most of each.
Resources resources(const Workload& workload, const Config& config) {
    const std::int64_t head_dim = workload.fields.integer("head_dim");
    const Tf32Config c = listed(head_dim, config);
    const PositionTerms terms = position_terms(workload);
    const bool dropout = has_dropout(workload);
    Resources resources;
    resources.threads = 32 * kRowWarps;
    resources.registers = registers_per_thread(resources.threads, c.blocks_per_sm);
    for (bool own_keys : {false, true})
        resources.shared_bytes =
            std::max(resources.shared_bytes, rows_shared_bytes(c, head_dim, terms, dropout, own_keys));
    if (!terms.count()) return resources;
    Resources positions;
    if (c.tf32_positions) {
        positions.threads = 32 * kPositionWarps;
        positions.registers = registers_per_thread(positions.threads, 1);
        positions.shared_bytes = positions_shared_bytes(head_dim, terms, dropout);
    } else {
        positions = simt_backward::positions_resources(workload, kBlock);
    }
    resources.threads = std::max(resources.threads, positions.threads);
    resources.registers = std::max(resources.registers, positions.registers);
    resources.shared_bytes = std::max(resources.shared_bytes, positions.shared_bytes);
    return resources;
}

std::vector<KernelLaunch> launches(const Problem& problem, const Config& config, const DeviceInfo& device) {
    const Tf32Config c = listed(problem.head_dim, config);
    const PositionTerms terms{problem.c2p, problem.p2c};
    std::vector<KernelLaunch> all;
    for (bool own_keys : {false, true}) {  // dQ first: it leaves Delta
        KernelLaunch rows = tiled_launch(problem, device, "tf32", kRowWarps, c.row_stages,
                                         rows_shared_bytes(c, problem.head_dim, terms, problem.dropout > 0, own_keys));
        rows.spec.parameters.set("resident", FieldValue(c.resident != 0));
        rows.spec.parameters.set("blocks_per_sm", c.blocks_per_sm);
        rows.spec.parameters.set("own_keys", FieldValue(own_keys));
        rows.shape.grid[0] = blocks_of(problem, kBlock);
        all.push_back(rows);
    }
    if (!terms.count()) return all;
    all.push_back(c.tf32_positions ? positions_launch(problem, device)
                                   : simt_backward::positions_launch(problem, kBlock, device));
    all.push_back(simt_backward::tables_launch(problem, kBlock, device));
    return all;
}

std::size_t workspace_bytes(const Problem& problem) {
    return static_cast<std::size_t>(DiagonalWorkspace(problem, kBlock).bytes);
}

void fill(const Problem& problem, BackwardParams& params) {
    DiagonalWorkspace(problem, kBlock).fill(params);
}

}  // namespace turbotune::disentangled_attention::tf32_backward
