#include "turbotune/ops/disentangled_attention/attention.h"

#include <fmt/format.h>

#include "arguments.h"
#include "fitting.h"
#include "tensor_maps.h"
#include "tier.h"
#include "turbotune/base/error.h"
#include "turbotune/base/log.h"
#include "turbotune/device/cuda_driver.h"
#include "workload.h"

namespace turbotune::disentangled_attention {

namespace {

// Makes the device current and puts back what was: a caller's other device stays its current one.
class CurrentContext {
  public:
    explicit CurrentContext(Device& device)
        : driver_(device.info().kind == DeviceKind::cuda ? cuda::driver() : nullptr) {
        if (driver_) driver_->CtxGetCurrent(&before_);
        device.make_current();
    }
    ~CurrentContext() {
        if (!before_) return;  // none before: the device's stays
        cuda::Context now = nullptr;
        if (driver_->CtxGetCurrent(&now) == 0 && now != before_) driver_->CtxSetCurrent(before_);
    }
    CurrentContext(const CurrentContext&) = delete;
    CurrentContext& operator=(const CurrentContext&) = delete;

  private:
    const cuda::Driver* driver_;
    cuda::Context before_ = nullptr;
};

// On the CPU device the boundaries can be read, and wild ones would lead outside of the tensors.
void check_boundaries(const Problem& problem, const std::int32_t* bounds) {
    for (int b = 0; b < problem.batch; ++b) {
        const std::int64_t first = bounds[b], last = bounds[b + 1];
        if (first < 0 || last < first || last > problem.tokens || last - first > problem.length)
            throw InvalidArgument(
                "cu_seqlens", fmt::format("sequence {} has rows {} to {}, of {} tokens with at most {} in a sequence",
                                          b, first, last, problem.tokens, problem.length));
    }
    if (bounds[0] != 0 || bounds[problem.batch] != problem.tokens)
        throw InvalidArgument("cu_seqlens", fmt::format("must begin with 0 and end with {} tokens, but covers {} to {}",
                                                        problem.tokens, bounds[0], bounds[problem.batch]));
}

struct PreparedLaunch {
    std::shared_ptr<LoadedKernel> kernel;
    LaunchShape shape;
    bool tensor_maps;
};

Selection choose(Runtime& runtime, const Problem& problem, const Config* config, StreamHandle stream) {
    const Workload workload = workload_of(problem);
    if (!config) {
        Selection selection = runtime.select(operation(), workload, problem.to_fields(), stream);
        if (selection.origin == "fixed" || selection.origin == "autotune") return selection;  // told, or measured
        const Fitted fitted = fit(problem, selection.matched, selection.config, runtime.device().info());
        if (!fitted.why.empty()) {
            selection.note += fmt::format("{}in place of {}, {}", selection.note.empty() ? "" : "; ",
                                          selection.config.to_string(), fitted.why);
            selection.config = fitted.config;
        }
        return selection;
    }
    const Verdict verdict = operation().filter(workload, *config, runtime.device().info());
    if (!verdict.fits) throw Unsupported(fmt::format("config {}: {}", config->to_string(), verdict.reason));
    Selection selection;
    selection.config = *config;
    selection.origin = "fixed";
    selection.matched = workload;
    return selection;
}

std::vector<PreparedLaunch> prepare(Runtime& runtime, const Problem& problem, const Config& config) {
    Device& device = runtime.device();
    std::vector<PreparedLaunch> prepared;
    for (KernelLaunch& launch : find_tier(config.text("tier")).launches(problem, config, device.info())) {
        std::shared_ptr<LoadedKernel> kernel = runtime.kernels().get(device, launch.spec);
        kernel->allow_shared_memory(launch.shape.shared_bytes);
        prepared.push_back({std::move(kernel), launch.shape, launch.tensor_maps});
    }
    return prepared;
}

}  // namespace

struct AttentionPlan::State {
    Problem problem;
    Selection selection;
    Device* device = nullptr;
    std::vector<PreparedLaunch> launches;
    ForwardParams forward{};
    BackwardParams backward{};
    bool tensor_maps = false;  // some launch takes them
    ForwardMaps maps{};        // without addresses
    std::size_t workspace_bytes = 0;
    std::size_t alignment = 1;  // bytes, of every buffer of elements
};

AttentionPlan::AttentionPlan(std::unique_ptr<State> state) : state_(std::move(state)) {}
AttentionPlan::AttentionPlan(AttentionPlan&&) noexcept = default;
AttentionPlan& AttentionPlan::operator=(AttentionPlan&&) noexcept = default;
AttentionPlan::~AttentionPlan() = default;

AttentionPlan AttentionPlan::create(Runtime& runtime, const Problem& problem, const Config* config,
                                    StreamHandle stream) {
    problem.validate();
    Device& device = runtime.device();
    const std::string why = operation().unavailable(workload_of(problem), device.info());
    if (!why.empty()) throw Unsupported(why);
    const CurrentContext current(device);

    auto state = std::make_unique<State>();
    state->problem = problem;
    state->selection = choose(runtime, problem, config, stream);
    state->device = &device;
    try {
        state->launches = prepare(runtime, problem, state->selection.config);
    } catch (const CompileError& error) {
        // Another compiler build may refuse what a profile's compiler took: the heuristic still runs.
        const bool may_fall_back =
            !config && state->selection.origin == "profile" && state->selection.grade != Grade::exact;
        if (!may_fall_back) throw;
        const Workload workload = workload_of(problem);
        log(LogLevel::warn, fmt::format("{}: the profile's config does not compile here ({}); using the heuristic",
                                        workload.to_string(), error.what()));
        state->selection = {};
        state->selection.config = operation().heuristic(workload, device.info());
        state->selection.origin = "heuristic";
        state->selection.matched = workload;
        state->selection.note = error.what();
        state->launches = prepare(runtime, problem, state->selection.config);
    }
    const Tier& tier = find_tier(state->selection.config.text("tier"));
    if (problem.pass == Pass::backward) {
        state->backward = backward_arguments(runtime, problem);
        tier.fill(problem, state->selection.config, state->backward);
    } else {
        state->forward = forward_arguments(runtime, problem);
    }
    for (const PreparedLaunch& launch : state->launches) state->tensor_maps |= launch.tensor_maps;
    if (state->tensor_maps) state->maps = encode_tensor_maps(problem, state->forward);
    state->workspace_bytes = tier.workspace_bytes(problem, state->selection.config);
    // GPU kernels load rows 16 bytes at a time.
    state->alignment = device.info().kind == DeviceKind::cuda ? 16 : size_of(problem.dtype);
    return AttentionPlan(std::move(state));
}

const Problem& AttentionPlan::problem() const {
    return state_->problem;
}
const Selection& AttentionPlan::selection() const {
    return state_->selection;
}
std::size_t AttentionPlan::workspace_bytes() const {
    return state_->workspace_bytes;
}

std::vector<KernelMetadata> AttentionPlan::kernels() const {
    std::vector<KernelMetadata> all;
    for (const PreparedLaunch& launch : state_->launches) all.push_back(launch.kernel->metadata());
    return all;
}

void AttentionPlan::execute(const Buffers& buffers, StreamHandle stream) const {
    const Problem& problem = state_->problem;
    const bool packed = problem.layout == Layout::packed;
    const bool backward = problem.pass == Pass::backward;
    check_buffers(problem, buffers, state_->alignment, state_->workspace_bytes);
    if (packed && state_->device->info().kind == DeviceKind::cpu) check_boundaries(problem, buffers.cu_seqlens);
    if (packed && problem.tokens == 0 && !backward) return;
    const CurrentContext current(*state_->device);
    // A kernel takes as many of the arguments as it has parameters.
    auto launch_all = [&](void** arguments) {
        for (const PreparedLaunch& launch : state_->launches) launch.kernel->launch(launch.shape, arguments, stream);
    };
    if (backward) {
        BackwardParams params = state_->backward;
        set_buffers(params, problem, buffers);
        void* arguments[] = {&params};
        launch_all(arguments);
    } else {
        ForwardParams params = state_->forward;
        set_buffers(params, problem, buffers);
        ForwardMaps maps = state_->maps;
        if (state_->tensor_maps) set_addresses(maps, params);
        void* arguments[] = {&params, &maps};
        launch_all(arguments);
    }
}

}  // namespace turbotune::disentangled_attention
