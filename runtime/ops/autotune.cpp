#include "autotune.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <new>
#include <numeric>

#include "turbotune/base/error.h"
#include "turbotune/base/log.h"

namespace turbotune {

namespace {

constexpr double kSampleMs = 0.2;  // shorter ones drown in the timer's own noise
constexpr int kRounds = 20;
constexpr int kMostRepeats = 1000;
constexpr double kNearTie = 1.02;        // within 2 % the earlier candidate wins, so that a second run agrees
constexpr unsigned char kPoison = 0xff;  // all bytes 0xff: NaN in every float type

class Stopwatch {
  public:
    double ms() const {
        return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin_).count();
    }

  private:
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

class OwnStream {
  public:
    explicit OwnStream(Device& device) : device_(device), stream_(device.create_stream()) {}
    ~OwnStream() { device_.destroy_stream(stream_); }
    OwnStream(const OwnStream&) = delete;
    OwnStream& operator=(const OwnStream&) = delete;
    StreamHandle get() const { return stream_; }

  private:
    Device& device_;
    StreamHandle stream_;
};

template <typename Word>
bool all_finite(const std::vector<std::byte>& data, Word exponent) {
    for (std::size_t at = 0; at + sizeof(Word) <= data.size(); at += sizeof(Word)) {
        Word word;
        std::memcpy(&word, data.data() + at, sizeof word);
        if ((word & exponent) == exponent) return false;
    }
    return true;
}

bool all_finite(DType dtype, const std::vector<std::byte>& data) {
    switch (dtype) {
        case DType::f64:
            return all_finite<std::uint64_t>(data, 0x7ff0000000000000u);
        case DType::f32:
            return all_finite<std::uint32_t>(data, 0x7f800000u);
        case DType::f16:
            return all_finite<std::uint16_t>(data, 0x7c00u);
        case DType::bf16:
            return all_finite<std::uint16_t>(data, 0x7f80u);
        case DType::i32:
        case DType::u8:
            return true;
    }
    return true;
}

// The timing case's tensors in device memory.
class TimingData {
  public:
    TimingData(Device& device, const TestCase& timing) : device_(device), problem_(timing.problem) {
        for (const auto& [name, tensor] : timing.inputs) {
            const DevicePointer pointer = add(name, tensor.data.size());
            device.copy_to_device(pointer, tensor.data.data(), tensor.data.size());
        }
        for (const TensorSpec& spec : timing.outputs) {
            const std::int64_t elements =
                std::accumulate(spec.shape.begin(), spec.shape.end(), std::int64_t{1}, std::multiplies<>());
            const std::size_t bytes = static_cast<std::size_t>(elements) * size_of(spec.dtype);
            outputs_.push_back({spec.name, spec.dtype, add(spec.name, bytes), bytes});
        }
    }

    const Fields& problem() const { return problem_; }
    const Bindings& bindings() const { return bindings_; }

    void poison_outputs() {
        for (const Output& output : outputs_) device_.fill(output.pointer, kPoison, output.bytes);
    }
    // The first output with a value that is not finite; empty when there is none.
    std::string not_finite() {
        for (const Output& output : outputs_) {
            std::vector<std::byte> data(output.bytes);
            device_.copy_to_host(data.data(), output.pointer, output.bytes);
            if (!all_finite(output.dtype, data)) return output.name;
        }
        return {};
    }

  private:
    struct Output {
        std::string name;
        DType dtype;
        DevicePointer pointer;
        std::size_t bytes;
    };

    DevicePointer add(const std::string& name, std::size_t bytes) {
        buffers_.emplace_back(device_, bytes);
        return bindings_[name] = buffers_.back().get();
    }

    Device& device_;
    Fields problem_;
    std::vector<DeviceBuffer> buffers_;
    Bindings bindings_;
    std::vector<Output> outputs_;
};

struct Rival {
    Config config;
    std::unique_ptr<Plan> plan;
    DeviceBuffer workspace;
    std::unique_ptr<Execution> execution;
    double first_ms = 0;          // of the very first execution
    std::vector<double> samples;  // ms of one execution
    bool failed = false;

    double ms() const {
        if (samples.empty()) return first_ms;
        std::vector<double> sorted = samples;
        std::nth_element(sorted.begin(), sorted.begin() + sorted.size() / 2, sorted.end());
        return sorted[sorted.size() / 2];
    }
};

void warn_skipped(const Operation& operation, const Config& config, const std::string& why) {
    log(LogLevel::warn,
        fmt::format("autotune {}: candidate {} is skipped: {}", operation.name(), config.to_string(), why));
}

class Contest {
  public:
    Contest(Runtime& runtime, const Operation& operation, TimingData& data)
        : runtime_(runtime),
          operation_(operation),
          data_(data),
          stream_(runtime.device()),
          timer_(runtime.device().create_timer()) {}

    // Plans a config, runs it once and looks at what it wrote.
    void enter(const Config& config) {
        Rival rival;
        rival.config = config;
        try {
            rival.plan = operation_.plan(runtime_, data_.problem(), &config);
            if (const std::size_t bytes = rival.plan->workspace_bytes())
                rival.workspace = DeviceBuffer(runtime_.device(), bytes);
            rival.execution = rival.plan->bind(data_.bindings(), rival.workspace.get());
            data_.poison_outputs();
            rival.first_ms = run(rival, 1);
            if (const std::string output = data_.not_finite(); !output.empty()) {
                warn_skipped(operation_, config, fmt::format("{} is not finite or not fully written", output));
                return;
            }
        } catch (const Error& error) {
            warn_skipped(operation_, config, error.what());
            return;
        }
        rivals_.push_back(std::move(rival));
    }

    // Rounds over all rivals, so that a change of clock or load meets each alike.
    void measure(const Stopwatch& watch, double budget_ms) {
        for (int round = 0; round < kRounds; ++round) {
            for (Rival& rival : rivals_) {
                if (watch.ms() >= budget_ms) return;
                if (!rival.failed) sample(rival);
            }
        }
    }

    // Best first: near ties by the order of entering.
    std::vector<const Rival*> ranking() const {
        std::vector<const Rival*> order;
        for (const Rival& rival : rivals_)
            if (!rival.failed) order.push_back(&rival);
        std::stable_sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->ms() < b->ms(); });
        if (order.empty()) return order;
        const double bound = order.front()->ms() * kNearTie;
        const auto ties_end =
            std::find_if(order.begin(), order.end(), [&](auto* rival) { return rival->ms() > bound; });
        std::sort(order.begin(), ties_end);  // addresses within rivals_: the order of entering
        return order;
    }

    bool empty() const { return rivals_.empty(); }
    std::size_t size() const { return rivals_.size(); }

  private:
    double run(Rival& rival, int repeats) {
        timer_->start(stream_.get());
        for (int i = 0; i < repeats; ++i) rival.execution->execute(stream_.get());
        timer_->stop(stream_.get());
        runtime_.device().synchronize(stream_.get());
        return timer_->elapsed_ms() / repeats;
    }

    void sample(Rival& rival) {
        const double last = rival.samples.empty() ? rival.first_ms : rival.samples.back();
        const int repeats = last > 0
                                ? static_cast<int>(std::clamp(std::ceil(kSampleMs / last), 1.0, double{kMostRepeats}))
                                : kMostRepeats;
        try {
            rival.samples.push_back(run(rival, repeats));
        } catch (const DeviceError& error) {
            rival.failed = true;
            warn_skipped(operation_, rival.config, error.what());
        }
    }

    Runtime& runtime_;
    const Operation& operation_;
    TimingData& data_;
    OwnStream stream_;
    std::unique_ptr<DeviceTimer> timer_;
    std::vector<Rival> rivals_;
};

std::vector<Config> entrants(const Operation& operation, const Workload& workload, const DeviceInfo& info,
                             const Config& heuristic, int count) {
    std::vector<Config> configs = {heuristic};
    for (const Config& config : operation.candidates(workload, info)) {
        if (static_cast<int>(configs.size()) >= count) break;
        if (config != heuristic && operation.filter(workload, config, info).fits) configs.push_back(config);
    }
    return configs;
}

Selection unmeasured(const Workload& workload, const Config& heuristic, const std::string& why) {
    return {heuristic, "heuristic", Grade::incompatible, {}, workload, why};
}

Selection contest(Runtime& runtime, const Operation& operation, const Workload& workload, const Fields& problem,
                  const std::vector<Config>& configs, double budget_ms) {
    Device& device = runtime.device();
    device.make_current();
    TestCase timing = operation.timing_case(workload, device.info(), 1);
    produce_inputs(runtime, operation, timing);
    TimingData data(device, timing);
    const Stopwatch watch;
    Contest contest(runtime, operation, data);
    for (const Config& config : configs) {
        if (!contest.empty() && watch.ms() >= budget_ms) break;
        contest.enter(config);
    }
    contest.measure(watch, budget_ms);

    for (const Rival* rival : contest.ranking()) {
        try {
            operation.plan(runtime, problem, &rival->config);
        } catch (const Error& error) {
            warn_skipped(operation, rival->config, error.what());
            continue;
        }
        return {rival->config,
                "autotune",
                Grade::incompatible,
                {},
                workload,
                fmt::format("{:.4g} ms, best of {} measured", rival->ms(), contest.size())};
    }
    return unmeasured(workload, configs.front(), "autotune: no candidate ran");
}

}  // namespace

Selection autotune(Runtime& runtime, const Operation& operation, const Workload& workload, const Fields& problem,
                   const AutotuneLimits& limits) {
    const DeviceInfo& info = runtime.device().info();
    const Config heuristic = operation.heuristic(workload, info);
    try {
        const auto configs = entrants(operation, workload, info, heuristic, limits.candidates);
        if (configs.size() == 1) return unmeasured(workload, heuristic, "autotune: nothing to choose from");
        return contest(runtime, operation, workload, problem, configs, limits.budget_ms);
    } catch (const Error& error) {
        log(LogLevel::warn, fmt::format("autotune {}: the heuristic is used: {}", workload.to_string(), error.what()));
        return unmeasured(workload, heuristic, fmt::format("autotune: {}", error.what()));
    } catch (const std::bad_alloc&) {
        log(LogLevel::warn,
            fmt::format("autotune {}: the heuristic is used: out of host memory", workload.to_string()));
        return unmeasured(workload, heuristic, "autotune: out of host memory");
    }
}

}  // namespace turbotune
