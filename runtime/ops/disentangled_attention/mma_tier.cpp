// Tensor cores through mma.sync, sm_80 and newer: kernel_templates/disentangled_attention/forward_mma.cu, of 16-bit
// elements, or of fp32 in tf32; the backward passes are in mma_backward.cpp and tf32_backward.cpp.
#include <fmt/format.h>

#include <algorithm>

#include "mma_backward.h"
#include "schedule.h"
#include "tf32_backward.h"
#include "turbotune/base/error.h"

namespace turbotune::disentangled_attention {

namespace {

constexpr const char* kMma = "mma";

const std::vector<ScheduleAxis> kAxes = {
    {"block_m", {32, 64, 128}},          // query rows of a block
    {"block_n", {32, 64}},               // keys of a tile
    {"warps", {2, 4, 8}},                // each owns block_m / warps rows
    {"stages", {1, 2, 3}},               // depth of the K and V ring
    {"blocks_per_sm", {1, 2, 3, 4, 6}},  // launch bound: caps registers
};

struct MmaConfig {
    int block_m, block_n, warps, stages, blocks_per_sm;
};

// Best first for long sequences and a full GPU, as measured on an H200 at head_dim 64.
const std::vector<MmaConfig> kHeadDim64 = {
    {128, 64, 4, 1, 2}, {128, 32, 4, 2, 2}, {64, 64, 4, 1, 3}, {64, 32, 4, 2, 3},
    {64, 64, 4, 2, 2},  {128, 32, 8, 2, 2}, {64, 32, 4, 1, 3}, {64, 64, 4, 1, 2},
    {128, 64, 4, 2, 1}, {64, 32, 2, 2, 4},  {64, 64, 2, 1, 3}, {128, 64, 8, 2, 1},
    {64, 32, 4, 3, 3},  {128, 32, 4, 3, 1}, {32, 32, 2, 2, 6}, {32, 64, 2, 1, 4},
};
const std::vector<MmaConfig> kHeadDim32 = {
    {128, 64, 4, 2, 2}, {128, 32, 4, 2, 2}, {64, 64, 4, 2, 3}, {64, 32, 4, 2, 4}, {128, 64, 4, 1, 2}, {64, 64, 4, 1, 3},
    {128, 64, 8, 2, 1}, {64, 64, 2, 2, 4},  {64, 32, 2, 2, 4}, {64, 32, 4, 3, 4}, {32, 32, 2, 2, 6},  {32, 64, 2, 2, 6},
};
const std::vector<MmaConfig> kHeadDim128 = {
    {64, 32, 4, 1, 2}, {64, 32, 4, 2, 2},  {64, 64, 4, 1, 2},  {64, 32, 4, 2, 1},
    {64, 64, 4, 2, 1}, {128, 32, 8, 1, 1}, {128, 32, 8, 2, 1}, {128, 64, 8, 1, 1},
};

// Of fp32 rows, which are twice as wide; best first as measured there at each head_dim.
const std::vector<MmaConfig> kTf32HeadDim64 = {
    {64, 64, 4, 1, 2}, {64, 32, 4, 1, 3}, {64, 32, 4, 2, 2}, {128, 32, 8, 1, 1}};
const std::vector<MmaConfig> kTf32HeadDim32 = {{128, 32, 4, 1, 2}, {64, 64, 4, 1, 3}, {64, 32, 4, 1, 4}};
const std::vector<MmaConfig> kTf32HeadDim128 = {{128, 32, 8, 1, 1}, {64, 32, 4, 1, 1}};

const std::vector<MmaConfig>& table_of(std::int64_t head_dim, bool tf32) {
    if (tf32) return head_dim == 32 ? kTf32HeadDim32 : head_dim == 64 ? kTf32HeadDim64 : kTf32HeadDim128;
    return head_dim == 32 ? kHeadDim32 : head_dim == 64 ? kHeadDim64 : kHeadDim128;
}

MmaConfig from_fields(const Config& config) {
    auto integer = [&](const char* name) { return static_cast<int>(config.integer(name)); };
    return {integer("block_m"), integer("block_n"), integer("warps"), integer("stages"), integer("blocks_per_sm")};
}

Config to_fields(const MmaConfig& c) {
    return make_config(kMma, kAxes, {c.block_m, c.block_n, c.warps, c.stages, c.blocks_per_sm});
}

// The template's own layout, name by name.
std::int64_t shared_bytes(const MmaConfig& c, std::int64_t head_dim, bool tf32, PositionTerms terms, bool mask) {
    const std::int64_t tile_bytes = c.block_n * head_dim * (tf32 ? 4 : 2);
    const int strip_chunks = (c.block_m + c.block_n - 1) / c.block_n + 1;
    const std::int64_t ring_bytes = (strip_chunks + c.stages - 1) * tile_bytes;
    const std::int64_t shift_bytes = terms.count() ? std::int64_t{c.block_m} * (c.block_n + 4) * 4 : 0;
    return 2 * c.stages * tile_bytes + terms.count() * ring_bytes + shift_bytes + (mask ? 8 : 0);
}

bool is_tf32(const Workload& workload) {
    return workload.fields.text("precision") == "fp32_fast";
}

bool is_tf32(const Problem& problem) {
    return problem.dtype == DType::f32;
}

bool masked(const Workload& workload) {
    return workload.fields.text("layout") == "padded_masked";
}

// The axes leave combinations that the template refuses; a profile may name only those that were candidates.
void check_listed(std::int64_t head_dim, bool tf32, const Config& config) {
    check_config(kMma, kAxes, config);
    for (const MmaConfig& c : table_of(head_dim, tf32))
        if (to_fields(c) == config) return;
    throw InvalidArgument(
        "config", fmt::format("{} is not a config of the mma tier for head_dim {}", config.to_string(), head_dim));
}

class MmaTier : public Tier {
  public:
    const char* name() const override { return kMma; }

    std::string refuse(const Workload& workload) const override {
        const std::string why = refuse_unserved(kMma, workload, {.dropout = true, .backward = true});
        if (!why.empty()) return why;
        const std::string& precision = workload.fields.text("precision");
        return precision == "half" || is_tf32(workload)
                   ? ""
                   : fmt::format("precision {} is not available on the mma tier", precision);
    }

    std::vector<Config> candidates(const Workload& workload, const DeviceInfo& device) const override {
        const std::int64_t head_dim = workload.fields.integer("head_dim");
        if (is_backward(workload))
            return is_tf32(workload) ? tf32_backward::candidates(head_dim)
                                     : mma_backward_candidates(head_dim, workload.fields.integer("length"));
        std::vector<MmaConfig> configs = table_of(head_dim, is_tf32(workload));
        // With fewer blocks than half the multiprocessors' slots, shorter blocks fill more of them.
        const std::int64_t length = workload.fields.integer("length"),
                           sequences = workload.fields.integer("batch_heads");
        auto fills = [&](const MmaConfig& c) {
            return (length + c.block_m - 1) / c.block_m * sequences >= device.device_class.sm_count;
        };
        if (std::any_of(configs.begin(), configs.end(), fills))
            std::stable_partition(configs.begin(), configs.end(), fills);
        else
            std::stable_sort(configs.begin(), configs.end(),
                             [](const MmaConfig& a, const MmaConfig& b) { return a.block_m < b.block_m; });
        std::vector<Config> fields;
        for (const MmaConfig& c : configs) fields.push_back(to_fields(c));
        return fields;
    }

    Resources resources(const Workload& workload, const Config& config) const override {
        const std::int64_t head_dim = workload.fields.integer("head_dim");
        if (is_backward(workload))
            return is_tf32(workload)
                       ? tf32_backward::resources(workload, config)
                       : mma_backward_resources(head_dim, position_terms(workload), has_dropout(workload), config);
        check_listed(head_dim, is_tf32(workload), config);
        const MmaConfig c = from_fields(config);
        Resources resources;
        resources.threads = 32 * c.warps;
        resources.registers = registers_per_thread(resources.threads, c.blocks_per_sm);
        resources.shared_bytes =
            shared_bytes(c, head_dim, is_tf32(workload), position_terms(workload), masked(workload));
        return resources;
    }

    std::vector<KernelLaunch> launches(const Problem& problem, const Config& config,
                                       const DeviceInfo& device) const override {
        const bool tf32 = is_tf32(problem);
        if (problem.pass == Pass::backward)
            return tf32 ? tf32_backward::launches(problem, config, device)
                        : mma_backward_launches(problem, config, device);
        check_listed(problem.head_dim, tf32, config);
        const MmaConfig c = from_fields(config);
        KernelLaunch launch;
        launch.spec.template_path = "disentangled_attention/forward_mma.cu";
        launch.spec.kernel_name = "disentangled_attention_forward_mma";
        launch.spec.parameters = problem_parameters(problem);
        for (const ScheduleAxis& axis : kAxes) launch.spec.parameters.set(axis.name, *config.find(axis.name));
        const std::int64_t shared = shared_bytes(c, problem.head_dim, tf32, {problem.c2p, problem.p2c}, problem.mask);
        launch.spec.parameters.set("aligned", FieldValue(has_aligned_rows(problem)));
        launch.spec.parameters.set("shared_bytes", FieldValue(shared));  // checked against the template's own layout
        launch.spec.target = device.target();
        launch.shape.grid[0] = blocks_of(problem, c.block_m);
        launch.shape.block[0] = static_cast<unsigned>(32 * c.warps);
        launch.shape.shared_bytes = static_cast<unsigned>(shared);
        return {launch};
    }

    std::size_t workspace_bytes(const Problem& problem, const Config& config) const override {
        if (problem.pass != Pass::backward) return 0;
        return is_tf32(problem) ? tf32_backward::workspace_bytes(problem)
                                : mma_backward_workspace_bytes(problem, config);
    }

    void fill(const Problem& problem, const Config& config, BackwardParams& params) const override {
        if (is_tf32(problem))
            tf32_backward::fill(problem, params);
        else
            mma_backward_fill(problem, config, params);
    }
};

}  // namespace

const Tier& mma_tier() {
    static const MmaTier tier;
    return tier;
}

}  // namespace turbotune::disentangled_attention
