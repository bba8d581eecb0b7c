// The CPU device's kernel, forward_host.cpp: one block computes block_m query rows of one head, over tiles of block_n
// keys, with register tiles of micro_rows x micro_vectors.
#include <fmt/format.h>

#include <algorithm>

#include "disentangled_attention/host_layout.h"
#include "schedule.h"
#include "turbotune/base/error.h"

namespace turbotune::disentangled_attention {

namespace {

struct HostConfig {
    int block_m, block_n, micro_rows, micro_vectors;
};

// Register tiles are sums[micro_rows][micro_vectors] beside micro_vectors operands and one broadcast value.
constexpr HostConfig kWithManyRegisters[] = {
    // 32 vector registers
    {128, 64, 8, 2}, {192, 64, 8, 3}, {128, 64, 8, 3},  {64, 64, 8, 2}, {128, 32, 8, 2},
    {256, 64, 8, 2}, {64, 32, 8, 2},  {128, 128, 8, 2}, {64, 64, 4, 4}, {32, 32, 8, 2},
};
constexpr HostConfig kWithFewRegisters[] = {
    // 16
    {128, 64, 4, 2}, {64, 64, 4, 2},  {128, 32, 4, 2},  {128, 64, 4, 3}, {64, 32, 4, 2},
    {192, 64, 4, 2}, {256, 64, 4, 2}, {128, 128, 4, 2}, {32, 32, 4, 2},
};

struct Axis {
    const char* name;
    std::vector<int> values;
};
const Axis kAxes[] = {
    {"block_m", {32, 64, 128, 192, 256}},
    {"block_n", {32, 64, 128}},
    {"micro_rows", {4, 8}},
    {"micro_vectors", {2, 3, 4}},
};

bool has_many_registers(const std::string& arch) {
    return arch.find("avx512") != std::string::npos || arch.find("aarch64") != std::string::npos;
}

HostLayout layout_of(int head_dim, const Config& config) {
    return {head_dim, static_cast<int>(config.integer("block_m")), static_cast<int>(config.integer("block_n"))};
}

std::string join(const std::vector<int>& values) {
    std::string text;
    for (int value : values) text += (text.empty() ? "" : ", ") + std::to_string(value);
    return text;
}

void check_axis(const Config& config, const Axis& axis) {
    const std::int64_t value = config.integer(axis.name);
    if (std::find(axis.values.begin(), axis.values.end(), value) == axis.values.end())
        throw InvalidArgument(axis.name, fmt::format("is {}; one of: {}", value, join(axis.values)));
}

void check_config(const Config& config) {
    if (config.text("tier") != "host")
        throw InvalidArgument("tier", fmt::format("is \"{}\"; here: host", config.text("tier")));
    for (const Axis& axis : kAxes) check_axis(config, axis);
    for (const auto& [name, value] : config.entries()) {
        const bool known =
            name == "tier" || std::any_of(std::begin(kAxes), std::end(kAxes),
                                          [&, &field = name](const Axis& axis) { return axis.name == field; });
        if (!known) throw InvalidArgument(name, "is not a field of the host tier's configs");
    }
}

class HostTier : public Tier {
  public:
    const char* name() const override { return "host"; }

    std::string refuse(const Workload& workload) const override {
        const std::string why = refuse_unserved("host", workload, {});
        if (!why.empty()) return why;
        const std::string& precision = workload.fields.text("precision");
        if (precision != "half" && precision != "fp32_strict")
            return fmt::format("precision {} is not available on the host tier", precision);
        return "";
    }

    // Blocks no taller than the sequences, those whose scratch fits the L2 of a core first.
    std::vector<Config> candidates(const Workload& workload, const DeviceInfo& device) const override {
        const bool many = has_many_registers(device.device_class.arch);
        const HostConfig* begin = many ? std::begin(kWithManyRegisters) : std::begin(kWithFewRegisters);
        const HostConfig* end = many ? std::end(kWithManyRegisters) : std::end(kWithFewRegisters);
        const std::int64_t tallest = std::max<std::int64_t>(64, workload.fields.integer("length"));
        std::vector<Config> configs;
        for (const HostConfig* at = begin; at != end; ++at) {
            if (at->block_m > tallest) continue;
            configs.push_back({{"tier", std::string("host")},
                               {"block_m", std::int64_t{at->block_m}},
                               {"block_n", std::int64_t{at->block_n}},
                               {"micro_rows", std::int64_t{at->micro_rows}},
                               {"micro_vectors", std::int64_t{at->micro_vectors}}});
        }
        const std::int64_t l2 = device.device_class.shared_per_block;
        const int head_dim = static_cast<int>(workload.fields.integer("head_dim"));
        std::stable_partition(configs.begin(), configs.end(), [&](const Config& config) {
            return l2 <= 0 || layout_of(head_dim, config).bytes() <= l2;
        });
        return configs;
    }

    Resources resources(const Workload& workload, const Config& config) const override {
        check_config(config);
        Resources resources;
        resources.threads = 1;
        resources.shared_bytes = layout_of(static_cast<int>(workload.fields.integer("head_dim")), config).bytes();
        return resources;
    }

    std::vector<KernelLaunch> launches(const Problem& problem, const Config& config,
                                       const DeviceInfo& device) const override {
        check_config(config);
        const unsigned block_m = static_cast<unsigned>(config.integer("block_m"));
        KernelLaunch launch;
        launch.spec.template_path = "disentangled_attention/forward_host.cpp";
        launch.spec.kernel_name = "disentangled_attention_forward_host";
        launch.spec.parameters = problem_parameters(problem);
        for (const Axis& axis : kAxes) launch.spec.parameters.set(axis.name, *config.find(axis.name));
        launch.spec.target = device.target();
        launch.shape.grid[0] = (static_cast<unsigned>(problem.length) + block_m - 1) / block_m;
        launch.shape.grid[1] = static_cast<unsigned>(problem.heads);
        launch.shape.grid[2] = static_cast<unsigned>(problem.batch);
        launch.shape.shared_bytes = static_cast<unsigned>(layout_of(problem.head_dim, config).bytes());
        return {launch};
    }
};

}  // namespace

const Tier& host_tier() {
    static const HostTier tier;
    return tier;
}

}  // namespace turbotune::disentangled_attention
