// Kernels: kernel_templates/disentangled_attention/backward_sm90_expand.cu, backward_sm90_kv.cu (dK, dV),
// backward_sm90_q.cu (dQ) and the shared ones.
#include "sm90_backward.h"

#include <fmt/format.h>

#include <algorithm>

#include "backward_kernels.h"
#include "disentangled_attention/params.h"
#include "mma_backward.h"
#include "turbotune/base/error.h"

namespace turbotune::disentangled_attention {

namespace {

constexpr const char* kSm90 = "sm90";
constexpr int kThreads = 128;   // of the KV, the Q and the expand kernel
constexpr int kBlockRows = 64;  // keys of a KV block, queries of a Q block
constexpr int kKvBlocksPerSm = 2;

const std::vector<ScheduleAxis> kAxes = {
    {"tiled", {0, 1}},                // rows are packed as shared memory keeps them once, then come by bulk copies
    {"position_tiles", {1, 2}},       // tiles along a side of the position kernel's squares
    {"position_stages", {2, 3}},      // depth of its ring
    {"position_blocks", {132, 264}},  // parts of its sum
};

struct Sm90BackwardConfig {
    int tiled;
    PositionConfig position;
};

// From this length on, packing pays, as measured on an H200 at head_dim 64.
constexpr std::int64_t kTiledLength = 768;

std::vector<Sm90BackwardConfig> configs_of(std::int64_t length) {
    const int tiled = length >= kTiledLength ? 1 : 0;
    return {{tiled, {2, 3, 132}}, {1 - tiled, {2, 3, 132}}, {tiled, {2, 2, 132}}, {tiled, {1, 3, 264}}};
}

Config to_fields(const Sm90BackwardConfig& c) {
    return make_config(kSm90, kAxes, {c.tiled, c.position.tiles, c.position.stages, c.position.position_blocks});
}

Sm90BackwardConfig checked(const Config& config) {
    check_config(kSm90, kAxes, config);
    auto integer = [&](const char* name) { return static_cast<int>(config.integer(name)); };
    const Sm90BackwardConfig c = {integer("tiled"),
                                  {integer("position_tiles"), integer("position_stages"), integer("position_blocks")}};
    for (const Sm90BackwardConfig& other : configs_of(kTiledLength))  // the same positions at any length
        if (to_fields({c.tiled, other.position}) == config) return c;
    throw InvalidArgument("config", fmt::format("{} is not a backward config of the sm90 tier", config.to_string()));
}

// Of the mma tier, with the same distance sums, so that its workspace is a part of this tier's.
Config mma_config(const Problem& problem, const PositionConfig& position) {
    for (const Config& config : mma_backward_candidates(problem.head_dim, problem.length))
        if (config.integer("position_tiles") == position.tiles &&
            config.integer("position_stages") == position.stages &&
            config.integer("position_blocks") == position.position_blocks)
            return config;
    throw Unsupported("rows that are not 16-byte aligned are not available with this config of the sm90 tier");
}

// The layouts of sm90_key_tiles.cuh and sm90_queries.cuh, name by name; bytes.
constexpr std::int64_t kScoreBytes = 32 + 64 * 176, kGatheredBytes = kScoreBytes + 4 * 32;
constexpr std::int64_t kShearBytes = 4 * 16 * 180;

std::int64_t operand_bytes(std::int64_t head_dim) {
    return kBlockRows * 2 * head_dim;
}

std::int64_t kv_shared_bytes(std::int64_t head_dim, PositionTerms terms, bool dropout) {
    const std::int64_t statistics = 4 * 80 + 4 * (dropout ? 80 : 144) + 16;
    const std::int64_t barriers = 8 * 8, zeros = 32;
    return (8 + (terms.p2c ? 3 : 0)) * operand_bytes(head_dim) + (terms.c2p ? kGatheredBytes : 0) +
           (terms.p2c ? std::max(kGatheredBytes, kShearBytes) : 0) + 2 * statistics + (dropout ? 2 * 512 : 0) +
           barriers + zeros;
}

std::int64_t q_shared_bytes(std::int64_t head_dim, PositionTerms terms) {
    const std::int64_t operand = operand_bytes(head_dim), near = terms.count() ? 2 * 8 * 1040 : 0;
    const std::int64_t first = (std::max(2 * operand, near) + 1023) / 1024 * 1024;
    const std::int64_t last = terms.c2p ? kShearBytes : terms.count() ? 4 * 2 * head_dim * 4 : 0;
    const std::int64_t dead = 32, barriers = 8 * 8, zeros = 32;
    return first + 5 * operand + last + dead + barriers + zeros;
}

// What sm90_backward.cuh adds to the shared workspace.
struct Sm90Workspace {
    Sm90Workspace(const Problem& problem, const Sm90BackwardConfig& c) : common(problem, c.position) {
        constexpr std::int64_t kAlignment = 1024;
        const std::int64_t operand = operand_bytes(problem.head_dim), row_tiles = blocks(problem.length);
        std::int64_t tiles = std::int64_t{problem.batch} * problem.heads * row_tiles;
        if (problem.layout == Layout::packed) tiles = problem.heads * (problem.tokens / kBlockRows + problem.batch);
        if (problem.c2p || problem.p2c) {
            const int band = make_slot_table(problem.position_buckets, problem.max_relative_positions).band;
            chunks = (band + 63) / 64 + (band + 126) / 64 + 1;
            shifts = problem.p2c && (band + kBlockRows - 2) / kBlockRows < row_tiles - 1;
        }
        tables = (common.bytes + kAlignment - 1) / kAlignment * kAlignment;
        records = tables + problem.heads * chunks * 2 * operand;
        const std::int64_t shifted = shifts ? 2 * operand : 0;
        bytes = records + tiles * (c.tiled ? 5 * operand + 3 * 1024 + shifted : shifted);
    }
    static std::int64_t blocks(std::int64_t rows) { return (rows + kBlockRows - 1) / kBlockRows; }

    BackwardWorkspace common;
    std::int64_t chunks = 0;  // of 64 distances, of a head
    bool shifts = false;      // there are far tiles, and they take Q + PQ_end
    std::int64_t tables = 0, records = 0, bytes = 0;
};

}  // namespace

std::string sm90_backward_refuse(const Workload& workload) {
    const std::int64_t head_dim = workload.fields.integer("head_dim");
    if (head_dim <= 64) return "";
    return fmt::format("head_dim {} is not available in the backward pass of the sm90 tier: 32 or 64", head_dim);
}

std::vector<Config> sm90_backward_candidates(const Workload& workload) {
    std::vector<Config> fields;
    for (const Sm90BackwardConfig& c : configs_of(workload.fields.integer("length")))
        if (position_terms(workload).count() || (c.position.tiles == 2 && c.position.stages == 3))
            fields.push_back(to_fields(c));
    return fields;
}

// Of the KV kernel or, with twice the threads, the position kernel.
Resources sm90_backward_resources(const Workload& workload, const Config& config) {
    const Sm90BackwardConfig c = checked(config);
    const std::int64_t head_dim = workload.fields.integer("head_dim");
    const PositionTerms terms = position_terms(workload);
    Resources resources;
    resources.threads = kThreads;
    resources.registers = registers_per_thread(kThreads, kKvBlocksPerSm);
    resources.shared_bytes =
        std::max(kv_shared_bytes(head_dim, terms, has_dropout(workload)), q_shared_bytes(head_dim, terms));
    if (terms.count() == 0) return resources;
    resources.threads = kPositionThreads;
    resources.shared_bytes = std::max(resources.shared_bytes, c.position.shared_bytes(head_dim));
    return resources;
}

std::vector<KernelLaunch> sm90_backward_launches(const Problem& problem, const Config& config,
                                                 const DeviceInfo& device) {
    const Sm90BackwardConfig c = checked(config);
    // Bulk copies and wide loads want aligned rows; the mma kernels serve the others from a part of the same workspace.
    if (!has_aligned_rows(problem)) return mma_backward_launches(problem, mma_config(problem, c.position), device);
    const PositionTerms terms{problem.c2p, problem.p2c};
    const Sm90Workspace workspace(problem, c);
    auto own = [&](const char* stem, std::int64_t shared) {
        KernelLaunch launch = backward_kernel(problem, device, stem);
        launch.spec.parameters.set("tiled", FieldValue(c.tiled != 0));
        launch.spec.parameters.set("shared_bytes", FieldValue(shared));  // checked against the template's own layout
        launch.shape.grid[0] = blocks_of(problem, kBlockRows);
        launch.shape.block[0] = kThreads;
        launch.shape.shared_bytes = static_cast<unsigned>(shared);
        return launch;
    };
    KernelLaunch expand = own("sm90_expand", 0);
    const unsigned tiles = c.tiled || workspace.shifts ? expand.shape.grid[0] : 0;
    expand.shape.grid[0] = static_cast<unsigned>(problem.heads * workspace.chunks) + tiles;

    std::vector<KernelLaunch> launches = {prepare_launch(problem, device)};
    if (expand.shape.grid[0] > 0) launches.push_back(expand);
    launches.push_back(own("sm90_kv", kv_shared_bytes(problem.head_dim, terms, problem.dropout > 0)));
    launches.push_back(own("sm90_q", q_shared_bytes(problem.head_dim, terms)));
    if (terms.count()) {
        launches.push_back(position_launch(problem, c.position, device));
        launches.push_back(finish_launch(problem, c.position, device));
    }
    return launches;
}

std::size_t sm90_backward_workspace_bytes(const Problem& problem, const Config& config) {
    return static_cast<std::size_t>(Sm90Workspace(problem, checked(config)).bytes);
}

void sm90_backward_fill(const Problem& problem, const Config& config, BackwardParams& params) {
    const Sm90Workspace workspace(problem, checked(config));
    for (int i = 0; i < 4; ++i) params.regions[i] = workspace.common.regions[i];
    params.regions[4] = workspace.tables;
    params.regions[5] = workspace.records;
}

}  // namespace turbotune::disentangled_attention
