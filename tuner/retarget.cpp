#include "turbotune/tuner/retarget.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>

#include "compile_ahead.h"
#include "conditions.h"
#include "device_failure.h"
#include "profile_file.h"
#include "turbotune/base/error.h"
#include "worker_client.h"
#include "workload_tuner.h"

namespace turbotune {

namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::string> known_operations(const Profile& profile, const std::vector<const Operation*>& known) {
    std::vector<std::string> names;
    for (const Operation* operation : known)
        if (std::any_of(profile.entries.begin(), profile.entries.end(),
                        [&](const ProfileEntry& entry) { return entry.workload.operation == operation->name(); }))
            names.push_back(operation->name());
    return names;
}

class Retarget {
  public:
    Retarget(const RetargetOptions& options, const RetargetListener& listener, const std::atomic<int>* interrupts,
             const std::vector<const Operation*>& known)
        : listener_(listener),
          interrupts_(interrupts),
          known_(known),
          input_(load(options)),
          device_(open_device(options.device).info()),
          names_(known_operations(input_, known)),
          fresh_(fresh_profile(device_, names_, options.command_line)),
          file_(options.output, marked(options)),
          worker_(options.worker_program, device_argument(device_), options.store, interrupts),
          compiler_(options.store, options.jobs > 0 ? options.jobs : compile_jobs()) {}

    RetargetReport run();

  private:
    struct Check {
        std::string reason, detail;  // empty reason: it passes
        CandidateOutcome outcome;
    };

    static Profile load(const RetargetOptions& options);
    Profile marked(const RetargetOptions& options);
    int interrupts() const { return interrupts_ ? interrupts_->load() : 0; }
    const Operation* find(const std::string& name) const;
    void entry(const ProfileEntry& old);
    std::string drop(const ProfileEntry& old, const std::string& reason, const std::string& detail);
    std::string reissue(const SweepItem& item, const ProfileEntry& old);
    std::optional<std::string> turned_down(const SweepItem& item, const Config& config) const;
    std::vector<Check> check(const SweepItem& item, const std::vector<Config>& configs);

    const RetargetListener& listener_;
    const std::atomic<int>* interrupts_;
    const std::vector<const Operation*>& known_;
    Profile input_;
    const DeviceInfo& device_;
    std::vector<std::string> names_;
    Profile fresh_;
    RetargetReport report_;
    ProfileFile file_;
    WorkerClient worker_;
    CompileAhead compiler_;
};

Profile Retarget::load(const RetargetOptions& options) {
    std::error_code ignored;
    if (options.input == options.output || std::filesystem::equivalent(options.input, options.output, ignored))
        throw InvalidArgument(options.output,
                              "is the profile that is read; move that away first, and name it as the input");
    return load_profile(options.input);
}

// The empty profile of this device with the input's provenance told beside its own. Throws InvalidArgument for another
// class.
Profile Retarget::marked(const RetargetOptions& options) {
    for (const std::string& name : names_) {
        const Compatibility each =
            compare(input_, name, device_.device_class, fresh_.compiler, fresh_.templates.at(name));
        for (const std::string& difference : each.differences)
            if (std::find(report_.differences.begin(), report_.differences.end(), difference) ==
                report_.differences.end())
                report_.differences.push_back(difference);
    }
    if (input_.device_class != device_.device_class)
        throw InvalidArgument(
            options.input,
            fmt::format("was measured on {}, device {} is {}; a profile holds for its own class only",
                        input_.device_class.to_string(), device_argument(device_), device_.device_class.to_string()));
    Profile profile = fresh_;
    for (const auto& [key, value] : input_.provenance) profile.provenance["measured_" + key] = value;
    profile.provenance["retargeted_from"] = std::filesystem::path(options.input).filename().string();
    profile.provenance["measured_compiler"] = input_.compiler;
    for (const auto& [operation, digest] : input_.templates)
        profile.provenance["measured_templates_" + operation] = digest;
    return profile;
}

const Operation* Retarget::find(const std::string& name) const {
    const auto found =
        std::find_if(known_.begin(), known_.end(), [&](const Operation* each) { return each->name() == name; });
    return found == known_.end() ? nullptr : *found;
}

std::string Retarget::drop(const ProfileEntry& old, const std::string& reason, const std::string& detail) {
    report_.dropped.push_back({old.workload, old.config, reason, detail});
    return fmt::format("dropped: {}: {}", reason, detail);
}

// Why the config may not run for the workload; what it says that this version does not understand counts.
std::optional<std::string> Retarget::turned_down(const SweepItem& item, const Config& config) const {
    try {
        const Verdict verdict = item.operation->filter(item.workload, config, device_);
        if (verdict.fits) return std::nullopt;
        return verdict.reason;
    } catch (const Error& error) {
        return error.what();
    }
}

// Parity of each config on an opened workload, after their kernels were compiled side by side.
std::vector<Retarget::Check> Retarget::check(const SweepItem& item, const std::vector<Config>& configs) {
    std::vector<Check> checks(configs.size());
    std::vector<std::vector<KernelSpec>> specs(configs.size());
    for (std::size_t i = 0; i < configs.size(); ++i) {
        try {
            specs[i] = kernels_of(item, configs[i], device_);
        } catch (const Error& error) {
            checks[i].reason = "launch_error";
            checks[i].detail = error.what();
        }
    }
    if (compiler_.useful())
        compiler_.compile(
            specs,
            [&](int i, const CompileResult& result) {
                if (!result.reason.empty()) checks[std::size_t(i)] = {result.reason, result.detail, {}};
            },
            [&] { return interrupts() >= 1; });
    for (std::size_t i = 0; i < configs.size(); ++i) {
        if (interrupts() >= 1) report_.interrupted = true;
        if (report_.interrupted) break;
        if (!checks[i].reason.empty()) continue;
        ++report_.configs;
        checks[i].outcome = worker_.check(configs[i]);
        checks[i].reason = checks[i].outcome.reason;
        checks[i].detail = checks[i].outcome.detail;
        if (checks[i].reason == "interrupted") report_.interrupted = true;
        if (i == 0 && !checks[i].reason.empty()) break;  // without its winner the entry is dropped
    }
    return checks;
}

std::string Retarget::reissue(const SweepItem& item, const ProfileEntry& old) {
    if (const auto why = turned_down(item, old.config)) return drop(old, "filtered", *why);
    ProfileEntry entry = old;
    entry.measured.clear();
    entry.rejected.clear();
    std::vector<Config> configs = {old.config};
    std::vector<const MeasuredCandidate*> others;
    for (const MeasuredCandidate& candidate : old.measured) {
        if (const auto why = turned_down(item, candidate.config)) {
            ++report_.configs_turned_down;
            entry.rejected.push_back({candidate.config, "filtered", *why});
            continue;
        }
        others.push_back(&candidate);
        configs.push_back(candidate.config);
    }
    const OpenedWorkload opened = worker_.open(item.workload, kDataSeed, false);
    if (opened.failure == "interrupted") report_.interrupted = true;
    if (report_.interrupted) return "interrupted";
    if (!opened.failure.empty()) return drop(old, "unchecked", opened.failure);
    const std::vector<Check> checks = check(item, configs);
    if (report_.interrupted) return "interrupted";
    if (!checks[0].reason.empty()) return drop(old, checks[0].reason, checks[0].detail);

    const CandidateOutcome& winner = checks[0].outcome;
    entry.parity = winner.parity;
    entry.registers = winner.registers;
    entry.local_bytes = winner.local_bytes;
    entry.shared_bytes = winner.shared_bytes;
    for (std::size_t i = 1; i < configs.size(); ++i) {
        if (checks[i].reason.empty()) {
            entry.measured.push_back(*others[i - 1]);
        } else if (!may_pass(checks[i].reason)) {  // a sweep measures the others
            ++report_.configs_turned_down;
            entry.rejected.push_back({configs[i], checks[i].reason, checks[i].detail});
        }
    }
    for (const RejectedCandidate& candidate : old.rejected)
        if (candidate.reason == "filtered")
            if (const auto why = turned_down(item, candidate.config))
                entry.rejected.push_back({candidate.config, "filtered", *why});
    file_.put(std::move(entry));
    ++report_.kept;
    return "kept";
}

RetargetReport Retarget::run() {
    const Clock::time_point start = Clock::now();
    report_.device = device_;
    report_.entries = int(input_.entries.size());
    report_.profile_path = file_.path();
    RetargetProgress progress;
    progress.count = report_.entries;
    for (const ProfileEntry& old : input_.entries) {
        if (interrupts() >= 1) report_.interrupted = true;
        if (report_.interrupted) break;
        ++progress.index;
        progress.workload = old.workload;
        const Operation* operation = find(old.workload.operation);
        if (operation == nullptr) {
            progress.text = drop(old, "unknown_operation", "this build has no " + old.workload.operation);
        } else if (file_.find(old.workload) != nullptr) {
            ++report_.already;
            progress.text = "already there";
        } else {
            try {
                const std::string why = operation->unavailable(old.workload, device_);
                progress.text = why.empty() ? reissue({operation, old.workload}, old) : drop(old, "unavailable", why);
            } catch (const InvalidArgument& error) {
                // A worker that cannot be started is no fault of the entry.
                if (error.argument() == "worker_program") throw;
                progress.text = drop(old, "unavailable", error.what());
            }
        }
        if (listener_ && !report_.interrupted) listener_(progress);
    }
    worker_.close();
    file_.flush();
    report_.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return report_;
}

}  // namespace

RetargetReport retarget(const RetargetOptions& options, const RetargetListener& listener,
                        const std::atomic<int>* interrupts, const std::vector<const Operation*>& known) {
    return Retarget(options, listener, interrupts, known).run();
}

}  // namespace turbotune
