// Kernels: kernel_templates/disentangled_attention/backward_sm90_prepare.cu, backward_sm90_kv.cu (dK, dV),
// backward_sm90_q.cu (dQ), backward_sm90_position.cu (distance sums) and the shared backward_finish.cu.
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
constexpr int kWarpgroup = 128;  // threads; of the Q and the prepare kernel
constexpr int kBlockRows = 64;   // keys of a KV block, queries of a Q block
constexpr PositionConfig kPosition = {1, 3, 264};

// Which rows are packed as shared memory keeps them once, then come by bulk copies: none, queries, keys too.
enum : int { kPackNone, kPackQueries, kPackAll };
const std::vector<ScheduleAxis> kAxes = {{"tiled", {kPackNone, kPackQueries, kPackAll}}};

// From these lengths on, packing pays, as measured on an H200.
constexpr std::int64_t kQueriesLength = 256, kAllLength = 3072, kWideAllLength = 1024;  // the last: of head_dim 128

Config to_fields(int tiled) {
    return make_config(kSm90, kAxes, {tiled});
}

int checked(const Config& config) {
    check_config(kSm90, kAxes, config);
    return static_cast<int>(config.integer("tiled"));
}

// Of the mma tier, with the same distance sums, so that its workspace is a part of this tier's.
Config mma_config(const Problem& problem) {
    for (const Config& config : mma_backward_candidates(problem.head_dim, problem.length))
        if (config.integer("position_tiles") == kPosition.tiles &&
            config.integer("position_stages") == kPosition.stages &&
            config.integer("position_blocks") == kPosition.position_blocks)
            return config;
    throw Unsupported("rows that are not 16-byte aligned are not available in the sm90 tier");
}

// The layouts of sm90_key_tiles.cuh, sm90_query_tiles.cuh and backward_sm90_position.cu, name by name; bytes.
constexpr std::int64_t kScoreBytes = 32 + 64 * 176, kGatheredBytes = kScoreBytes + 4 * 32;
constexpr std::int64_t kShearBytes = 4 * 16 * 180;  // of a warpgroup
constexpr std::int64_t kNearBytes = 8 * 1040;       // a tile of dS

// Warpgroups of a KV block.
int kv_warpgroups(std::int64_t head_dim) {
    return head_dim == 128 ? 2 : 1;
}

std::int64_t operand_bytes(std::int64_t head_dim) {
    return kBlockRows * 2 * head_dim;
}

std::int64_t kv_shared_bytes(std::int64_t head_dim, PositionTerms terms, bool dropout) {
    const std::int64_t statistics = 2 * 4 * 80 + 16;
    const std::int64_t barriers = 8 * 8, zeros = 32;
    const std::int64_t scores =
        kv_warpgroups(head_dim) == 2 ? kGatheredBytes + 2 * kShearBytes : std::max(kGatheredBytes, kShearBytes);
    return (8 + (terms.p2c ? 3 : 0)) * operand_bytes(head_dim) + (terms.c2p ? kGatheredBytes : 0) +
           (terms.p2c ? scores : 0) + 2 * statistics + (dropout ? 2 * 512 : 0) + barriers + zeros;
}

std::int64_t q_shared_bytes(std::int64_t head_dim, PositionTerms terms) {
    const std::int64_t operand = operand_bytes(head_dim), near = terms.count() ? 2 * kNearBytes : 0;
    const std::int64_t v_stages = head_dim == 128 ? 1 : 2;
    const std::int64_t first = (std::max(v_stages * operand, near) + 1023) / 1024 * 1024;
    const std::int64_t last = terms.c2p ? kShearBytes : terms.count() ? 4 * 2 * head_dim * 4 : 0;
    const std::int64_t dead = 32, barriers = 10 * 8, zeros = 32;
    return first + 5 * operand + last + dead + barriers + zeros;
}

std::int64_t position_shared_bytes(std::int64_t head_dim, PositionTerms terms) {
    const std::int64_t operand = operand_bytes(position_columns(head_dim)), strip = 2 * 64 * 128;
    const std::int64_t barriers = 2 * 8, number = 4;
    return terms.count() * strip + kPosition.stages * (2 * operand + kNearBytes + barriers + number);
}

// A warpgroup for each table, one that brings tiles.
int position_threads(PositionTerms terms) {
    return kWarpgroup * (terms.count() + 1);
}

// What sm90_backward.cuh adds to the shared workspace.
struct Sm90Workspace {
    Sm90Workspace(const Problem& problem, int tiled) : common(problem, kPosition) {
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
        const std::int64_t queries = tiled == kPackNone ? 0 : 3 * operand + 3 * 1024;
        bytes = records + tiles * (queries + shifted + (tiled == kPackAll ? 2 * operand : 0));
    }
    static std::int64_t blocks(std::int64_t rows) { return (rows + kBlockRows - 1) / kBlockRows; }

    BackwardWorkspace common;
    std::int64_t chunks = 0;  // of 64 distances, of a head
    bool shifts = false;      // there are far tiles, and they take Q + PQ_end
    std::int64_t tables = 0, records = 0, bytes = 0;
};

}  // namespace

std::vector<Config> sm90_backward_candidates(const Workload& workload) {
    const std::int64_t length = workload.fields.integer("length");
    const std::int64_t all = workload.fields.integer("head_dim") == 128 ? kWideAllLength : kAllLength;
    const int best = length < kQueriesLength ? kPackNone : length < all ? kPackQueries : kPackAll;
    std::vector<Config> fields = {to_fields(best)};
    for (int tiled : {kPackAll, kPackQueries, kPackNone})
        if (tiled != best) fields.push_back(to_fields(tiled));
    return fields;
}

// Threads and registers of the KV kernel: the position kernel's launch bound keeps what its own threads take below it.
Resources sm90_backward_resources(const Workload& workload, const Config& config) {
    checked(config);
    const std::int64_t head_dim = workload.fields.integer("head_dim");
    const PositionTerms terms = position_terms(workload);
    Resources resources;
    resources.threads = kWarpgroup * kv_warpgroups(head_dim);
    resources.registers = registers_per_thread(resources.threads, 1);
    resources.shared_bytes =
        std::max(kv_shared_bytes(head_dim, terms, has_dropout(workload)), q_shared_bytes(head_dim, terms));
    if (terms.count())
        resources.shared_bytes = std::max(resources.shared_bytes, position_shared_bytes(head_dim, terms));
    return resources;
}

std::vector<KernelLaunch> sm90_backward_launches(const Problem& problem, const Config& config,
                                                 const DeviceInfo& device) {
    const int tiled = checked(config);
    // Bulk copies and wide loads want aligned rows; the mma kernels serve the others from a part of the same workspace.
    if (!has_aligned_rows(problem)) return mma_backward_launches(problem, mma_config(problem), device);
    const PositionTerms terms{problem.c2p, problem.p2c};
    auto own = [&](const char* stem, std::int64_t shared, int warpgroups) {
        KernelLaunch launch = backward_kernel(problem, device, stem);
        launch.spec.parameters.set("tiled", FieldValue(tiled != kPackNone));
        launch.spec.parameters.set("tiled_keys", FieldValue(tiled == kPackAll));
        launch.spec.parameters.set("shared_bytes", FieldValue(shared));  // checked against the template's own layout
        launch.shape.grid[0] = blocks_of(problem, kBlockRows);
        launch.shape.block[0] = static_cast<unsigned>(warpgroups * kWarpgroup);
        launch.shape.shared_bytes = static_cast<unsigned>(shared);
        return launch;
    };
    KernelLaunch prepare = own("sm90_prepare", 0, 1);
    prepare.shape.grid[0] = checked_grid(prepare.shape.grid[0] + problem.heads * Sm90Workspace(problem, tiled).chunks);

    std::vector<KernelLaunch> launches = {prepare};
    const std::int64_t kv_shared = kv_shared_bytes(problem.head_dim, terms, problem.dropout > 0);
    launches.push_back(own("sm90_kv", kv_shared, kv_warpgroups(problem.head_dim)));
    launches.push_back(own("sm90_q", q_shared_bytes(problem.head_dim, terms), 1));
    if (terms.count()) {
        launches.push_back(position_launch(problem, kPosition, device, "sm90_position",
                                           position_shared_bytes(problem.head_dim, terms), position_threads(terms)));
        launches.push_back(finish_launch(problem, kPosition, device));
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
