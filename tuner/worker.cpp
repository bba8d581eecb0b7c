// The worker process. Requests, one JSON object a line:
//   {"do":"hello","store":{...}}                            -> {"ok":true}
//   {"do":"open","operation":..,"workload":{..},"seed":N,"timing":B}
//                                                           -> {"ok":true,"memory":"..",...}
//   {"do":"check","config":{..}}                            -> {"ok":true,"outcome":{..}}
//   {"do":"measure","config":{..},"samples":N}              -> {"ok":true,"outcome":{..}}
//   {"do":"round","configs":[{"config":{..}}],"samples":N}  -> {"ok":true,"samples":[[..]]}
// A failure is {"ok":false,"reason":..,"detail":..}, with "index" in a round, and "leaving":true when the device
// context is lost and the process ends. Nothing large is sent: test data is drawn from the seed on this side.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "device_failure.h"
#include "outcome_json.h"
#include "turbotune/base/error.h"
#include "turbotune/tuner/measure.h"
#include "turbotune/tuner/parity.h"
#include "turbotune/tuner/sweep.h"
#include "turbotune/tuner/worker_process.h"

namespace turbotune {

namespace {

// Standard input and output, taken away from everything else in the process: what a library prints goes to standard
// error instead of between two answers.
class Channel {
  public:
    Channel() : input_(::fcntl(0, F_DUPFD_CLOEXEC, 3)), output_(::fcntl(1, F_DUPFD_CLOEXEC, 3)) {
        if (int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC); null >= 0) {
            ::dup2(null, 0);
            ::close(null);
        }
        ::dup2(2, 1);
        std::thread(&Channel::listen, this).detach();
    }

    std::string next() {
        std::unique_lock lock(mutex_);
        arrived_.wait(lock, [&] { return !lines_.empty(); });
        std::string line = std::move(lines_.front());
        lines_.pop_front();
        return line;
    }

    void send(std::string line) {
        line += '\n';
        std::string_view rest = line;
        while (!rest.empty()) {
            ssize_t done = ::write(output_, rest.data(), rest.size());
            if (done < 0 && errno == EINTR) continue;
            if (done <= 0) ::_exit(0);  // nobody listens
            rest.remove_prefix(std::size_t(done));
        }
    }

  private:
    // A thread of its own, so that the process ends with its parent even while a candidate hangs.
    void listen() {
        std::string received;
        char bytes[65536];
        for (;;) {
            ssize_t got = ::read(input_, bytes, sizeof bytes);
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) ::_exit(0);
            received.append(bytes, std::size_t(got));
            for (std::size_t end; (end = received.find('\n')) != std::string::npos;) {
                std::lock_guard lock(mutex_);
                lines_.push_back(received.substr(0, end));
                received.erase(0, end + 1);
                arrived_.notify_one();
            }
        }
    }

    int input_, output_;
    std::mutex mutex_;
    std::condition_variable arrived_;
    std::deque<std::string> lines_;
};

// The kernel that fits least decides where a config runs.
struct KernelFigures {
    int registers = -1, local_bytes = -1, shared_bytes = -1;

    KernelFigures(const std::vector<KernelMetadata>& kernels, std::int64_t dynamic_shared) {
        for (const KernelMetadata& kernel : kernels) {
            registers = std::max(registers, kernel.registers);
            local_bytes = std::max(local_bytes, kernel.local_bytes);
            shared_bytes = std::max(shared_bytes, kernel.static_shared_bytes);
        }
        if (dynamic_shared > 0) shared_bytes = std::max(shared_bytes, 0) + int(dynamic_shared);
    }
};

class Worker {
  public:
    Worker(Channel& channel, std::string device, Store::Options store, const std::vector<const Operation*>& known)
        : channel_(channel), device_(std::move(device)), store_(std::move(store)), known_(known) {}

    Json answer(JsonReader& request);
    // The config of a round that was running; -1 outside of rounds.
    int in_flight() const { return in_flight_; }

  private:
    Runtime& runtime();
    const Operation& find(const std::string& name) const;
    Json hello(JsonReader& request);
    Json open(JsonReader& request);
    // Parity, and timing when `samples` are asked for.
    Json measure(const Config& config, int samples);
    Json round(JsonReader& request);
    TimingBench& bench();
    void announce(int index) { channel_.send(fmt::format("{} {}", kAnnouncement, index)); }

    Channel& channel_;
    std::string device_;
    Store::Options store_;
    const std::vector<const Operation*>& known_;
    std::unique_ptr<Runtime> runtime_;
    const Operation* operation_ = nullptr;
    Workload workload_;
    TestCase timing_case_;
    std::vector<std::unique_ptr<ParityChecker>> checkers_;
    std::unique_ptr<TimingBench> bench_;
    int in_flight_ = -1;
};

Runtime& Worker::runtime() {
    if (!runtime_) {
        RuntimeOptions options;
        options.device = device_;
        options.policy = Policy::heuristic;  // configs are always given
        options.discover_profiles = false;
        options.store = store_;
        runtime_ = std::make_unique<Runtime>(options);
    }
    return *runtime_;
}

const Operation& Worker::find(const std::string& name) const {
    for (const Operation* operation : known_)
        if (operation->name() == name) return *operation;
    throw InvalidArgument("operation", "\"" + name + "\" is not known to the worker");
}

Json Worker::hello(JsonReader& request) {
    JsonReader store = request.object("store");
    store_.directory = store.text("directory");
    store_.max_bytes = store.integer("max_bytes", 0, std::int64_t{1} << 60);
    store_.memory_only = store.boolean("memory_only");
    return Json{{"ok", true}};
}

Json Worker::open(JsonReader& request) {
    bench_.reset();
    checkers_.clear();
    operation_ = &find(request.text("operation"));
    workload_ = {operation_->name(), request.fields("workload")};
    std::uint64_t seed = std::uint64_t(request.integer("seed", 0, std::int64_t{1} << 62));

    Device& device = runtime().device();
    device.make_current();
    double reference_ms = 0;
    int index = 0;
    for (TestCase& test_case : operation_->parity_cases(workload_, device.info(), seed)) {
        announce(index++);
        checkers_.push_back(std::make_unique<ParityChecker>(runtime(), *operation_, std::move(test_case)));
        reference_ms = std::max(reference_ms, checkers_.back()->reference_ms());
    }
    announce(index);
    timing_case_ = operation_->timing_case(workload_, device.info(), seed + 1);
    if (!request.boolean("timing"))
        return Json{
            {"ok", true}, {"memory", ""}, {"rotated_bytes", 0.0}, {"l2_bytes", 0.0}, {"reference_ms", reference_ms}};
    const MemoryPlan& memory = bench().memory();
    return Json{{"ok", true},
                {"memory", memory.to_string()},
                {"rotated_bytes", double(memory.rotated_bytes())},
                {"l2_bytes", double(memory.l2_bytes)},
                {"reference_ms", reference_ms}};
}

TimingBench& Worker::bench() {
    if (!bench_) {
        std::int64_t taken = 0;
        for (const auto& checker : checkers_) taken += checker->device_bytes();
        std::int64_t limit = memory_limit(runtime().device(), taken);
        produce_inputs(runtime(), *operation_, timing_case_);  // here, where they need no copy of the rest
        bench_ = std::make_unique<TimingBench>(runtime(), *operation_, timing_case_, limit);
    }
    return *bench_;
}

Json Worker::measure(const Config& config, int samples) {
    CandidateOutcome outcome;
    outcome.workload = workload_;
    outcome.config = config;
    // The largest error of each output over all cases, beside the tolerance of its case.
    for (std::size_t i = 0; i < checkers_.size(); ++i) {
        announce(int(i));
        CaseOutcome result = checkers_[i]->check(config);
        if (!result.passed) return Json{{"ok", false}, {"reason", result.reason}, {"detail", result.detail}};
        outcome.parity.patterns.push_back(checkers_[i]->test_case().label);
        for (const OutputParity& output : result.outputs) {
            auto same = std::find_if(outcome.parity.outputs.begin(), outcome.parity.outputs.end(),
                                     [&](const OutputParity& seen) { return seen.output == output.output; });
            if (same == outcome.parity.outputs.end())
                outcome.parity.outputs.push_back(output);
            else if (output.error > same->error)
                *same = output;
        }
    }
    std::unique_ptr<Plan> plan = operation_->plan(runtime(), timing_case_.problem, &config);
    Verdict verdict = operation_->filter(workload_, config, runtime().device().info());
    KernelFigures figures(plan->kernels(), verdict.resources.shared_bytes);
    outcome.registers = figures.registers;
    outcome.local_bytes = figures.local_bytes;
    outcome.shared_bytes = figures.shared_bytes;
    outcome.latency.samples = 1;  // of nothing: the form of an outcome wants one
    if (samples == 0) return Json{{"ok", true}, {"outcome", outcome_to_json(outcome)}};
    bench().add(config);
    // Slow executions vary less from one to the next, and a first timing only sorts out what is hopeless.
    constexpr double kFirstTimingMs = 1000;
    samples = std::min(samples, std::max(3, int(kFirstTimingMs / bench().execution_ms(config))));
    auto taken = bench().round({config}, samples, [&](int index) { announce(index); });
    outcome.latency = summarize(taken[0]);
    return Json{{"ok", true}, {"outcome", outcome_to_json(outcome)}};
}

Json Worker::round(JsonReader& request) {
    std::vector<Config> configs;
    for (JsonReader& item : request.array("configs")) configs.push_back(item.fields("config"));
    int samples = int(request.integer("samples", 1, 1 << 20));
    auto taken = bench().round(configs, samples, [&](int index) {
        in_flight_ = index;
        announce(index);
    });
    in_flight_ = -1;
    return Json{{"ok", true}, {"samples", taken}};
}

Json Worker::answer(JsonReader& request) {
    in_flight_ = -1;
    std::string what = request.text("do");
    if (what == "hello") return hello(request);
    if (what == "open") return open(request);
    if (what == "check") return measure(request.fields("config"), 0);
    if (what == "measure") return measure(request.fields("config"), int(request.integer("samples", 1, 1 << 20)));
    if (what == "round") return round(request);
    throw InvalidArgument("do", "\"" + what + "\" is no request");
}

}  // namespace

int worker_main(const std::string& device, const Store::Options& store, const std::vector<const Operation*>& known) {
    // Ctrl-C and a terminal that closes reach the whole process group, and what Slurm and systemd send at the end of a
    // job reaches all of its processes; whether this one stops is for its parent to say.
    for (int each : {SIGINT, SIGHUP, SIGTERM}) ::signal(each, SIG_IGN);
    // Never destroyed: the listening thread uses it until the process ends.
    Channel& channel = *new Channel;
    Worker worker(channel, device, store, known);
    for (;;) {
        Json answer;
        bool leaving = false;
        try {
            Json request = parse_json(channel.next(), "request");
            JsonReader reader(request, "request");
            answer = worker.answer(reader);
        } catch (...) {
            CandidateFailure failure = describe_failure(std::current_exception());
            answer = Json{{"ok", false}, {"reason", failure.reason}, {"detail", failure.detail}};
            if (worker.in_flight() >= 0) answer["index"] = worker.in_flight();
            leaving = failure.fatal;
            if (leaving) answer["leaving"] = true;
        }
        channel.send(answer.dump(-1, ' ', false, Json::error_handler_t::replace));
        if (leaving) ::_exit(0);  // nothing can be freed in a lost context
    }
}

}  // namespace turbotune
