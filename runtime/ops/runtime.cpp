#include "turbotune/ops/runtime.h"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <optional>

#include "autotune.h"
#include "constants.h"
#include "turbotune/base/error.h"
#include "turbotune/base/files.h"
#include "turbotune/base/log.h"
#include "turbotune/ops/operation.h"

namespace turbotune {

namespace {

RuntimeOptions with_environment(RuntimeOptions options) {
    if (options.policy != Policy::automatic) return options;
    if (const auto name = environment("TURBOTUNE_POLICY")) {
        try {
            options.policy = parse_policy(*name);
        } catch (const InvalidArgument&) {
            throw InvalidArgument("TURBOTUNE_POLICY",
                                  fmt::format("'{}' is none of auto, heuristic, autotune, fixed, profile_only", *name));
        }
    }
    return options;
}

// What images would be compiled with here; empty when there is no compiler.
std::string compiler_identity(DeviceKind kind) {
    try {
        return (kind == DeviceKind::cuda ? nvrtc_compiler() : host_compiler()).identity();
    } catch (const CompileError&) {
        return {};
    }
}

// Why the operation would not run the config; empty when it would.
std::string refusal(const Operation& operation, const Workload& workload, const Config& config,
                    const DeviceInfo& info) {
    try {
        const Verdict verdict = operation.filter(workload, config, info);
        if (verdict.fits) return {};
        return verdict.reason.empty() ? "it does not fit" : verdict.reason;
    } catch (const InvalidArgument& error) {
        return error.what();
    } catch (const Unsupported& error) {
        return error.what();
    }
}

}  // namespace

// Planning takes these locks, one at a time; a plan holds all that its execution needs.
struct Runtime::State {
    explicit State(RuntimeOptions given) : options(with_environment(std::move(given))), kernels(options.store) {}

    RuntimeOptions options;
    KernelCache kernels;
    ConstantCache constants;

    std::mutex device_mutex;
    Device* device = nullptr;

    std::mutex profiles_mutex;
    std::optional<std::vector<LoadedProfile>> profiles;

    std::mutex identity_mutex;
    std::optional<std::string> compiler;
    std::map<std::string, std::string> digests;  // by operation

    struct Chosen {
        Selection selection;
        bool final;  // false: chosen during a capture, to be reconsidered
    };
    std::mutex chosen_mutex;
    std::vector<std::string> order;        // keys of `chosen`, as they came
    std::map<std::string, Chosen> chosen;  // by workload
    bool warned_capture = false;

    std::mutex tuning_mutex;  // one tuning at a time: two would disturb each other's times

    std::optional<Selection> known(const std::string& key) {
        const std::lock_guard lock(chosen_mutex);
        const auto found = chosen.find(key);
        if (found == chosen.end() || !found->second.final) return std::nullopt;
        return found->second.selection;
    }

    // Of two threads that chose at once the first one's choice stands, so that all of them use one config.
    Selection remember(const std::string& key, const Selection& selection, bool final) {
        const std::lock_guard lock(chosen_mutex);
        const auto [place, fresh] = chosen.try_emplace(key, Chosen{selection, final});
        if (fresh)
            order.push_back(key);
        else if (!place->second.final)
            place->second = {selection, final};
        return place->second.selection;
    }

    void warn_capture_once(const Workload& workload) {
        {
            const std::lock_guard lock(chosen_mutex);
            if (warned_capture) return;
            warned_capture = true;
        }
        log(LogLevel::warn, fmt::format("the stream is being captured, so nothing is tuned: the heuristic serves {} "
                                        "(plan it once before the capture)",
                                        workload.to_string()));
    }

    // Compiler identity and template digest.
    std::pair<std::string, std::string> identity(DeviceKind kind, const std::string& operation) {
        const std::lock_guard lock(identity_mutex);
        if (!compiler) compiler = compiler_identity(kind);
        auto found = digests.find(operation);
        if (found == digests.end()) found = digests.emplace(operation, to_hex(template_digest(operation))).first;
        return {*compiler, found->second};
    }
};

Runtime::Runtime(RuntimeOptions options) : state_(std::make_unique<State>(std::move(options))) {}
Runtime::~Runtime() = default;

const RuntimeOptions& Runtime::options() const {
    return state_->options;
}
KernelCache& Runtime::kernels() {
    return state_->kernels;
}

Device& Runtime::device() {
    const std::lock_guard lock(state_->device_mutex);
    if (!state_->device) state_->device = &open_device(state_->options.device);
    return *state_->device;
}

const std::vector<LoadedProfile>& Runtime::profiles() {
    const std::lock_guard lock(state_->profiles_mutex);
    if (!state_->profiles)
        state_->profiles = discover_profiles(state_->options.profiles, state_->options.discover_profiles);
    return *state_->profiles;
}

DevicePointer Runtime::constant(const void* data, std::size_t bytes) {
    return state_->constants.get(device(), data, bytes);
}

namespace {

// One choice for a device, which need not be here.
class Chooser {
  public:
    Chooser(const Operation& operation, const Workload& workload, const DeviceInfo& info)
        : operation_(operation), workload_(workload), info_(info) {}

    Selection heuristic(const std::string& note) const {
        return {operation_.heuristic(workload_, info_), "heuristic", Grade::incompatible, {}, workload_, note};
    }

    Selection fixed(const Config& config) const {
        if (config.empty()) throw InvalidArgument("fixed_config", "policy fixed needs a config");
        const Verdict verdict = operation_.filter(workload_, config, info_);
        if (!verdict.fits)
            throw Unsupported(
                fmt::format("fixed_config {} for {}: {}", config.to_string(), workload_.to_string(), verdict.reason));
        return {config, "fixed", Grade::incompatible, {}, workload_, {}};
    }

    // `identity`: compiler and template digest.
    std::optional<Selection> from_profiles(const std::vector<LoadedProfile>& profiles,
                                           const std::pair<std::string, std::string>& identity, bool exact_only,
                                           std::vector<Workload> neighbours, std::string* why) const {
        SelectionQuery query;
        query.workload = workload_;
        query.neighbours = std::move(neighbours);
        query.device_class = info_.device_class;
        std::tie(query.compiler, query.digest) = identity;
        query.exact_only = exact_only;
        query.refuse = [this](const Workload& workload, const Config& config) {
            return refusal(operation_, workload, config, info_);
        };
        return select_from_profiles(profiles, query, why);
    }

    Selection automatic(const std::vector<LoadedProfile>& profiles,
                        const std::pair<std::string, std::string>& identity) const {
        std::string why;
        if (auto found = from_profiles(profiles, identity, false, operation_.neighbours(workload_), &why))
            return *found;
        return heuristic(why);
    }

  private:
    const Operation& operation_;
    const Workload& workload_;
    const DeviceInfo& info_;
};

void log_choice(const Workload& workload, const Selection& selection) {
    const bool profile = selection.origin == "profile";
    log(LogLevel::info,
        fmt::format("{}: {}{}: {}{}", workload.to_string(), selection.origin,
                    profile ? fmt::format(" ({}, {})", to_string(selection.grade), selection.profile_path) : "",
                    selection.config.to_string(), selection.note.empty() ? "" : " (" + selection.note + ")"));
}

}  // namespace

Selection automatic_selection(const Operation& operation, const Workload& workload, const DeviceInfo& device,
                              const std::vector<LoadedProfile>& profiles, const std::string& compiler,
                              const std::string& digest) {
    return Chooser(operation, workload, device).automatic(profiles, {compiler, digest});
}

Selection Runtime::select(const Operation& operation, const Workload& workload, const Fields& problem,
                          StreamHandle stream) {
    const std::string key = workload.to_string();
    if (auto known = state_->known(key)) return *known;

    const DeviceInfo& info = device().info();
    const Chooser chooser(operation, workload, info);
    const auto remember = [&](const Selection& selection, bool final = true) {
        log_choice(workload, selection);
        return state_->remember(key, selection, final);
    };
    const Policy policy = state_->options.policy;
    if (policy == Policy::heuristic) return remember(chooser.heuristic("policy heuristic"));
    if (policy == Policy::fixed) return remember(chooser.fixed(state_->options.fixed_config));

    const auto identity = state_->identity(info.kind, operation.name());
    std::string why;
    if (policy == Policy::profile_only) {
        if (auto found = chooser.from_profiles(profiles(), identity, true, {}, &why)) return remember(*found);
        throw ProfileMiss(fmt::format("no exact profile holds {} on {}:\n{}", workload.to_string(),
                                      info.device_class.to_string(), why));
    }
    if (policy == Policy::autotune) {
        // No neighbours: a measurement is better than somebody else's winner.
        if (auto found = chooser.from_profiles(profiles(), identity, false, {}, &why)) return remember(*found);
        if (device().is_capturing(stream)) {
            state_->warn_capture_once(workload);
            return remember(chooser.heuristic("not tuned: the stream is being captured"), false);
        }
        const std::lock_guard lock(state_->tuning_mutex);
        if (auto known = state_->known(key)) return *known;
        const AutotuneLimits limits{state_->options.autotune_candidates, state_->options.autotune_budget_ms};
        return remember(autotune(*this, operation, workload, problem, limits));
    }
    return remember(chooser.automatic(profiles(), identity));
}

RuntimeStatistics Runtime::statistics() {
    RuntimeStatistics statistics;
    statistics.kernels = state_->kernels.statistics();
    statistics.store = state_->kernels.store().statistics();
    const std::lock_guard lock(state_->chosen_mutex);
    for (const std::string& key : state_->order) statistics.selections.push_back(state_->chosen.at(key).selection);
    return statistics;
}

}  // namespace turbotune
