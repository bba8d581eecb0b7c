#include "turbotune/tuner/warm.h"

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "candidate_list.h"
#include "thread_group.h"
#include "turbotune/base/error.h"
#include "turbotune/kernel/compiler.h"
#include "turbotune/kernel/kernel_cache.h"
#include "workload_tuner.h"

namespace turbotune {

namespace {

using Clock = std::chrono::steady_clock;

struct WantedKernel {
    KernelSpec spec;
    std::string config;
};

// The kernels of the devices' workloads, each once: the most urgent question of a cold program first, so that an
// interrupted run leaves whole workloads.
class Wanted {
  public:
    Wanted(const WarmOptions& options, const std::vector<const Operation*>& known) : options_(options) {
        SweepOptions sweep;
        sweep.query = options.query;
        sweep.operations = options.operations;
        items_ = sweep_items(sweep, known);
    }

    WarmDevice add(const DeviceInfo& device) {
        WarmDevice summary;
        summary.device = device;
        Compiler& compiler = device.kind == DeviceKind::cuda ? nvrtc_compiler() : host_compiler();
        for (const SweepItem& item : items_) {
            CandidateList list = list_candidates(item, device, Preset::exhaustive);
            if (!list.unavailable.empty()) {
                ++summary.unavailable;
                summary.why_unavailable = list.unavailable;
                continue;
            }
            const std::string& operation = item.operation->name();
            const Selection chosen = automatic_selection(*item.operation, item.workload, device, options_.profiles,
                                                         compiler.identity(), to_hex(template_digest(operation)));
            ++(chosen.origin == "profile" ? summary.from_profiles : summary.from_heuristic);
            add_kernels(item, chosen.config, device);
            // What serves grids that the winner's measurement says nothing of.
            if (chosen.origin == "profile" && device.kind == DeviceKind::cuda)
                add_kernels(item, item.operation->heuristic(item.workload, device), device);
            if (!options_.all_candidates) continue;
            for (const Config& config : list.configs) add_kernels(item, config, device);
            add_kernels(item, item.operation->reference_config(device), device);
            for (KernelSpec& spec : test_kernels_of(item, device)) add(std::move(spec), "of tests");
        }
        return summary;
    }

    int workloads() const { return int(items_.size()); }
    const std::vector<WantedKernel>& kernels() const { return kernels_; }

  private:
    void add_kernels(const SweepItem& item, const Config& config, const DeviceInfo& device) {
        for (const Fields& problem : item.operation->problems(item.workload, device))
            add(problem, config, item, device);
        for (const auto& [problem, other] : item.operation->exceptions(item.workload, config, device))
            add(problem, other, item, device);
    }

    void add(const Fields& problem, const Config& config, const SweepItem& item, const DeviceInfo& device) {
        for (KernelSpec& spec : item.operation->kernels(problem, config, device))
            add(std::move(spec), config.to_string());
    }

    void add(KernelSpec spec, const std::string& config) {
        if (seen_.insert(spec.to_string()).second) kernels_.push_back({std::move(spec), config});
    }

    const WarmOptions& options_;
    std::vector<SweepItem> items_;
    std::set<std::string> seen_;
    std::vector<WantedKernel> kernels_;
};

class Warming {
  public:
    Warming(const std::vector<WantedKernel>& kernels, KernelCache& cache, const WarmListener& listener,
            const std::atomic<int>* interrupts, WarmReport* report)
        : kernels_(kernels), cache_(cache), listener_(listener), interrupts_(interrupts), report_(*report) {}

    void run(int threads) {
        std::vector<std::thread> pool = start_threads(threads, [this] { work(); });
        for (std::thread& thread : pool) thread.join();
    }

  private:
    std::optional<std::size_t> take() {
        const std::lock_guard lock(mutex_);
        if (next_ == kernels_.size()) return std::nullopt;
        if (interrupts_ && interrupts_->load() > 0) {
            report_.interrupted = true;
            return std::nullopt;
        }
        return next_++;
    }

    void work() {
        while (const std::optional<std::size_t> index = take()) {
            const WantedKernel& wanted = kernels_[*index];
            KernelOrigin origin = KernelOrigin::store;
            KernelMetadata metadata;
            std::string why;
            try {
                metadata = cache_.prepare(wanted.spec, &origin);
            } catch (const std::exception& error) {
                why = error.what();
            }
            const std::lock_guard lock(mutex_);
            if (!why.empty()) {
                report_.failures.push_back({wanted.spec.to_string(), wanted.config, why});
            } else if (origin == KernelOrigin::compiled) {
                ++report_.compiled;
                report_.compile_ms += metadata.compile_ms;
            } else {
                ++report_.found;
            }
            tell(wanted);
        }
    }

    // What was found takes no time, so only the others tell how long one takes.
    void tell(const WantedKernel& wanted) {
        WarmProgress progress;
        progress.done = ++done_;
        progress.count = int(kernels_.size());
        progress.kernel = wanted.spec.to_string();
        const double elapsed_s = std::chrono::duration<double>(Clock::now() - start_).count();
        const int slow = done_ - report_.found;
        if (slow > 0) progress.eta_s = elapsed_s / slow * (progress.count - progress.done);
        if (listener_) listener_(progress);
    }

    const std::vector<WantedKernel>& kernels_;
    KernelCache& cache_;
    const WarmListener& listener_;
    const std::atomic<int>* interrupts_;
    Clock::time_point start_ = Clock::now();
    std::mutex mutex_;  // of what follows, and of the listener
    WarmReport& report_;
    std::size_t next_ = 0;
    int done_ = 0;
};

// The store never throws: what it counted says whether the images are on disk.
std::string not_kept(const WarmReport& report, const StoreStatistics& store) {
    if (store.evictions > 0)
        return fmt::format("the store is full: {} entries were removed to make room", store.evictions);
    if (store.writes < report.compiled)
        return fmt::format("{} of {} compiled kernels could not be written", report.compiled - store.writes,
                           report.compiled);
    return "";
}

}  // namespace

WarmReport warm_store(const WarmOptions& options, const WarmListener& listener, const std::atomic<int>* interrupts,
                      const std::vector<const Operation*>& known) {
    const Clock::time_point start = Clock::now();
    WarmReport report;
    KernelCache cache(options.store);
    report.directory = cache.store().directory();
    if (report.directory.empty()) throw StoreError("there is no folder to keep kernels in: " + cache.store().reason());
    Wanted wanted(options, known);
    report.workloads = wanted.workloads();
    std::exception_ptr why;
    for (const DeviceInfo& device : options.devices) {
        try {
            report.devices.push_back(wanted.add(device));
        } catch (const CompileError& error) {  // no compiler for it: the other devices' kernels are wanted all the same
            report.failures.push_back({device.name, "", error.what()});
            if (!why) why = std::current_exception();
        }
    }
    if (report.devices.empty() && why) std::rethrow_exception(why);
    report.kernels = int(wanted.kernels().size());
    Warming(wanted.kernels(), cache, listener, interrupts, &report)
        .run(std::max(1, options.jobs > 0 ? options.jobs : compile_jobs()));
    report.not_kept = not_kept(report, cache.store().statistics());
    report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return report;
}

}  // namespace turbotune
