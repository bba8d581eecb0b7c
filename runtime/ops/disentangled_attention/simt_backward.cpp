#include "simt_backward.h"

#include <fmt/format.h>

#include <algorithm>

#include "disentangled_attention/params.h"
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

// Sizes that the workspace and the grids follow from.
struct Sizes {
    std::int64_t tiles;      // of the longest sequence
    std::int64_t diagonals;  // of near tiles
    std::int64_t splits;     // blocks that share a diagonal
    PositionTerms terms;
};

Sizes sizes_of(const Problem& problem, const BackwardConfig& c) {
    Sizes sizes{(problem.length + c.block - 1) / c.block, 0, 0, {problem.c2p, problem.p2c}};
    if (!sizes.terms.count()) return sizes;
    const int band = make_slot_table(problem.position_buckets, problem.max_relative_positions).band;
    // A tile is near while some |i - j| < band.
    sizes.diagonals = 2 * std::min<std::int64_t>((band + c.block - 2) / c.block, sizes.tiles - 1) + 1;
    // Enough blocks to fill a GPU, each with some tiles to walk: every split costs workspace.
    constexpr std::int64_t kBlocks = 1024, kTiles = 16;
    sizes.splits = std::clamp<std::int64_t>(problem.batch * sizes.tiles / kTiles, 1,
                                            std::max<std::int64_t>(1, kBlocks / (problem.heads * sizes.diagonals)));
    return sizes;
}

struct Regions {
    std::int64_t delta, shares[2], sums, bytes;
};

Regions regions_of(const Problem& problem, const BackwardConfig& c, const Sizes& sizes) {
    Regions regions{};
    auto take = [&](std::int64_t floats) {
        const std::int64_t at = regions.bytes;
        regions.bytes += (floats * 4 + 255) / 256 * 256;
        return at;
    };
    const std::int64_t rows =
        problem.layout == Layout::packed ? problem.tokens : std::int64_t{problem.batch} * problem.length;
    regions.delta = take(rows * problem.heads);
    for (std::int64_t& shares : regions.shares)
        shares = take(
            sizes.terms.count() ? std::int64_t{problem.batch} * problem.heads * sizes.tiles * 2 * problem.head_dim : 0);
    regions.sums = take(sizes.splits * problem.heads * sizes.diagonals * sizes.terms.count() * 2 * c.block *
                        std::int64_t{problem.head_dim});
    return regions;
}

unsigned checked_blocks(std::int64_t blocks) {
    if (blocks > INT32_MAX)
        throw Unsupported(fmt::format("the position gradients need {} blocks; at most {}", blocks, INT32_MAX));
    return static_cast<unsigned>(blocks);
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
    Resources resources;
    resources.threads = c.threads();
    resources.registers = std::max(registers_per_thread(c.threads(), c.blocks_per_sm),
                                   registers_per_thread(c.threads(), c.position_blocks_per_sm));
    resources.shared_bytes = shared_bytes(c, head_dim, position_terms(workload), has_dropout(workload));
    return resources;
}

std::vector<KernelLaunch> launches(const Problem& problem, const Config& config, const DeviceInfo& device) {
    check_listed(problem.head_dim, config);
    const BackwardConfig c = from_fields(config);
    const Sizes sizes = sizes_of(problem, c);
    const std::int64_t shared = shared_bytes(c, problem.head_dim, sizes.terms, problem.dropout > 0);

    KernelLaunch rows;
    rows.spec.template_path = "disentangled_attention/backward_simt.cu";
    rows.spec.kernel_name = "disentangled_attention_backward_simt";
    rows.spec.target = device.target();
    Fields& parameters = rows.spec.parameters = problem_parameters(problem);
    parameters.set("aligned", FieldValue(has_aligned_rows(problem)));
    parameters.set("block", c.block);
    parameters.set("threads", c.threads());
    parameters.set("dim_step", kDimStep);
    parameters.set("shared_bytes", FieldValue(shared));  // checked against the template's own layout
    rows.shape.block[0] = static_cast<unsigned>(c.threads());
    rows.shape.shared_bytes = static_cast<unsigned>(shared);
    KernelLaunch sums = rows, tables;
    parameters.set("blocks_per_sm", c.blocks_per_sm);
    rows.shape.grid[0] = blocks_of(problem, c.block);

    std::vector<KernelLaunch> all;
    for (bool own_keys : {false, true}) {  // dQ first: it leaves Delta
        parameters.set("own_keys", FieldValue(own_keys));
        all.push_back(rows);
    }
    if (!sizes.terms.count()) return all;

    const int parts = parts_of(c, problem.head_dim);
    sums.spec.template_path = "disentangled_attention/backward_simt_positions.cu";
    sums.spec.kernel_name = "disentangled_attention_backward_simt_positions";
    sums.spec.parameters.set("blocks_per_sm", c.position_blocks_per_sm);
    sums.spec.parameters.set("own_keys", FieldValue(false));
    sums.spec.parameters.set("parts", parts);
    sums.shape.grid[0] = checked_blocks(sizes.diagonals * sizes.splits * problem.heads * parts);
    all.push_back(sums);

    tables.spec.template_path = "disentangled_attention/backward_simt_tables.cu";
    tables.spec.kernel_name = "disentangled_attention_backward_simt_tables";
    tables.spec.target = device.target();
    tables.spec.parameters = problem_parameters(problem);
    for (const char* unused : {"mask", "packed", "dropout"}) tables.spec.parameters.set(unused, FieldValue(false));
    tables.spec.parameters.set("block", c.block);
    tables.spec.parameters.set("threads", kTableThreads);
    tables.shape.grid[0] = checked_blocks(std::int64_t{sizes.terms.count()} * problem.heads * 2 * problem.span());
    tables.shape.block[0] = kTableThreads;
    all.push_back(tables);
    return all;
}

std::size_t workspace_bytes(const Problem& problem, const Config& config) {
    const BackwardConfig c = from_fields(config);
    return static_cast<std::size_t>(regions_of(problem, c, sizes_of(problem, c)).bytes);
}

void fill(const Problem& problem, const Config& config, BackwardParams& params) {
    const BackwardConfig c = from_fields(config);
    const Sizes sizes = sizes_of(problem, c);
    const Regions regions = regions_of(problem, c, sizes);
    params.regions[0] = regions.delta;
    params.regions[1] = regions.shares[0];
    params.regions[2] = regions.shares[1];
    params.regions[3] = regions.sums;
    params.regions[4] = sizes.splits;
    params.regions[5] = sizes.diagonals;
}

}  // namespace turbotune::disentangled_attention::simt_backward
