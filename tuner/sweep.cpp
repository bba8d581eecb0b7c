#include "turbotune/tuner/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "candidate_list.h"
#include "compile_ahead.h"
#include "conditions.h"
#include "device_claims.h"
#include "profile_file.h"
#include "provenance.h"
#include "turbotune/base/error.h"
#include "turbotune/base/files.h"
#include "turbotune/base/log.h"
#include "turbotune/kernel/kernel_spec.h"
#include "turbotune/tuner/measure.h"
#include "work_queue.h"
#include "worker_client.h"
#include "workload_tuner.h"

namespace turbotune {

namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::string> operations_of(const std::vector<SweepItem>& items) {
    std::vector<std::string> names;
    for (const SweepItem& item : items)
        if (std::find(names.begin(), names.end(), item.operation->name()) == names.end())
            names.push_back(item.operation->name());
    return names;
}

// The devices asked for. Throws InvalidArgument when they are of several classes: one profile cannot hold for all.
std::vector<const DeviceInfo*> sweep_devices(const SweepOptions& options) {
    std::vector<const DeviceInfo*> devices;
    const auto names = options.devices.empty() ? std::vector<std::string>{options.device} : options.devices;
    for (const std::string& name : names) devices.push_back(&open_device(name).info());
    for (const DeviceInfo* device : devices)
        if (device->device_class != devices.front()->device_class)
            throw InvalidArgument(
                "devices", fmt::format("{} is {}, {} is {}; one profile holds for one class",
                                       device_argument(*devices.front()), devices.front()->device_class.to_string(),
                                       device_argument(*device), device->device_class.to_string()));
    return devices;
}

// One device and its worker, served by one thread.
struct Lane {
    Lane(int lane_number, const DeviceInfo& lane_device, const SweepOptions& options,
         const std::atomic<int>* interrupts, CompileAhead& compiler, Journal& journal,
         std::function<void(SweepEvent)> tell, std::function<int()> count)
        : number(lane_number),
          device(lane_device),
          worker(options.worker_program, device_argument(device), options.store, interrupts),
          tools{device, worker, compiler, journal, std::move(tell), std::move(count), options.retest} {}

    int number;
    const DeviceInfo& device;
    WorkerClient worker;
    TuningTools tools;
    std::size_t current = 0;  // workload
    int handed_over = 0;
    std::string last_handed_over;  // why
};

class Sweep {
  public:
    Sweep(const SweepOptions& options, const SweepListener& listener, const std::atomic<int>* interrupts,
          const std::vector<const Operation*>& known)
        : options_(options),
          listener_(listener),
          interrupts_(interrupts),
          items_(sweep_items(options, known)),
          devices_(sweep_devices(options)),
          device_(*devices_.front()),
          profiles_(known_profiles(options.profiles, empty_profile())),
          file_(options.output.empty() ? default_profile_path(device_, options.shard, options.shards) : options.output,
                empty_profile()),
          journal_(file_.path() + ".journal", journal_header()),
          compiler_(options.store, threads()),
          groups_(group_shared(items_)),
          queue_(groups_.size()) {
        // Presets name long sequences last. Where devices share the work these come first, so that none waits long for
        // the other's last one.
        if (devices_.size() > 1) std::reverse(groups_.begin(), groups_.end());
        for (const DeviceInfo* device : devices_) add_lane(*device);
    }

    SweepReport run();

  private:
    void add_lane(const DeviceInfo& device);
    Profile empty_profile() const;
    JournalHeader journal_header() const;
    int threads() const;
    int interrupts() const;
    double elapsed_s() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
    double eta_s() const;
    void tell(const Lane& lane, SweepEvent event);
    void tell_item(const Lane& lane, SweepEvent::Kind kind, const Workload& workload, const std::string& text);
    void tell_start();
    void prefetch(const Lane& lane);
    void serve(Lane& lane);
    bool work_on(Lane& lane, std::size_t group);
    std::optional<std::size_t> take(const Lane& lane);
    TuningResult tune(Lane& lane, std::size_t item);
    void settle(Lane& lane, std::size_t item, const TuningResult& result);
    std::optional<ProfileEntry> shared_entry(const Lane& lane, const SweepItem& item);
    void save(const Lane& lane, const TuningResult& result);
    void put_unasked_twin(const ProfileEntry& entry);

    const SweepOptions& options_;
    const SweepListener& listener_;
    const std::atomic<int>* interrupts_;
    std::vector<SweepItem> items_;
    std::vector<const DeviceInfo*> devices_;
    const DeviceInfo& device_;  // stands for all: they are of one class
    const std::vector<LoadedProfile> profiles_;
    ProfileFile file_;
    Journal journal_;
    CompileAhead compiler_;
    std::vector<std::vector<std::size_t>> groups_;  // of items that share a winner, for one lane each
    WorkQueue queue_;                               // of groups
    std::vector<std::unique_ptr<Lane>> lanes_;
    Clock::time_point start_ = Clock::now();
    // For the time to go: candidates that had to be measured.
    std::vector<int> pending_;
    std::atomic<bool> broken_{false};  // a lane threw: the others end, too

    std::mutex mutex_;  // of what follows, of file_ and of the listener
    SweepReport report_;
    std::vector<Workload> saved_;  // in this sweep
    std::exception_ptr error_;
    int settled_ = 0;
    std::size_t prefetched_ = 0;  // groups whose kernels have been asked for
    std::string last_memory_;
};

void Sweep::add_lane(const DeviceInfo& device) {
    const int number = int(lanes_.size());
    lanes_.push_back(std::make_unique<Lane>(
        number, device, options_, interrupts_, compiler_, journal_,
        [this, number](SweepEvent event) { tell(*lanes_[std::size_t(number)], std::move(event)); },
        [this] { return interrupts(); }));
    report_.devices.push_back(device_argument(device));
}

Profile Sweep::empty_profile() const {
    Profile profile = fresh_profile(device_, operations_of(items_), options_.command_line);
    if (options_.shards > 1) profile.provenance["shard"] = fmt::format("{}/{}", options_.shard, options_.shards);
    return profile;
}

JournalHeader Sweep::journal_header() const {
    const Profile profile = empty_profile();
    return {TURBOTUNE_VERSION, device_.device_class.to_string(), profile.compiler, profile.templates};
}

int Sweep::threads() const {
    int jobs = options_.jobs > 0 ? options_.jobs : compile_jobs();
    // Beside a GPU compiles go on while its worker measures, and that needs a core to launch from.
    if (device_.kind == DeviceKind::cuda && options_.jobs <= 0) jobs = std::max(1, jobs - int(devices_.size()));
    return jobs;
}

int Sweep::interrupts() const {
    const int count = interrupts_ ? interrupts_->load() : 0;
    return broken_ ? std::max(1, count) : count;
}

double Sweep::eta_s() const {
    if (settled_ == 0) return -1;
    int left = -settled_;
    for (int count : pending_) left += count;
    return elapsed_s() / settled_ * std::max(0, left);
}

void Sweep::tell(const Lane& lane, SweepEvent event) {
    const std::lock_guard lock(mutex_);
    event.workload_index = int(lane.current) + 1;
    event.workload_count = int(items_.size());
    event.device = device_argument(lane.device);
    if (event.kind == SweepEvent::Kind::measured || event.kind == SweepEvent::Kind::rejected) ++settled_;
    event.eta_s = eta_s();
    // The memory plan is told first of all, and again whenever it is another.
    if (event.kind == SweepEvent::Kind::started) {
        if (event.text == last_memory_) return;
        last_memory_ = event.text;
    }
    if (listener_) listener_(event);
}

void Sweep::tell_item(const Lane& lane, SweepEvent::Kind kind, const Workload& workload, const std::string& text) {
    SweepEvent event;
    event.kind = kind;
    event.workload = workload;
    event.text = text;
    tell(lane, std::move(event));
}

void Sweep::tell_start() {
    const std::string several = devices_.size() > 1 ? fmt::format("{} x ", devices_.size()) : "";
    std::string text = fmt::format("{} on {}{} ({}), saved to {}",
                                   items_.size() == 1 ? "1 workload" : fmt::format("{} workloads", items_.size()),
                                   several, device_.name, device_.device_class.to_string(), file_.path());
    if (!file_.previous().empty())
        text +=
            fmt::format("; the profile there is of another compiler or other templates: moved to {}", file_.previous());
    if (!journal_.previous().empty())
        text += fmt::format("; the journal there likewise: moved to {}", journal_.previous());
    if (journal_.damaged_lines() > 0)
        text += fmt::format("; {} damaged lines of the journal passed over", journal_.damaged_lines());
    tell_item(*lanes_.front(), SweepEvent::Kind::started, {}, text);
}

// On a GPU the host is free while the worker measures. On the CPU device a compile beside it would be measured too.
void Sweep::prefetch(const Lane& lane) {
    if (device_.kind == DeviceKind::cpu || !compiler_.useful()) return;
    std::size_t group = queue_.next();
    constexpr std::size_t kAhead = 16;  // workloads of one device: many share their kernels, and cores would be idle
    const std::size_t end = std::min(groups_.size(), group + kAhead * devices_.size());
    {
        const std::lock_guard lock(mutex_);
        group = std::max(group, prefetched_);
        prefetched_ = std::max(prefetched_, end);
    }
    for (; group < end; ++group) {
        const std::size_t index = groups_[group].front();
        if (pending_[index] == 0) continue;
        compiler_.prefetch([item = items_[index], &device = lane.device] { return test_kernels_of(item, device); });
        compiler_.prefetch([this, item = items_[index], &device = lane.device] {
            std::vector<KernelSpec> specs;
            for (const Config& config : list_candidates(item, device, options_.query.preset, profiles_).configs)
                for (KernelSpec& spec : kernels_of(item, config, device)) specs.push_back(std::move(spec));
            return specs;
        });
    }
}

void Sweep::save(const Lane& lane, const TuningResult& result) {
    bool saved = false;
    {
        const std::lock_guard lock(mutex_);
        if (result.l2_bytes > 0)
            join_provenance(file_.provenance(),
                            {{"rotation", describe_rotation(result.rotated_bytes, result.l2_bytes)}});
        saved = file_.put(result.entry);
        saved_.push_back(result.entry.workload);
        put_unasked_twin(result.entry);
        ++report_.measured;
    }
    if (saved) tell_item(lane, SweepEvent::Kind::saved, result.entry.workload, file_.path());
}

// A workload that shares the winner but was not asked for is entered all the same: it may be the one that a runtime
// looks up.
void Sweep::put_unasked_twin(const ProfileEntry& entry) {
    for (const SweepItem& item : items_) {
        if (!(item.workload == entry.workload)) continue;
        const std::optional<Workload> other = item.operation->shared_winner(item.workload);
        if (!other ||
            std::any_of(items_.begin(), items_.end(), [&](const SweepItem& each) { return each.workload == *other; }))
            return;
        ProfileEntry twin = entry;
        twin.workload = *other;
        file_.put(twin);
        return;
    }
}

// The entry of the workload that has the same kernels, when it covers every candidate; with --retest only if this sweep
// has measured it.
std::optional<ProfileEntry> Sweep::shared_entry(const Lane& lane, const SweepItem& item) {
    const std::optional<Workload> other = item.operation->shared_winner(item.workload);
    if (!other) return std::nullopt;
    ProfileEntry entry;
    {
        const std::lock_guard lock(mutex_);
        const ProfileEntry* found = file_.find(*other);
        const bool fresh = std::find(saved_.begin(), saved_.end(), *other) != saved_.end();
        if (!found || (options_.retest && !fresh)) return std::nullopt;
        entry = *found;
    }
    const SweepItem twin{item.operation, *other};
    TuningTools tools = lane.tools;
    tools.retest = false;
    CandidateList list = list_candidates(twin, lane.device, options_.query.preset, profiles_);
    return WorkloadTuner(tools, twin, std::move(list), &entry).complete() ? std::optional(entry) : std::nullopt;
}

TuningResult Sweep::tune(Lane& lane, std::size_t index) {
    lane.current = index;
    const SweepItem& item = items_[index];
    TuningResult nothing;
    nothing.end = TuningEnd::nothing_to_measure;
    CandidateList list = list_candidates(item, lane.device, options_.query.preset, profiles_);
    if (!list.unavailable.empty()) {
        tell_item(lane, SweepEvent::Kind::workload_skipped, item.workload, list.unavailable);
        const std::lock_guard lock(mutex_);
        ++report_.skipped;
        return nothing;
    }
    std::optional<ProfileEntry> before;
    {
        const std::lock_guard lock(mutex_);
        if (const ProfileEntry* entry = file_.find(item.workload)) before = *entry;
    }
    WorkloadTuner tuner(lane.tools, item, std::move(list), before ? &*before : nullptr);
    if (tuner.complete()) {
        tell_item(lane, SweepEvent::Kind::workload_resumed, item.workload, "the profile holds it");
        const std::lock_guard lock(mutex_);
        ++report_.resumed;
        return nothing;
    }
    if (std::optional<ProfileEntry> shared = shared_entry(lane, item)) {
        tell_item(lane, SweepEvent::Kind::workload_finished, item.workload,
                  fmt::format("{:.4g} ms, measured with {}", shared->latency.median, shared->workload.to_string()));
        nothing.end = TuningEnd::finished;
        nothing.entry = std::move(*shared);
        nothing.entry.workload = item.workload;
        return nothing;
    }
    tell_item(lane, SweepEvent::Kind::workload_started, item.workload, "");
    prefetch(lane);
    return tuner.run();
}

void Sweep::settle(Lane& lane, std::size_t index, const TuningResult& result) {
    const Workload& workload = items_[index].workload;
    {
        const std::lock_guard lock(mutex_);
        report_.candidates_measured += result.measured;
        report_.candidates_rejected += result.rejected;
        report_.stages.add(result.stages);
        if (result.end == TuningEnd::interrupted) report_.interrupted = true;
    }
    if (result.end == TuningEnd::finished) save(lane, result);
    if (result.end != TuningEnd::failed) return;
    tell_item(lane, SweepEvent::Kind::workload_failed, workload, result.failure);
    const std::lock_guard lock(mutex_);
    ++report_.failed;
    report_.failures.push_back(workload.to_string() + ": " + result.failure);
}

// The workloads of a group, one after the other. Returns whether anything was measured.
bool Sweep::work_on(Lane& lane, std::size_t group) {
    bool worked = false;
    TuningResult result;
    for (const std::size_t index : groups_[group]) {
        const bool same_failure = result.end == TuningEnd::failed && worked && !result.blocked;
        if (same_failure) {
            lane.current = index;
            result.measured = result.rejected = 0;
            result.stages = {};
        } else {
            result = tune(lane, index);
        }
        worked = worked || result.end != TuningEnd::nothing_to_measure;
        // A device that cannot begin a workload may be at fault itself.
        if (result.blocked && lanes_.size() > 1 && queue_.hand_over(group, lane.number)) {
            ++lane.handed_over;
            lane.last_handed_over = result.failure;
            tell_item(lane, SweepEvent::Kind::workload_handed_over, items_[index].workload, result.failure);
            return worked;
        }
        settle(lane, index, result);
        if (result.end == TuningEnd::interrupted) break;
    }
    queue_.done();
    return worked;
}

std::optional<std::size_t> Sweep::take(const Lane& lane) {
    {
        const std::lock_guard lock(mutex_);
        if (interrupts() >= 1 && queue_.anything_left()) report_.interrupted = true;
        if (report_.interrupted || report_.out_of_time) queue_.stop();
    }
    return queue_.take(lane.number);
}

// What a lane's thread does.
void Sweep::serve(Lane& lane) {
    try {
        while (const std::optional<std::size_t> group = take(lane)) {
            // Workloads that were only looked up do not end a sweep: run again and again, it gets to the end.
            const bool worked = work_on(lane, *group);
            const std::lock_guard lock(mutex_);
            if (worked && options_.time_budget_s > 0 && elapsed_s() >= options_.time_budget_s &&
                queue_.anything_left() && !report_.interrupted)
                report_.out_of_time = true;
        }
    } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
        broken_ = true;
        queue_.stop();
    }
    lane.worker.close();
}

SweepReport Sweep::run() {
    report_.workloads = int(items_.size());
    report_.profile_path = file_.path();
    std::vector<Workload> counted;
    bool measures = false;
    for (const SweepItem& item : items_) {
        const std::optional<Workload> other = item.operation->shared_winner(item.workload);
        if (other && std::find(counted.begin(), counted.end(), *other) != counted.end()) {
            pending_.push_back(0);
            continue;
        }
        counted.push_back(item.workload);
        pending_.push_back(0);
        CandidateList list = list_candidates(item, device_, options_.query.preset, profiles_);
        if (!list.unavailable.empty()) continue;
        const WorkloadTuner tuner(lanes_.front()->tools, item, std::move(list), file_.find(item.workload));
        pending_.back() = tuner.pending();
        measures = measures || !tuner.complete();
    }
    std::vector<DeviceClaim> claims;
    if (measures) claims = claim_devices(devices_, file_.path());
    tell_start();
    std::vector<std::thread> threads;
    for (std::size_t i = 1; i < lanes_.size(); ++i) threads.emplace_back([this, i] { serve(*lanes_[i]); });
    serve(*lanes_.front());
    for (std::thread& thread : threads) thread.join();
    if (error_) std::rethrow_exception(error_);
    file_.flush();
    for (const auto& lane : lanes_) {
        report_.worker_restarts += lane->worker.restarts();
        if (lane->handed_over > 0)
            report_.failures.push_back(fmt::format("device {} could not begin {} workload{}, which others took: {}",
                                                   device_argument(lane->device), lane->handed_over,
                                                   lane->handed_over == 1 ? "" : "s", lane->last_handed_over));
    }
    report_.seconds = elapsed_s();
    return report_;
}

}  // namespace

std::string default_profile_path(const DeviceInfo& device, int shard, int shards) {
    const std::string share = shards > 1 ? fmt::format("-shard-{}-of-{}", shard, shards) : "";
    return user_profile_directory() + "/" + device.device_class.to_string() + share + ".json";
}

SweepReport sweep(const SweepOptions& options, const SweepListener& listener, const std::atomic<int>* interrupts,
                  const std::vector<const Operation*>& known) {
    memory_limit_setting();  // the worker reads it too, long after the first compile
    return Sweep(options, listener, interrupts, known).run();
}

}  // namespace turbotune
