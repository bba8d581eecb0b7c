// Kernels: kernel_templates/disentangled_attention/backward_mma_kv.cu (dK, dV), backward_mma_q.cu (dQ) and the shared
// ones.
#include "mma_backward.h"

#include <fmt/format.h>

#include <algorithm>

#include "backward_kernels.h"
#include "disentangled_attention/params.h"
#include "turbotune/base/error.h"

namespace turbotune::disentangled_attention {

namespace {

constexpr const char* kMma = "mma";
constexpr int kThreads = 128;   // of the KV and the Q kernel
constexpr int kBlockRows = 64;  // keys of a KV block, queries of a Q block

const std::vector<ScheduleAxis> kAxes = {
    {"block_q", {16, 32, 64}},        // KV: queries of a step
    {"kv_groups", {1, 2, 4}},         // KV: groups of 16 queries that far tiles take at a time
    {"kv_stages", {2}},               // KV: depth of the Q and dO ring
    {"resident", {0, 1}},             // KV: K and V stay in registers
    {"strip_kept", {0, 1}},           // KV: PK's operands that two groups share stay in registers
    {"kv_blocks_per_sm", {2, 3}},     // KV: launch bound, caps registers
    {"block_k", {32, 64}},            // Q: keys of a step
    {"q_groups", {2, 4}},             // Q: groups of 16 keys that far tiles take at a time
    {"q_stages", {2}},                // Q: depth of the K ring
    {"q_blocks_per_sm", {2, 3, 4}},   // Q: launch bound
    {"position_tiles", {1, 2}},       // tiles along a side of the position kernel's squares
    {"position_stages", {2, 3}},      // depth of its ring
    {"position_blocks", {132, 264}},  // parts of its sum
};

struct MmaBackwardConfig {
    int block_q, kv_groups, kv_stages, resident, strip_kept, kv_blocks_per_sm;
    int block_k, q_groups, q_stages, q_blocks_per_sm;
    PositionConfig position;
};

// Best first, as measured on an H200 at head_dim 64, where short sequences like two groups better, long ones four. The
// last ones fit 99 KiB of shared memory.
constexpr std::int64_t kShortLength = 1024;
const std::vector<MmaBackwardConfig> kHeadDim64 = {
    {64, 2, 2, 1, 1, 2, 64, 2, 2, 4, {2, 3, 132}}, {64, 4, 2, 1, 1, 2, 64, 4, 2, 3, {2, 3, 132}},
    {64, 4, 2, 1, 1, 2, 64, 2, 2, 4, {2, 3, 132}}, {64, 4, 2, 1, 0, 2, 64, 4, 2, 3, {2, 3, 132}},
    {64, 2, 2, 1, 1, 2, 64, 2, 2, 4, {2, 2, 132}}, {64, 4, 2, 1, 1, 2, 64, 4, 2, 3, {2, 2, 264}},
    {64, 2, 2, 1, 1, 2, 64, 2, 2, 4, {1, 3, 264}}, {64, 4, 2, 1, 1, 2, 64, 4, 2, 3, {1, 3, 264}},
};
const std::vector<MmaBackwardConfig> kHeadDim32 = {
    {64, 2, 2, 1, 1, 3, 64, 2, 2, 4, {2, 3, 132}},
    {64, 4, 2, 1, 1, 2, 64, 4, 2, 3, {2, 3, 132}},
    {64, 2, 2, 1, 1, 3, 64, 2, 2, 4, {2, 2, 132}},
    {64, 2, 2, 1, 1, 3, 64, 2, 2, 4, {1, 3, 264}},
};
const std::vector<MmaBackwardConfig> kHeadDim128 = {
    {16, 1, 2, 0, 0, 2, 64, 2, 2, 2, {2, 3, 132}},
    {32, 2, 2, 1, 0, 2, 64, 2, 2, 2, {2, 3, 132}},
    {16, 1, 2, 0, 0, 2, 64, 2, 2, 2, {2, 2, 132}},
    {16, 1, 2, 0, 0, 2, 32, 2, 2, 2, {1, 3, 264}},
};

const std::vector<MmaBackwardConfig>& table_of(std::int64_t head_dim) {
    return head_dim == 32 ? kHeadDim32 : head_dim == 64 ? kHeadDim64 : kHeadDim128;
}

Config to_fields(const MmaBackwardConfig& c) {
    return make_config(
        kMma, kAxes,
        {c.block_q, c.kv_groups, c.kv_stages, c.resident, c.strip_kept, c.kv_blocks_per_sm, c.block_k, c.q_groups,
         c.q_stages, c.q_blocks_per_sm, c.position.tiles, c.position.stages, c.position.position_blocks});
}

// The axes leave combinations that the templates refuse; a profile may name only those that were candidates.
MmaBackwardConfig listed(std::int64_t head_dim, const Config& config) {
    check_config(kMma, kAxes, config);
    for (const MmaBackwardConfig& c : table_of(head_dim))
        if (to_fields(c) == config) return c;
    throw InvalidArgument("config", fmt::format("{} is not a backward config of the mma tier for head_dim {}",
                                                config.to_string(), head_dim));
}

// The layouts of backward_mma_kv_load.cuh and backward_mma_q_step.cuh, name by name.
std::int64_t kv_shared_bytes(const MmaBackwardConfig& c, std::int64_t head_dim, PositionTerms terms, bool dropout) {
    const std::int64_t row_bytes = 2 * head_dim, step_bytes = c.block_q * row_bytes;
    const std::int64_t ring_bytes = (kBlockRows / c.block_q + 1 + c.kv_stages - 1) * step_bytes;
    const std::int64_t key_bytes = c.resident ? 0 : 2 * kBlockRows * row_bytes;
    const std::int64_t statistics_bytes = c.kv_stages * c.block_q * 8;
    const std::int64_t dropped_bytes = dropout ? 2 * (2 * c.block_q) * 4 : 0;
    return 2 * c.kv_stages * step_bytes + terms.count() * ring_bytes + key_bytes + statistics_bytes + dropped_bytes;
}

std::int64_t q_shared_bytes(const MmaBackwardConfig& c, std::int64_t head_dim, PositionTerms terms) {
    const std::int64_t step_bytes = c.block_k * 2 * head_dim,
                       near_bytes = terms.count() ? c.block_k * kBlockRows * 2 : 0;
    const std::int64_t ring_bytes = terms.c2p ? (kBlockRows / c.block_k + 1 + c.q_stages - 1) * step_bytes : 0;
    return c.q_stages * (step_bytes + std::max(step_bytes, near_bytes)) + ring_bytes;
}

}  // namespace

std::vector<Config> mma_backward_candidates(std::int64_t head_dim, std::int64_t length) {
    std::vector<MmaBackwardConfig> configs = table_of(head_dim);
    if (head_dim == 64)
        std::stable_partition(configs.begin(), configs.end(), [&](const MmaBackwardConfig& c) {
            return (c.kv_groups == 2) == (length <= kShortLength);
        });
    std::vector<Config> fields;
    for (const MmaBackwardConfig& c : configs) fields.push_back(to_fields(c));
    return fields;
}

// Of the kernel that needs most: the position kernel has twice the threads, and half the registers unless its squares
// are large, when it is alone on its multiprocessor.
Resources mma_backward_resources(std::int64_t head_dim, PositionTerms terms, bool dropout, const Config& config) {
    const MmaBackwardConfig c = listed(head_dim, config);
    Resources resources;
    resources.threads = kThreads;
    resources.registers = registers_per_thread(kThreads, std::min(c.kv_blocks_per_sm, c.q_blocks_per_sm));
    resources.shared_bytes = std::max(kv_shared_bytes(c, head_dim, terms, dropout), q_shared_bytes(c, head_dim, terms));
    if (terms.count() == 0) return resources;
    resources.threads = kPositionThreads;
    resources.registers = std::max(resources.registers, c.position.registers());
    resources.shared_bytes = std::max(resources.shared_bytes, c.position.shared_bytes(head_dim));
    return resources;
}

std::vector<KernelLaunch> mma_backward_launches(const Problem& problem, const Config& config,
                                                const DeviceInfo& device) {
    const MmaBackwardConfig c = listed(problem.head_dim, config);
    const PositionTerms terms{problem.c2p, problem.p2c};
    auto own = [&](const char* stem, std::int64_t shared) {
        KernelLaunch launch = backward_kernel(problem, device, stem);
        launch.spec.parameters.set("shared_bytes", FieldValue(shared));  // checked against the template's own layout
        launch.shape.grid[0] = blocks_of(problem, kBlockRows);
        launch.shape.block[0] = kThreads;
        launch.shape.shared_bytes = static_cast<unsigned>(shared);
        return launch;
    };
    KernelLaunch kv = own("mma_kv", kv_shared_bytes(c, problem.head_dim, terms, problem.dropout > 0));
    kv.spec.parameters.set("block_q", c.block_q);
    kv.spec.parameters.set("far_groups", c.kv_groups);
    kv.spec.parameters.set("stages", c.kv_stages);
    kv.spec.parameters.set("resident", FieldValue(c.resident != 0));
    kv.spec.parameters.set("strip_kept", FieldValue(c.strip_kept != 0));
    kv.spec.parameters.set("blocks_per_sm", c.kv_blocks_per_sm);
    KernelLaunch q = own("mma_q", q_shared_bytes(c, problem.head_dim, terms));
    q.spec.parameters.set("block_k", c.block_k);
    q.spec.parameters.set("far_groups", c.q_groups);
    q.spec.parameters.set("stages", c.q_stages);
    q.spec.parameters.set("blocks_per_sm", c.q_blocks_per_sm);

    std::vector<KernelLaunch> launches = {prepare_launch(problem, device), kv, q};
    if (terms.count()) {
        launches.push_back(position_launch(problem, c.position, device, "mma_position",
                                           c.position.shared_bytes(problem.head_dim), kPositionThreads));
        launches.push_back(finish_launch(problem, c.position, device));
    }
    return launches;
}

std::size_t mma_backward_workspace_bytes(const Problem& problem, const Config& config) {
    const MmaBackwardConfig c = listed(problem.head_dim, config);
    return static_cast<std::size_t>(BackwardWorkspace(problem, c.position).bytes);
}

void mma_backward_fill(const Problem& problem, const Config& config, BackwardParams& params) {
    const BackwardWorkspace workspace(problem, listed(problem.head_dim, config).position);
    for (int i = 0; i < 4; ++i) params.regions[i] = workspace.regions[i];
}

}  // namespace turbotune::disentangled_attention
