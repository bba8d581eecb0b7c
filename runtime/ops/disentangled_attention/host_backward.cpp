#include "host_backward.h"

#include <algorithm>

#include "disentangled_attention/host_backward_layout.h"
#include "disentangled_attention/params.h"
#include "host_registers.h"

namespace turbotune::disentangled_attention {

namespace {

constexpr const char* kHost = "host";
constexpr std::int64_t kAlignment = 256;  // bytes, of a region of the workspace

// block_m, block_n, micro_rows, micro_vectors.
const std::vector<int> kWithManyRegisters[] = {
    // 32 vector registers
    {128, 64, 8, 2}, {64, 64, 8, 2}, {128, 32, 8, 2}, {64, 32, 8, 2}, {128, 128, 8, 2}, {192, 64, 8, 2}, {32, 32, 8, 2},
};
const std::vector<int> kWithFewRegisters[] = {
    // 16
    {128, 64, 4, 2}, {64, 64, 4, 2}, {128, 32, 4, 2}, {64, 32, 4, 2}, {128, 64, 4, 3}, {32, 32, 4, 2},
};

// Untuned sums must not depend on the batch or on the machine, so neither do the parts of the first guess. Longer
// sequences come in smaller batches: without parts few threads would have work. Each doubling costs about 2 %.
int key_parts_of(std::int64_t length) {
    return length <= 512 ? 1 : length <= 2048 ? 2 : 4;
}

int integer(const Config& config, const char* name) {
    return static_cast<int>(config.integer(name));
}

HostBackwardDivision division_of(const Problem& problem, const Config& config) {
    return {integer(config, "key_parts"), problem.batch};
}

struct Regions {
    std::int64_t begin[4] = {};
    std::int64_t bytes = 0;  // of all
};

Regions regions_of(const Problem& problem, const Config& config) {
    const HostBackwardDivision division = division_of(problem, config);
    const std::int64_t rows =
        (problem.layout == Layout::packed ? problem.tokens : std::int64_t{problem.batch} * problem.length) +
        std::int64_t{HostBackwardDivision::padding_rows} * problem.batch;
    const std::int64_t part_rows = rows * problem.heads * division.key_parts;
    const std::int64_t table = std::int64_t{division.units()} * problem.heads * 2 * problem.span() * problem.head_dim;
    Regions regions;
    auto add = [&](int region, std::int64_t floats) {
        regions.begin[region] = regions.bytes;
        regions.bytes += (4 * floats + kAlignment - 1) / kAlignment * kAlignment;
    };
    add(HostBackwardRegions::delta, part_rows);
    add(HostBackwardRegions::dq, part_rows * problem.head_dim);
    add(HostBackwardRegions::d_position_key, problem.c2p ? table : 0);
    add(HostBackwardRegions::d_position_query, problem.p2c ? table : 0);
    return regions;
}

KernelLaunch gradients_launch(const Problem& problem, const Config& config, const DeviceInfo& device) {
    KernelLaunch launch;
    launch.spec.template_path = "disentangled_attention/backward_host.cpp";
    launch.spec.kernel_name = "disentangled_attention_backward_host";
    launch.spec.parameters = problem_parameters(problem);
    for (const ScheduleAxis& axis : host_backward_axes())
        launch.spec.parameters.set(axis.name, *config.find(axis.name));
    launch.spec.target = device.target();
    launch.shape.grid[0] = static_cast<unsigned>(division_of(problem, config).units());
    launch.shape.grid[1] = static_cast<unsigned>(problem.heads);
    launch.shape.shared_bytes = static_cast<unsigned>(host_backward_scratch_bytes(problem.head_dim, config));
    return launch;
}

KernelLaunch finish_launch(const Problem& problem, const Config& config, const DeviceInfo& device) {
    constexpr int kRows = HostBackwardLayout::chunk;  // of a block
    KernelLaunch launch;
    launch.spec.template_path = "disentangled_attention/backward_host_finish.cpp";
    launch.spec.kernel_name = "disentangled_attention_backward_host_finish";
    const Fields all = problem_parameters(problem);
    for (const char* name : {"head_dim", "dtype", "c2p", "p2c", "mask", "packed"})
        launch.spec.parameters.set(name, *all.find(name));
    for (const char* name : {"block_m", "key_parts"}) launch.spec.parameters.set(name, *config.find(name));
    launch.spec.target = device.target();
    const int tables = int{problem.c2p} + int{problem.p2c};
    const int slot_blocks = (2 * problem.span() + kRows - 1) / kRows;
    const int row_blocks = integer(config, "key_parts") > 1 ? (problem.length + kRows - 1) / kRows : 0;
    launch.shape.grid[0] = static_cast<unsigned>(tables * slot_blocks) +
                           static_cast<unsigned>(row_blocks) * static_cast<unsigned>(problem.batch);
    launch.shape.grid[1] = static_cast<unsigned>(problem.heads);
    return launch;
}

}  // namespace

const std::vector<ScheduleAxis>& host_backward_axes() {
    static const std::vector<ScheduleAxis> axes = {{"block_m", {32, 64, 128, 192}},
                                                   {"block_n", {32, 64, 128}},
                                                   {"micro_rows", {4, 8}},
                                                   {"micro_vectors", {2, 3}},
                                                   {"key_parts", {1, 2, 4}}};
    return axes;
}

// As forward: blocks no taller than the sequences, those whose scratch fits the L2 of a core first. Of the best block
// also more and fewer parts, as suits the machine's threads.
std::vector<Config> host_backward_candidates(const Workload& workload, const DeviceInfo& device) {
    const bool many = has_many_registers(device);
    const auto* begin = many ? std::begin(kWithManyRegisters) : std::begin(kWithFewRegisters);
    const auto* end = many ? std::end(kWithManyRegisters) : std::end(kWithFewRegisters);
    const std::int64_t length = workload.fields.integer("length");
    const int parts = key_parts_of(length);
    std::vector<Config> configs;
    auto add = [&](std::vector<int> values, int key_parts) {
        if (values.front() > std::max<std::int64_t>(64, length)) return;
        values.push_back(key_parts);
        configs.push_back(make_config(kHost, host_backward_axes(), values));
    };
    for (const auto* at = begin; at != end; ++at) {
        add(*at, parts);
        if (at != begin) continue;
        for (int other : {1, 2, 4})
            if (other != parts && std::int64_t{other} * at->front() <= length) add(*at, other);
    }
    const std::int64_t l2 = device.device_class.shared_per_block;
    const int head_dim = static_cast<int>(workload.fields.integer("head_dim"));
    std::stable_partition(configs.begin(), configs.end(), [&](const Config& config) {
        return l2 <= 0 || host_backward_scratch_bytes(head_dim, config) <= l2;
    });
    return configs;
}

std::int64_t host_backward_scratch_bytes(int head_dim, const Config& config) {
    return HostBackwardLayout{head_dim, integer(config, "block_m"), integer(config, "block_n")}.bytes();
}

std::vector<KernelLaunch> host_backward_launches(const Problem& problem, const Config& config,
                                                 const DeviceInfo& device) {
    std::vector<KernelLaunch> launches = {gradients_launch(problem, config, device)};
    KernelLaunch finish = finish_launch(problem, config, device);
    if (finish.shape.grid[0] > 0) launches.push_back(std::move(finish));
    return launches;
}

std::size_t host_backward_workspace_bytes(const Problem& problem, const Config& config) {
    return static_cast<std::size_t>(regions_of(problem, config).bytes);
}

void fill_host_backward(const Problem& problem, const Config& config, BackwardParams& params) {
    const Regions regions = regions_of(problem, config);
    std::copy(std::begin(regions.begin), std::end(regions.begin), params.regions);
}

}  // namespace turbotune::disentangled_attention
