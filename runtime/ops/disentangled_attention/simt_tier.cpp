// IEEE fp32 on the ordinary arithmetic units, every GPU from sm_70: forward_simt.cu; the backward pass is in
// simt_backward.cpp.
#include <fmt/format.h>

#include <algorithm>

#include "schedule.h"
#include "simt_backward.h"
#include "turbotune/base/error.h"

namespace turbotune::disentangled_attention {

namespace {

constexpr const char* kSimt = "simt";

const std::vector<ScheduleAxis> kAxes = {
    {"block_m", {32, 64}},            // query rows of a block
    {"block_n", {32, 64}},            // keys of a tile
    {"threads", {64, 256}},           // a square; each thread owns (block_m / side) x (block_n / side) pairs
    {"dim_step", {16, 32}},           // columns of K and of the strips in shared memory at a time
    {"blocks_per_sm", {1, 2, 4, 6}},  // launch bound: caps registers
};

struct SimtConfig {
    int block_m, block_n, threads, dim_step, blocks_per_sm;
};

const SimtConfig kConfigs[] = {
    {64, 64, 256, 16, 2}, {64, 64, 256, 32, 1}, {64, 64, 256, 16, 1}, {32, 32, 64, 16, 4},
    {64, 64, 256, 32, 2}, {32, 32, 64, 32, 6},  {32, 32, 64, 32, 4},  {64, 64, 64, 32, 4},
};

SimtConfig from_fields(const Config& config) {
    auto integer = [&](const char* name) { return static_cast<int>(config.integer(name)); };
    return {integer("block_m"), integer("block_n"), integer("threads"), integer("dim_step"), integer("blocks_per_sm")};
}

Config to_fields(const SimtConfig& c) {
    return make_config(kSimt, kAxes, {c.block_m, c.block_n, c.threads, c.dim_step, c.blocks_per_sm});
}

// The template's own layout, name by name.
std::int64_t shared_bytes(const SimtConfig& c, std::int64_t head_dim, PositionTerms terms, bool mask, bool dropout) {
    const std::int64_t wide_pitch = head_dim + 4, step_pitch = c.dim_step + 4;
    const std::int64_t q_floats = c.block_m * wide_pitch;
    const std::int64_t scores_floats = (c.block_n + terms.count() * (c.block_m + c.block_n)) * step_pitch;
    const std::int64_t values_floats = c.block_n * wide_pitch + std::int64_t{c.block_m} * (c.block_n + 4);
    return 4 * (q_floats + std::max(scores_floats, values_floats) + (mask ? 2 : 0) + (dropout ? 2 * c.block_m : 0));
}

// 64 accumulators of scores beside 64 or more of values fit the registers up to head_dim 64 only.
bool fits_registers(const SimtConfig& c, std::int64_t head_dim) {
    return c.block_m != 64 || c.threads != 64 || head_dim <= 64;
}

void check_listed(std::int64_t head_dim, const Config& config) {
    check_config(kSimt, kAxes, config);
    for (const SimtConfig& c : kConfigs)
        if (fits_registers(c, head_dim) && to_fields(c) == config) return;
    throw InvalidArgument(
        "config", fmt::format("{} is not a config of the simt tier for head_dim {}", config.to_string(), head_dim));
}

class SimtTier : public Tier {
  public:
    const char* name() const override { return kSimt; }

    std::string refuse(const Workload& workload) const override {
        return refuse_unserved(kSimt, workload, {.dropout = true, .backward = true});
    }

    std::vector<Config> candidates(const Workload& workload, const DeviceInfo& device) const override {
        if (is_backward(workload)) return simt_backward::candidates(workload, device);
        const std::int64_t head_dim = workload.fields.integer("head_dim");
        std::vector<SimtConfig> configs;
        for (const SimtConfig& c : kConfigs)
            if (fits_registers(c, head_dim)) configs.push_back(c);
        const std::int64_t length = workload.fields.integer("length"),
                           sequences = workload.fields.integer("batch_heads");
        std::stable_partition(configs.begin(), configs.end(), [&](const SimtConfig& c) {
            return (length + c.block_m - 1) / c.block_m * sequences >= device.device_class.sm_count;
        });
        std::vector<Config> fields;
        for (const SimtConfig& c : configs) fields.push_back(to_fields(c));
        return fields;
    }

    Resources resources(const Workload& workload, const Config& config) const override {
        if (is_backward(workload)) return simt_backward::resources(workload, config);
        const std::int64_t head_dim = workload.fields.integer("head_dim");
        check_listed(head_dim, config);
        const SimtConfig c = from_fields(config);
        Resources resources;
        resources.threads = c.threads;
        resources.registers = registers_per_thread(c.threads, c.blocks_per_sm);
        resources.shared_bytes = shared_bytes(c, head_dim, position_terms(workload),
                                              workload.fields.text("layout") == "padded_masked", has_dropout(workload));
        return resources;
    }

    std::vector<KernelLaunch> launches(const Problem& problem, const Config& config,
                                       const DeviceInfo& device) const override {
        if (problem.pass == Pass::backward) return simt_backward::launches(problem, config, device);
        check_listed(problem.head_dim, config);
        const SimtConfig c = from_fields(config);
        KernelLaunch launch;
        launch.spec.template_path = "disentangled_attention/forward_simt.cu";
        launch.spec.kernel_name = "disentangled_attention_forward_simt";
        launch.spec.parameters = problem_parameters(problem);
        for (const ScheduleAxis& axis : kAxes) launch.spec.parameters.set(axis.name, *config.find(axis.name));
        const std::int64_t shared =
            shared_bytes(c, problem.head_dim, {problem.c2p, problem.p2c}, problem.mask, problem.dropout > 0);
        launch.spec.parameters.set("aligned", FieldValue(has_aligned_rows(problem)));
        launch.spec.parameters.set("shared_bytes", FieldValue(shared));  // checked against the template's own layout
        launch.spec.target = device.target();
        launch.shape.grid[0] = blocks_of(problem, c.block_m);
        launch.shape.block[0] = static_cast<unsigned>(c.threads);
        launch.shape.shared_bytes = static_cast<unsigned>(shared);
        return {launch};
    }

    std::size_t workspace_bytes(const Problem& problem, const Config& config) const override {
        return problem.pass == Pass::backward ? simt_backward::workspace_bytes(problem, config) : 0;
    }

    void fill(const Problem& problem, const Config& config, BackwardParams& params) const override {
        simt_backward::fill(problem, config, params);
    }
};

}  // namespace

const Tier& simt_tier() {
    static const SimtTier tier;
    return tier;
}

}  // namespace turbotune::disentangled_attention
