#include "turbotune/tuner/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>

#include "device_failure.h"
#include "turbotune/base/error.h"
#include "turbotune/base/files.h"

namespace turbotune {

namespace {

constexpr std::int64_t kAlignment = 256;
// Binding costs microseconds for each set and config; beyond this many the tensors are too small to matter.
constexpr int kMostSets = 1024;
constexpr double kMiB = 1024.0 * 1024.0;

std::int64_t padded(std::int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::int64_t bytes_of(const TensorSpec& tensor) {
    std::int64_t elements = 1;
    for (std::int64_t extent : tensor.shape) elements *= extent;
    return elements * static_cast<std::int64_t>(size_of(tensor.dtype));
}

}  // namespace

std::string MemoryPlan::to_string() const {
    std::string text = fmt::format("{} {} of {:.1f} MiB: {:.1f} MiB rotated against {:.1f} MiB of L2", sets,
                                   sets == 1 ? "copy" : "copies", double(set_bytes) / kMiB,
                                   double(rotated_bytes()) / kMiB, double(l2_bytes) / kMiB);
    if (set_bytes > limit_bytes)
        text +=
            fmt::format(" (more than the {:.1f} MiB that memory is limited to, but less than one copy cannot be timed)",
                        double(limit_bytes) / kMiB);
    else if (sets < wanted_sets)
        text += fmt::format(" ({} wanted; memory is limited to {:.1f} MiB)", wanted_sets, double(limit_bytes) / kMiB);
    return text;
}

MemoryPlan plan_memory(const TestCase& test_case, const DeviceInfo& device, std::int64_t limit_bytes) {
    MemoryPlan plan;
    for (const auto& [name, tensor] : test_case.inputs) plan.set_bytes += padded(std::int64_t(tensor.data.size()));
    for (const TensorSpec& tensor : test_case.outputs) plan.set_bytes += padded(bytes_of(tensor));
    plan.set_bytes = std::max(plan.set_bytes, kAlignment);
    plan.l2_bytes = device.device_class.l2_bytes;
    plan.limit_bytes = std::max<std::int64_t>(limit_bytes, 0);
    plan.wanted_sets = int(std::min<std::int64_t>(2 * plan.l2_bytes / plan.set_bytes + 1, kMostSets));
    plan.sets = int(std::clamp<std::int64_t>(limit_bytes / plan.set_bytes, 1, plan.wanted_sets));
    return plan;
}

std::optional<std::int64_t> memory_limit_setting() {
    const std::optional<std::string> text = environment("TURBOTUNE_MEMORY_LIMIT");
    if (!text) return std::nullopt;
    const char* const end = text->data() + text->size();
    std::int64_t bytes = 0;
    const auto [stop, error] = std::from_chars(text->data(), end, bytes);
    if (error != std::errc() || stop != end || bytes <= 0)
        throw InvalidArgument("TURBOTUNE_MEMORY_LIMIT", fmt::format("\"{}\" is not a number of bytes", *text));
    return bytes;
}

std::int64_t memory_limit(Device& device, std::int64_t taken) {
    const std::int64_t free = device.free_memory() / 10 * 9;
    const std::optional<std::int64_t> setting = memory_limit_setting();
    return setting ? std::min(free, std::max<std::int64_t>(0, *setting - taken)) : free;
}

namespace {

// Idle chips lower their clocks and take tens of milliseconds of work to raise them again.
class WarmUp {
  public:
    explicit WarmUp(const Device& device) : remaining_ms_(device.info().kind == DeviceKind::cuda ? 40 : 4) {}
    bool needed() const { return remaining_ms_ > 0; }
    void spent(double ms) { remaining_ms_ -= ms; }

  private:
    double remaining_ms_;
};

// The stream is empty after a sample was read, and the next launch would wait for the host inside the timed span. One
// launch ahead of the span keeps the device busy meanwhile; it costs too much for executions that are long, where the
// wait does not show.
bool wants_lead_in(double execution_ms) {
    return execution_ms < 1.0;
}

struct Bound {
    std::unique_ptr<Plan> plan;
    std::vector<std::unique_ptr<Execution>> executions;  // one per buffer set
    int launches = 1;
    double execution_ms = 0;
};

}  // namespace

struct TimingBench::State {
    Runtime& runtime;
    Device& device;
    const Operation& operation;
    Fields problem;
    MemoryPlan memory;
    DeviceBuffer block;  // every set, one after the other
    std::vector<Bindings> sets;
    DeviceBuffer workspace;  // shared: only one config runs at a time
    StreamHandle stream = nullptr;
    std::unique_ptr<DeviceTimer> timer;
    WarmUp warm_up;
    std::map<std::string, Bound> bound;
    std::size_t next_set = 0;

    State(Runtime& r, const Operation& o) : runtime(r), device(r.device()), operation(o), warm_up(device) {}
    ~State() {
        bound.clear();
        timer.reset();
        if (stream) device.destroy_stream(stream);
    }

    void allocate();
    void fill(const TestCase& test_case);
    void bind(Bound& config);
    void execute(Bound& config) { config.executions[next_set++ % config.executions.size()]->execute(stream); }
    double timed(Bound& config, int launches);
    Bound& find(const Config& config);
};

void TimingBench::State::allocate() {
    for (;;) {
        try {
            block = DeviceBuffer(device, std::size_t(memory.rotated_bytes()));
            return;
        } catch (const DeviceError& error) {
            if (memory.sets == 1 || !is_out_of_memory(error)) throw;
            memory.sets = std::max(1, memory.sets / 2);
        }
    }
}

void TimingBench::State::fill(const TestCase& test_case) {
    for (int set = 0; set < memory.sets; ++set) {
        char* place = static_cast<char*>(block.get()) + set * memory.set_bytes;
        Bindings bindings;
        for (const auto& [name, tensor] : test_case.inputs) {
            bindings[name] = place;
            if (set == 0)
                device.copy_to_device(place, tensor.data.data(), tensor.data.size());
            else
                device.copy_async(place, sets[0][name], tensor.data.size(), stream);
            place += padded(std::int64_t(tensor.data.size()));
        }
        for (const TensorSpec& tensor : test_case.outputs) {
            bindings[tensor.name] = place;
            place += padded(bytes_of(tensor));
        }
        sets.push_back(std::move(bindings));
    }
    device.synchronize(stream);
}

// Growing the workspace moves it, which unbinds every config; they are bound again when next used.
void TimingBench::State::bind(Bound& config) {
    std::size_t needed = config.plan->workspace_bytes();
    if (needed > workspace.bytes()) {
        for (auto& [name, other] : bound) other.executions.clear();
        workspace = DeviceBuffer();
        workspace = DeviceBuffer(device, needed);
    }
    config.executions.clear();
    for (const Bindings& set : sets) config.executions.push_back(config.plan->bind(set, workspace.get()));
}

double TimingBench::State::timed(Bound& config, int launches) {
    timer->start(stream);
    for (int i = 0; i < launches; ++i) execute(config);
    timer->stop(stream);
    double ms = timer->elapsed_ms();
    if (warm_up.needed()) warm_up.spent(ms);
    return ms / launches;
}

Bound& TimingBench::State::find(const Config& config) {
    auto found = bound.find(config.to_string());
    if (found == bound.end()) throw InvalidArgument("config", config.to_string() + " was not added to the bench");
    if (found->second.executions.empty()) bind(found->second);
    return found->second;
}

TimingBench::TimingBench(Runtime& runtime, const Operation& operation, const TestCase& test_case,
                         std::int64_t limit_bytes)
    : state_(std::make_unique<State>(runtime, operation)) {
    State& s = *state_;
    s.device.make_current();
    s.problem = test_case.problem;
    TestCase produced;
    if (!test_case.producer.empty()) {
        produced = test_case;
        produce_inputs(runtime, operation, produced);
    }
    const TestCase& whole = test_case.producer.empty() ? test_case : produced;
    s.memory = plan_memory(whole, s.device.info(), limit_bytes);
    s.stream = s.device.create_stream();
    s.timer = s.device.create_timer();
    s.allocate();
    s.fill(whole);
}

TimingBench::~TimingBench() = default;

const MemoryPlan& TimingBench::memory() const {
    return state_->memory;
}

void TimingBench::add(const Config& config) {
    State& s = *state_;
    if (s.bound.count(config.to_string())) return;
    Bound fresh;
    fresh.plan = s.operation.plan(s.runtime, s.problem, &config);
    s.bind(fresh);
    s.execute(fresh);  // loads code and touches memory for the first time
    s.device.synchronize(s.stream);
    fresh.execution_ms = s.timed(fresh, 1);
    while (s.warm_up.needed()) fresh.execution_ms = s.timed(fresh, launches_per_sample(fresh.execution_ms));
    // A single short launch is mostly the timer's own cost: measure the launch again in batches.
    for (int i = 0; i < 3 && fresh.execution_ms < 0.2; ++i)
        fresh.execution_ms = s.timed(fresh, launches_per_sample(fresh.execution_ms));
    fresh.launches = launches_per_sample(fresh.execution_ms);
    s.bound[config.to_string()] = std::move(fresh);
}

const Plan& TimingBench::plan(const Config& config) const {
    return *state_->find(config).plan;
}

std::optional<double> TimingBench::host_us(const Config& config) {
    State& s = *state_;
    if (s.device.info().kind == DeviceKind::cpu) return std::nullopt;
    constexpr int kBursts = 15, kCalls = 20;  // a queue takes about a thousand launches before it makes the host wait
    Bound& bound = s.find(config);
    std::vector<double> bursts;
    for (int burst = 0; burst < kBursts; ++burst) {
        s.device.synchronize(s.stream);
        const auto start = std::chrono::steady_clock::now();
        for (int call = 0; call < kCalls; ++call) s.execute(bound);
        const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
        bursts.push_back(took.count() / kCalls);
    }
    s.device.synchronize(s.stream);
    return median_of(bursts);
}

double TimingBench::execution_ms(const Config& config) const {
    return state_->find(config).execution_ms;
}

double TimingBench::sample(const Config& config) {
    State& s = *state_;
    Bound& bound = s.find(config);
    if (wants_lead_in(bound.execution_ms)) s.execute(bound);
    return s.timed(bound, bound.launches);
}

std::vector<std::vector<double>> TimingBench::round(const std::vector<Config>& configs, int samples,
                                                    const std::function<void(int)>& before) {
    std::vector<std::vector<double>> result(configs.size());
    for (std::size_t i = 0; i < configs.size(); ++i) {
        if (before) before(int(i));
        add(configs[i]);
    }
    for (int turn = 0; turn < samples; ++turn) {
        for (std::size_t i = 0; i < configs.size(); ++i) {
            if (before) before(int(i));
            result[i].push_back(sample(configs[i]));
        }
    }
    for (std::size_t i = 0; i < configs.size(); ++i) {
        if (before) before(int(i));
        retake_outliers(result[i], [&] { return sample(configs[i]); });
    }
    return result;
}

}  // namespace turbotune
