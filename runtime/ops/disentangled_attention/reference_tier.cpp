// Plain kernels that every other one is compared with; never candidates.
#include <fmt/format.h>

#include <algorithm>

#include "disentangled_attention/params.h"
#include "host_reference.h"
#include "schedule.h"
#include "turbotune/base/error.h"

namespace turbotune::disentangled_attention {

namespace {

constexpr const char* kReference = "reference";
constexpr unsigned kThreads = 128;  // of forward_reference.cu, one block per query row

// backward_reference.cu: tiles of 16 x 16 pairs; a block that sums position gradients takes several tiles of query
// rows, as its table is large.
constexpr unsigned kBackwardThreads = 256;
constexpr int kBackwardRows = 16;
constexpr std::int64_t kTables = 384;

std::int64_t parts_of(const Problem& problem) {
    const std::int64_t tiles = (problem.length + kBackwardRows - 1) / kBackwardRows;
    return std::clamp<std::int64_t>(kTables / (std::int64_t{problem.batch} * problem.heads), 1, tiles);
}

bool has_position_terms(const Problem& problem) {
    return problem.c2p || problem.p2c;
}

std::vector<KernelLaunch> backward_launches(const Problem& problem, const DeviceInfo& device) {
    KernelLaunch launch;
    launch.spec.parameters = problem_parameters(problem);
    launch.spec.target = device.target();
    launch.spec.template_path = "disentangled_attention/backward_reference.cu";
    launch.shape.block[0] = kBackwardThreads;
    std::vector<KernelLaunch> launches;
    auto add = [&](const char* kernel, std::int64_t blocks) {
        if (blocks > INT32_MAX) throw Unsupported(fmt::format("{} needs {} blocks", kernel, blocks));
        launch.spec.kernel_name = kernel;
        launch.shape.grid[0] = static_cast<unsigned>(blocks);
        launches.push_back(launch);
    };
    add("disentangled_attention_backward_reference_rows",
        std::int64_t{problem.batch} * problem.heads * parts_of(problem));
    add("disentangled_attention_backward_reference_columns", blocks_of(problem, kBackwardRows));
    if (has_position_terms(problem)) {
        const std::int64_t elements = std::int64_t{4} * problem.heads * problem.span() * problem.head_dim;
        add("disentangled_attention_backward_reference_tables", (elements + kBackwardThreads - 1) / kBackwardThreads);
    }
    return launches;
}

class ReferenceTier : public Tier {
  public:
    const char* name() const override { return kReference; }

    std::string refuse(const Workload& workload) const override {
        return refuse_unserved(kReference, workload, {.dropout = true, .backward = true});
    }

    std::vector<Config> candidates(const Workload&, const DeviceInfo&) const override {
        return {make_config(kReference, {}, {})};
    }

    Resources resources(const Workload& workload, const Config& config) const override {
        check_config(kReference, {}, config);
        Resources resources;
        resources.threads = static_cast<int>(is_backward(workload) ? kBackwardThreads : kThreads);
        resources.registers = registers_per_thread(resources.threads, 1);
        return resources;
    }

    std::vector<KernelLaunch> launches(const Problem& problem, const Config& config,
                                       const DeviceInfo& device) const override {
        check_config(kReference, {}, config);
        if (device.kind == DeviceKind::cpu) return {host_reference_launch(problem, device)};
        if (problem.pass == Pass::backward) return backward_launches(problem, device);
        KernelLaunch launch;
        launch.spec.template_path = "disentangled_attention/forward_reference.cu";
        launch.spec.kernel_name = "disentangled_attention_forward_reference";
        launch.spec.parameters = problem_parameters(problem);
        launch.spec.target = device.target();
        launch.shape.grid[0] = blocks_of(problem, 1);
        launch.shape.block[0] = kThreads;
        return {launch};
    }

    // Enough for either device. On a GPU a table of float64 [PK | PQ][2 * span][head_dim] for each block that owns
    // query rows.
    std::size_t workspace_bytes(const Problem& problem, const Config&) const override {
        if (problem.pass != Pass::backward) return 0;
        const std::int64_t blocks =
            has_position_terms(problem) ? std::int64_t{problem.batch} * problem.heads * parts_of(problem) : 0;
        const auto tables = static_cast<std::size_t>(blocks * 4 * problem.span() * problem.head_dim) * sizeof(double);
        return std::max(tables, host_reference_workspace_bytes(problem));
    }

    void fill(const Problem& problem, const Config&, BackwardParams& params) const override {
        params.regions[1] = parts_of(problem);
    }
};

}  // namespace

const Tier& reference_tier() {
    static const ReferenceTier tier;
    return tier;
}

}  // namespace turbotune::disentangled_attention
