// Plain kernels that every other one is compared with; never candidates.
#include <fmt/format.h>

#include "schedule.h"
#include "turbotune/base/error.h"

namespace turbotune::disentangled_attention {

namespace {

constexpr const char* kReference = "reference";
constexpr unsigned kThreads = 128;  // of forward_reference.cu, one block per query row
constexpr int kHostRows = 16;       // query rows of one block of forward_reference.cpp

class ReferenceTier : public Tier {
  public:
    const char* name() const override { return kReference; }

    std::string refuse(const Workload& workload) const override {
        const std::string why = refuse_unserved(kReference, workload, {});
        if (!why.empty()) return why;
        const std::string& precision = workload.fields.text("precision");
        return precision == "half" || precision == "fp32_strict"
                   ? ""
                   : fmt::format("precision {} is not available on the reference tier", precision);
    }

    std::vector<Config> candidates(const Workload&, const DeviceInfo&) const override {
        return {make_config(kReference, {}, {})};
    }

    Resources resources(const Workload&, const Config& config) const override {
        check_config(kReference, {}, config);
        Resources resources;
        resources.threads = static_cast<int>(kThreads);
        resources.registers = registers_per_thread(resources.threads, 1);
        return resources;
    }

    std::vector<KernelLaunch> launches(const Problem& problem, const Config& config,
                                       const DeviceInfo& device) const override {
        check_config(kReference, {}, config);
        const bool cpu = device.kind == DeviceKind::cpu;
        KernelLaunch launch;
        launch.spec.template_path =
            cpu ? "disentangled_attention/forward_reference.cpp" : "disentangled_attention/forward_reference.cu";
        launch.spec.kernel_name = "disentangled_attention_forward_reference";
        launch.spec.parameters = problem_parameters(problem);
        launch.spec.target = device.target();
        launch.shape.grid[0] = blocks_of(problem, cpu ? kHostRows : 1);
        launch.shape.block[0] = kThreads;
        return {launch};
    }
};

}  // namespace

const Tier& reference_tier() {
    static const ReferenceTier tier;
    return tier;
}

}  // namespace turbotune::disentangled_attention
