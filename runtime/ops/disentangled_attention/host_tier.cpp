// The CPU device's kernels. Forward, forward_host.cpp: one block computes block_m query rows of one head, over tiles of
// block_n keys, with register tiles of micro_rows x micro_vectors. Backward: host_backward.h.
#include <algorithm>

#include "disentangled_attention/host_layout.h"
#include "host_backward.h"
#include "host_registers.h"

namespace turbotune::disentangled_attention {

namespace {

constexpr const char* kHost = "host";

// block_m, block_n, micro_rows, micro_vectors. Register tiles are sums[micro_rows][micro_vectors] beside micro_vectors
// operands and one broadcast value.
const std::vector<int> kWithManyRegisters[] = {
    // 32 vector registers
    {128, 64, 8, 2}, {192, 64, 8, 3}, {128, 64, 8, 3},  {64, 64, 8, 2}, {128, 32, 8, 2},
    {256, 64, 8, 2}, {64, 32, 8, 2},  {128, 128, 8, 2}, {64, 64, 4, 4}, {32, 32, 8, 2},
};
const std::vector<int> kWithFewRegisters[] = {
    // 16
    {128, 64, 4, 2}, {64, 64, 4, 2},  {128, 32, 4, 2},  {128, 64, 4, 3}, {64, 32, 4, 2},
    {192, 64, 4, 2}, {256, 64, 4, 2}, {128, 128, 4, 2}, {32, 32, 4, 2},
};

const std::vector<ScheduleAxis> kAxes = {
    {"block_m", {32, 64, 128, 192, 256}},
    {"block_n", {32, 64, 128}},
    {"micro_rows", {4, 8}},
    {"micro_vectors", {2, 3, 4}},
};

HostLayout layout_of(int head_dim, const Config& config) {
    return {head_dim, static_cast<int>(config.integer("block_m")), static_cast<int>(config.integer("block_n"))};
}

class HostTier : public Tier {
  public:
    const char* name() const override { return kHost; }

    // Fast fp32 is computed like strict: there is nothing faster to be had.
    std::string refuse(const Workload& workload) const override {
        return refuse_unserved(kHost, workload, {.dropout = true, .backward = true});
    }

    // Blocks no taller than the sequences, those whose scratch fits the L2 of a core first.
    std::vector<Config> candidates(const Workload& workload, const DeviceInfo& device) const override {
        if (is_backward(workload)) return host_backward_candidates(workload, device);
        const bool many = has_many_registers(device);
        const auto* begin = many ? std::begin(kWithManyRegisters) : std::begin(kWithFewRegisters);
        const auto* end = many ? std::end(kWithManyRegisters) : std::end(kWithFewRegisters);
        const std::int64_t tallest = std::max<std::int64_t>(64, workload.fields.integer("length"));
        std::vector<Config> configs;
        for (const auto* at = begin; at != end; ++at) {
            if (at->front() <= tallest) configs.push_back(make_config(kHost, kAxes, *at));
        }
        const std::int64_t l2 = device.device_class.shared_per_block;
        const int head_dim = static_cast<int>(workload.fields.integer("head_dim"));
        std::stable_partition(configs.begin(), configs.end(), [&](const Config& config) {
            return l2 <= 0 || layout_of(head_dim, config).bytes() <= l2;
        });
        return configs;
    }

    Resources resources(const Workload& workload, const Config& config) const override {
        const bool backward = is_backward(workload);
        check_config(kHost, backward ? host_backward_axes() : kAxes, config);
        const int head_dim = static_cast<int>(workload.fields.integer("head_dim"));
        Resources resources;
        resources.threads = 1;
        resources.shared_bytes =
            backward ? host_backward_scratch_bytes(head_dim, config) : layout_of(head_dim, config).bytes();
        return resources;
    }

    std::vector<KernelLaunch> launches(const Problem& problem, const Config& config,
                                       const DeviceInfo& device) const override {
        const bool backward = problem.pass == Pass::backward;
        check_config(kHost, backward ? host_backward_axes() : kAxes, config);
        if (backward) return host_backward_launches(problem, config, device);
        const unsigned block_m = static_cast<unsigned>(config.integer("block_m"));
        KernelLaunch launch;
        launch.spec.template_path = "disentangled_attention/forward_host.cpp";
        launch.spec.kernel_name = "disentangled_attention_forward_host";
        launch.spec.parameters = problem_parameters(problem);
        for (const ScheduleAxis& axis : kAxes) launch.spec.parameters.set(axis.name, *config.find(axis.name));
        launch.spec.target = device.target();
        launch.shape.grid[0] = (static_cast<unsigned>(problem.length) + block_m - 1) / block_m;
        launch.shape.grid[1] = static_cast<unsigned>(problem.heads);
        launch.shape.grid[2] = static_cast<unsigned>(problem.batch);
        launch.shape.shared_bytes = static_cast<unsigned>(layout_of(problem.head_dim, config).bytes());
        return {launch};
    }

    std::size_t workspace_bytes(const Problem& problem, const Config& config) const override {
        return problem.pass == Pass::backward ? host_backward_workspace_bytes(problem, config) : 0;
    }

    void fill(const Problem& problem, const Config& config, BackwardParams& params) const override {
        fill_host_backward(problem, config, params);
    }
};

}  // namespace

const Tier& host_tier() {
    static const HostTier tier;
    return tier;
}

}  // namespace turbotune::disentangled_attention
