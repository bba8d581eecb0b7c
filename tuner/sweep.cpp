#include "turbotune/tuner/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <fstream>

#include "candidate_list.h"
#include "compile_ahead.h"
#include "profile_file.h"
#include "turbotune/base/error.h"
#include "turbotune/base/files.h"
#include "turbotune/base/log.h"
#include "turbotune/kernel/kernel_spec.h"
#include "turbotune/tuner/measure.h"
#include "worker_client.h"
#include "workload_tuner.h"

namespace turbotune {

namespace {

using Clock = std::chrono::steady_clock;

std::string utc_now() {
    std::time_t now = std::time(nullptr);
    std::tm parts{};
    gmtime_r(&now, &parts);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return text;
}

std::string host_cpu() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);)
        if (line.rfind("model name", 0) == 0 && line.find(": ") != std::string::npos)
            return line.substr(line.find(": ") + 2);
    return "unknown";
}

std::string driver_text(const DeviceInfo& device) {
    if (device.driver_version == 0) return "none";
    return fmt::format("{}.{}", device.driver_version / 1000, device.driver_version % 1000 / 10);
}

std::string device_argument(const DeviceInfo& device) {
    return device.kind == DeviceKind::cpu ? "cpu" : std::to_string(device.ordinal);
}

Compiler& compiler_of(const DeviceInfo& device) {
    return device.kind == DeviceKind::cpu ? host_compiler() : nvrtc_compiler();
}

class Sweep {
  public:
    Sweep(const SweepOptions& options, const SweepListener& listener, const std::atomic<int>* interrupts,
          const std::vector<const Operation*>& known)
        : options_(options),
          listener_(listener),
          interrupts_(interrupts),
          items_(sweep_items(options, known)),
          device_(open_device(options.device).info()),
          file_(options.output.empty() ? default_profile_path(device_) : options.output, fresh_profile()),
          journal_(file_.path() + ".journal", journal_header()),
          worker_(options.worker_program, device_argument(device_), options.store, interrupts),
          compiler_(options.store, threads()),
          tools_{device_,
                 worker_,
                 compiler_,
                 journal_,
                 [this](SweepEvent event) { tell(std::move(event)); },
                 [this] { return interrupts_ ? interrupts_->load() : 0; },
                 options.retest} {}

    SweepReport run();

  private:
    std::map<std::string, std::string> digests() const;
    Profile fresh_profile() const;
    JournalHeader journal_header() const;
    int threads() const;
    double elapsed_s() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
    double eta_s() const;
    void tell(SweepEvent event);
    void tell_item(SweepEvent::Kind kind, const Workload& workload, const std::string& text);
    void tell_start();
    void prefetch(std::size_t item);
    void tune(std::size_t item);
    void save(const TuningResult& result);

    const SweepOptions& options_;
    const SweepListener& listener_;
    const std::atomic<int>* interrupts_;
    std::vector<SweepItem> items_;
    const DeviceInfo& device_;
    ProfileFile file_;
    Journal journal_;
    WorkerClient worker_;
    CompileAhead compiler_;
    TuningTools tools_;
    SweepReport report_;
    Clock::time_point start_ = Clock::now();
    std::size_t current_ = 0;
    // For the time to go: candidates that had to be measured, those settled, and the time they took.
    std::vector<int> pending_;
    int settled_ = 0;
    double least_rotation_ = INFINITY;
    std::string last_memory_;
};

std::map<std::string, std::string> Sweep::digests() const {
    std::map<std::string, std::string> digests;
    for (const SweepItem& item : items_)
        if (const std::string& name = item.operation->name(); !digests.count(name))
            digests[name] = to_hex(template_digest(name));
    return digests;
}

Profile Sweep::fresh_profile() const {
    Profile profile;
    profile.device_class = device_.device_class;
    profile.device_name = device_.name;
    profile.compiler = compiler_of(device_).identity();
    profile.templates = digests();
    profile.provenance = {{"date", utc_now()},
                          {"command", options_.command_line},
                          {"host_cpu", host_cpu()},
                          {"driver", driver_text(device_)},
                          {"turbotune", TURBOTUNE_VERSION}};
    return profile;
}

JournalHeader Sweep::journal_header() const {
    return {TURBOTUNE_VERSION, device_.device_class.to_string(), compiler_of(device_).identity(), digests()};
}

int Sweep::threads() const {
    int jobs = options_.jobs > 0 ? options_.jobs : compile_jobs();
    // Beside a GPU compiles go on while the worker measures, and it needs a core to launch from.
    if (device_.kind == DeviceKind::cuda && options_.jobs <= 0) jobs = std::max(1, jobs - 1);
    return jobs;
}

double Sweep::eta_s() const {
    if (settled_ == 0) return -1;
    int left = -settled_;
    for (int count : pending_) left += count;
    return elapsed_s() / settled_ * std::max(0, left);
}

void Sweep::tell(SweepEvent event) {
    event.workload_index = int(current_) + 1;
    event.workload_count = int(items_.size());
    if (event.kind == SweepEvent::Kind::measured || event.kind == SweepEvent::Kind::rejected) ++settled_;
    event.eta_s = eta_s();
    // The memory plan is told first of all, and again whenever it is another.
    if (event.kind == SweepEvent::Kind::started) {
        if (event.text == last_memory_) return;
        last_memory_ = event.text;
    }
    if (listener_) listener_(event);
}

void Sweep::tell_item(SweepEvent::Kind kind, const Workload& workload, const std::string& text) {
    SweepEvent event;
    event.kind = kind;
    event.workload = workload;
    event.text = text;
    tell(std::move(event));
}

void Sweep::tell_start() {
    std::string text = fmt::format("{} on {} ({}), saved to {}",
                                   items_.size() == 1 ? "1 workload" : fmt::format("{} workloads", items_.size()),
                                   device_.name, device_.device_class.to_string(), file_.path());
    if (!file_.previous().empty())
        text +=
            fmt::format("; the profile there is of another compiler or other templates: moved to {}", file_.previous());
    if (!journal_.previous().empty())
        text += fmt::format("; the journal there likewise: moved to {}", journal_.previous());
    if (journal_.damaged_lines() > 0)
        text += fmt::format("; {} damaged lines of the journal passed over", journal_.damaged_lines());
    tell_item(SweepEvent::Kind::started, {}, text);
}

// On a GPU the host is free while the worker measures. On the CPU device a compile beside it would be measured too.
void Sweep::prefetch(std::size_t index) {
    if (device_.kind == DeviceKind::cpu || index >= items_.size() || pending_[index] == 0 || !compiler_.useful())
        return;
    compiler_.prefetch([this, item = items_[index]] {
        std::vector<KernelSpec> specs;
        for (const Config& config : list_candidates(item, device_, options_.query.preset).configs)
            for (KernelSpec& spec : kernels_of(item, config, device_)) specs.push_back(std::move(spec));
        return specs;
    });
}

void Sweep::save(const TuningResult& result) {
    if (result.l2_bytes > 0 && result.rotated_bytes / result.l2_bytes < least_rotation_) {
        least_rotation_ = result.rotated_bytes / result.l2_bytes;
        file_.provenance()["rotation"] = fmt::format("at least {:.0f} bytes rotated against {:.0f} bytes of L2",
                                                     result.rotated_bytes, result.l2_bytes);
    }
    file_.put(result.entry);
    tell_item(SweepEvent::Kind::saved, result.entry.workload, file_.path());
}

void Sweep::tune(std::size_t index) {
    current_ = index;
    const SweepItem& item = items_[index];
    CandidateList list = list_candidates(item, device_, options_.query.preset);
    if (!list.unavailable.empty()) {
        ++report_.skipped;
        tell_item(SweepEvent::Kind::workload_skipped, item.workload, list.unavailable);
        return;
    }
    WorkloadTuner tuner(tools_, item, std::move(list), file_.find(item.workload));
    if (tuner.complete()) {
        ++report_.resumed;
        tell_item(SweepEvent::Kind::workload_resumed, item.workload, "the profile holds it");
        return;
    }
    tell_item(SweepEvent::Kind::workload_started, item.workload, "");
    prefetch(index + 1);
    TuningResult result = tuner.run();
    report_.candidates_measured += result.measured;
    report_.candidates_rejected += result.rejected;
    switch (result.end) {
        case TuningEnd::interrupted:
            report_.interrupted = true;
            break;
        case TuningEnd::failed:
            ++report_.failed;
            report_.failures.push_back(item.workload.to_string() + ": " + result.failure);
            tell_item(SweepEvent::Kind::workload_failed, item.workload, result.failure);
            break;
        case TuningEnd::finished:
            ++report_.measured;
            save(result);
            break;
    }
}

SweepReport Sweep::run() {
    report_.workloads = int(items_.size());
    report_.profile_path = file_.path();
    for (const SweepItem& item : items_) {
        CandidateList list = list_candidates(item, device_, options_.query.preset);
        pending_.push_back(list.unavailable.empty()
                               ? WorkloadTuner(tools_, item, std::move(list), file_.find(item.workload)).pending()
                               : 0);
    }
    tell_start();
    for (std::size_t index = 0; index < items_.size(); ++index) {
        if (tools_.interrupts() >= 1) report_.interrupted = true;
        if (report_.interrupted) break;
        int before = report_.measured + report_.failed;
        tune(index);
        // Workloads that were only looked up do not end a sweep: run again and again, it gets to the end.
        bool worked = report_.measured + report_.failed > before;
        if (worked && options_.time_budget_s > 0 && elapsed_s() >= options_.time_budget_s &&
            index + 1 < items_.size()) {
            report_.out_of_time = true;
            break;
        }
    }
    report_.worker_restarts = worker_.restarts();
    worker_.close();
    report_.seconds = elapsed_s();
    return report_;
}

}  // namespace

std::string default_profile_path(const DeviceInfo& device) {
    return user_profile_directory() + "/" + device.device_class.to_string() + ".json";
}

SweepReport sweep(const SweepOptions& options, const SweepListener& listener, const std::atomic<int>* interrupts,
                  const std::vector<const Operation*>& known) {
    memory_limit_setting();  // the worker reads it too, long after the first compile
    return Sweep(options, listener, interrupts, known).run();
}

}  // namespace turbotune
