#include "turbotune/ops/disentangled_attention/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "disentangled_attention/params.h"
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
}

struct PreparedLaunch {
    std::shared_ptr<LoadedKernel> kernel;
    LaunchShape shape;
};

Strides dense_rows(const Problem& problem, const Strides& given) {
    if (!given.defaulted()) return given;
    const std::int64_t row = std::int64_t{problem.heads} * problem.head_dim;
    return {row * problem.length, row, problem.head_dim};
}

ForwardParams constant_parameters(Runtime& runtime, const Problem& problem) {
    ForwardParams params{};
    auto set = [](const Strides& strides, long long& batch, long long& row, long long& head) {
        batch = strides.batch;
        row = strides.row;
        head = strides.head;
    };
    set(dense_rows(problem, problem.q), params.q_batch, params.q_row, params.q_head);
    set(dense_rows(problem, problem.k), params.k_batch, params.k_row, params.k_head);
    set(dense_rows(problem, problem.v), params.v_batch, params.v_row, params.v_head);
    set(dense_rows(problem, problem.out), params.out_batch, params.out_row, params.out_head);
    long long unused = 0;
    set(dense_rows(problem, problem.position_key), unused, params.position_key_row, params.position_key_head);
    set(dense_rows(problem, problem.position_query), unused, params.position_query_row, params.position_query_head);
    params.mask_batch = problem.mask_batch_stride ? problem.mask_batch_stride : problem.length;
    params.tokens = problem.tokens;
    params.batch = problem.batch;
    params.heads = problem.heads;
    params.length = problem.length;
    if (problem.c2p || problem.p2c) {
        const SlotTable table = make_slot_table(problem.position_buckets, problem.max_relative_positions);
        params.slots =
            static_cast<const int*>(runtime.constant(table.slots.data(), table.slots.size() * sizeof(std::int32_t)));
        params.band = table.band;
        params.span = problem.span();
    }
    params.scale_log2 = static_cast<float>(double(problem.scale()) * 1.4426950408889634);
    return params;
}

Selection choose(Runtime& runtime, const Problem& problem, const Config* config, StreamHandle stream) {
    const Workload workload = workload_of(problem);
    if (!config) return runtime.select(operation(), workload, problem.to_fields(), stream);
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
        prepared.push_back({std::move(kernel), launch.shape});
    }
    return prepared;
}

}  // namespace

struct AttentionPlan::State {
    Problem problem;
    Selection selection;
    Device* device = nullptr;
    std::vector<PreparedLaunch> launches;
    ForwardParams params{};
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
    state->params = constant_parameters(runtime, problem);
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
    auto check = [&](const char* name, const void* pointer, std::size_t alignment) {
        if (!pointer) throw InvalidArgument(name, "is null");
        if (reinterpret_cast<std::uintptr_t>(pointer) % alignment)
            throw InvalidArgument(name, fmt::format("must be aligned to {} bytes", alignment));
    };
    if (problem.layout == Layout::packed && problem.tokens == 0) return;  // empty tensors have no address
    const std::size_t alignment = state_->alignment;
    check("q", buffers.q, alignment);
    check("k", buffers.k, alignment);
    check("v", buffers.v, alignment);
    check("out", buffers.out, alignment);
    if (problem.c2p) check("position_key", buffers.position_key, alignment);
    if (problem.p2c) check("position_query", buffers.position_query, alignment);
    if (problem.mask) check("mask", buffers.mask, 1);
    if (problem.layout == Layout::packed) check("cu_seqlens", buffers.cu_seqlens, 4);
    if (problem.layout == Layout::packed && state_->device->info().kind == DeviceKind::cpu)
        check_boundaries(problem, buffers.cu_seqlens);
    if (problem.pass == Pass::training_forward) check("lse", buffers.lse, 4);
    if (state_->workspace_bytes) check("workspace", buffers.workspace, 16);
    ForwardParams params = state_->params;
    params.q = buffers.q;
    params.k = buffers.k;
    params.v = buffers.v;
    params.position_key = buffers.position_key;
    params.position_query = buffers.position_query;
    params.mask = buffers.mask;
    params.cu_seqlens = buffers.cu_seqlens;
    params.out = buffers.out;
    params.lse = buffers.lse;
    params.workspace = buffers.workspace;
    const CurrentContext current(*state_->device);
    void* arguments[] = {&params};
    for (const PreparedLaunch& launch : state_->launches) launch.kernel->launch(launch.shape, arguments, stream);
}

}  // namespace turbotune::disentangled_attention
