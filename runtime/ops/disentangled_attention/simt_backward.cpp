#include "simt_backward.h"

#include <fmt/format.h>

#include <algorithm>

#include "backward_kernels.h"
#include "diagonal_workspace.h"
#include "schedule.h"
#include "turbotune/base/error.h"

namespace turbotune::disentangled_attention::simt_backward {

namespace {

constexpr const char* kSimt = "simt";
constexpr int kDimStep = 16;         // columns of the strips in shared memory at a time
constexpr int kTableThreads = 256;   // of backward_simt_tables.cu
constexpr int kMostRegisters = 128;  // per thread, that the sums by distance may take

const std::vector<ScheduleAxis> kAxes = {
    {"block", {32, 64}},                    // rows of a block and of a tile
    {"blocks_per_sm", {1, 2, 4, 6}},        // launch bounds: cap registers
    {"position_blocks_per_sm", {1, 2, 4}},  // the same, of the sums by distance
};

struct BackwardConfig {
    int block, blocks_per_sm, position_blocks_per_sm;
    int threads() const { return block * block / 16; }  // each owns 4 x 4 pairs
};

// Best first for long sequences and a full GPU, as measured on an H200 at head_dim 64. Wide rows leave room for fewer
// blocks.
const std::vector<BackwardConfig> kNarrow = {
    {64, 2, 2}, {64, 2, 1}, {64, 1, 1}, {32, 6, 4}, {32, 4, 4},
};
const std::vector<BackwardConfig> kWide = {{64, 1, 1}, {32, 2, 2}};

const std::vector<BackwardConfig>& table_of(std::int64_t head_dim) {
    return head_dim == 128 ? kWide : kNarrow;
}

BackwardConfig from_fields(const Config& config) {
    auto integer = [&](const char* name) { return static_cast<int>(config.integer(name)); };
    return {integer("block"), integer("blocks_per_sm"), integer("position_blocks_per_sm")};
}

Config to_fields(const BackwardConfig& c) {
    return make_config(kSimt, kAxes, {c.block, c.blocks_per_sm, c.position_blocks_per_sm});
}

// The templates' own layout, name by name.
std::int64_t shared_bytes(const BackwardConfig& c, std::int64_t head_dim, PositionTerms terms, bool dropout) {
    const std::int64_t warp_rows = 32 / (c.block / 4) * 4;
    const std::int64_t wide_floats = c.block * (head_dim + 4);
    const std::int64_t pair_floats = c.block * (c.block + warp_rows + 4);
    const std::int64_t strips_floats = terms.count() * 2 * std::int64_t{c.block} * (kDimStep + 4);
    return 4 * (4 * wide_floats + std::max(pair_floats, strips_floats) + 3 * c.block + (dropout ? 2 * c.block : 0));
}

// Blocks that share the columns of the sums by distance, so that a thread can hold its own.
int parts_of(const BackwardConfig& c, std::int64_t head_dim) {
    const std::int64_t sums = 4 * std::int64_t{c.block} * head_dim / c.threads();
    return static_cast<int>(std::max<std::int64_t>(1, sums / kMostRegisters));
}

void check_listed(std::int64_t head_dim, const Config& config) {
    check_config(kSimt, kAxes, config);
    for (const BackwardConfig& c : table_of(head_dim))
        if (to_fields(c) == config) return;
    throw InvalidArgument("config", fmt::format("{} is not a config of the simt tier's backward pass for head_dim {}",
                                                config.to_string(), head_dim));
}

unsigned checked_blocks(std::int64_t blocks) {
    if (blocks > INT32_MAX)
        throw Unsupported(fmt::format("the position gradients need {} blocks; at most {}", blocks, INT32_MAX));
    return static_cast<unsigned>(blocks);
}

// Of backward_simt.cu and backward_simt_positions.cu, without launch bounds.
KernelLaunch base_launch(const Problem& problem, const BackwardConfig& c, const DeviceInfo& device, const char* stem) {
    const std::int64_t shared = shared_bytes(c, problem.head_dim, {problem.c2p, problem.p2c}, problem.dropout > 0);
    KernelLaunch launch = backward_kernel(problem, device, stem);
    launch.spec.parameters.set("block", c.block);
    launch.spec.parameters.set("threads", c.threads());
    launch.spec.parameters.set("dim_step", kDimStep);
    launch.spec.parameters.set("shared_bytes", FieldValue(shared));  // checked against the template's own layout
    launch.shape.block[0] = static_cast<unsigned>(c.threads());
    launch.shape.shared_bytes = static_cast<unsigned>(shared);
    return launch;
}

KernelLaunch sums_launch(const Problem& problem, const BackwardConfig& c, const DeviceInfo& device) {
    const DiagonalWorkspace workspace(problem, c.block);
    const int parts = parts_of(c, problem.head_dim);
    KernelLaunch launch = base_launch(problem, c, device, "simt_positions");
    launch.spec.parameters.set("blocks_per_sm", c.position_blocks_per_sm);
    launch.spec.parameters.set("own_keys", FieldValue(false));
    launch.spec.parameters.set("parts", parts);
    launch.shape.grid[0] = checked_blocks(workspace.sum_blocks(problem) * parts);
    return launch;
}

// The first config of the tiles that other tiers' kernels have.
BackwardConfig config_of_block(std::int64_t head_dim, int block) {
    for (const BackwardConfig& c : table_of(head_dim))
        if (c.block == block) return c;
    throw InvalidArgument("block", fmt::format("is {}", block));
}

Resources resources_of(const BackwardConfig& c, const Workload& workload, int blocks_per_sm) {
    Resources resources;
    resources.threads = c.threads();
    resources.registers = registers_per_thread(c.threads(), blocks_per_sm);
    resources.shared_bytes =
        shared_bytes(c, workload.fields.integer("head_dim"), position_terms(workload), has_dropout(workload));
    return resources;
}

// A block for every multiprocessor.
bool fills(const BackwardConfig& c, const Workload& workload, const DeviceInfo& device) {
    const std::int64_t length = workload.fields.integer("length"), sequences = workload.fields.integer("batch_heads");
    return (length + c.block - 1) / c.block * sequences >= device.device_class.sm_count;
}

}  // namespace

std::vector<Config> candidates(const Workload& workload, const DeviceInfo& device) {
    std::vector<BackwardConfig> configs = table_of(workload.fields.integer("head_dim"));
    std::stable_partition(configs.begin(), configs.end(),
                          [&](const BackwardConfig& c) { return fills(c, workload, device); });
    std::vector<Config> fields;
    for (const BackwardConfig& c : configs) fields.push_back(to_fields(c));
    return fields;
}

Resources resources(const Workload& workload, const Config& config) {
    const std::int64_t head_dim = workload.fields.integer("head_dim");
    check_listed(head_dim, config);
    const BackwardConfig c = from_fields(config);
    return resources_of(c, workload, std::min(c.blocks_per_sm, c.position_blocks_per_sm));
}

KernelLaunch positions_launch(const Problem& problem, int block, const DeviceInfo& device) {
    return sums_launch(problem, config_of_block(problem.head_dim, block), device);
}

Resources positions_resources(const Workload& workload, int block) {
    const BackwardConfig c = config_of_block(workload.fields.integer("head_dim"), block);
    return resources_of(c, workload, c.position_blocks_per_sm);
}

KernelLaunch tables_launch(const Problem& problem, int block, const DeviceInfo& device) {
    KernelLaunch launch = backward_kernel(problem, device, "simt_tables");
    launch.spec.parameters = problem_parameters(problem);
    for (const char* unused : {"mask", "packed", "dropout"}) launch.spec.parameters.set(unused, FieldValue(false));
    launch.spec.parameters.set("block", block);
    launch.spec.parameters.set("threads", kTableThreads);
    const int tables = PositionTerms{problem.c2p, problem.p2c}.count();
    launch.shape.grid[0] = checked_blocks(std::int64_t{tables} * problem.heads * 2 * problem.span());
    launch.shape.block[0] = kTableThreads;
    return launch;
}

std::vector<KernelLaunch> launches(const Problem& problem, const Config& config, const DeviceInfo& device) {
    check_listed(problem.head_dim, config);
    const BackwardConfig c = from_fields(config);
    std::vector<KernelLaunch> all;
    for (bool own_keys : {false, true}) {  // dQ first: it leaves Delta
        KernelLaunch rows = base_launch(problem, c, device, "simt");
        rows.spec.parameters.set("blocks_per_sm", c.blocks_per_sm);
        rows.spec.parameters.set("own_keys", FieldValue(own_keys));
        rows.shape.grid[0] = blocks_of(problem, c.block);
        all.push_back(rows);
    }
    if (!problem.c2p && !problem.p2c) return all;
    all.push_back(sums_launch(problem, c, device));
    all.push_back(tables_launch(problem, c.block, device));
    return all;
}

std::size_t workspace_bytes(const Problem& problem, const Config& config) {
    return static_cast<std::size_t>(DiagonalWorkspace(problem, from_fields(config).block).bytes);
}

void fill(const Problem& problem, const Config& config, BackwardParams& params) {
    DiagonalWorkspace(problem, from_fields(config).block).fill(params);
}

}  // namespace turbotune::disentangled_attention::simt_backward
