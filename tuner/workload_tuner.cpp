#include "workload_tuner.h"

#include <fmt/format.h>

#include <algorithm>

#include "device_failure.h"
#include "turbotune/base/error.h"
#include "turbotune/base/log.h"

namespace turbotune {

namespace {

constexpr int kFirstSamples = 8;

}  // namespace

std::vector<KernelSpec> kernels_of(const SweepItem& item, const Config& config, const DeviceInfo& device) {
    std::vector<KernelSpec> specs;
    std::vector<std::string> seen;
    for (const Fields& problem : item.operation->problems(item.workload, device)) {
        for (KernelSpec& spec : item.operation->kernels(problem, config, device)) {
            std::string name = spec.to_string();
            if (std::find(seen.begin(), seen.end(), name) != seen.end()) continue;
            seen.push_back(name);
            specs.push_back(std::move(spec));
        }
    }
    return specs;
}

std::vector<KernelSpec> test_kernels_of(const SweepItem& item, const DeviceInfo& device) {
    const Operation& operation = *item.operation;
    std::vector<KernelSpec> specs = kernels_of(item, operation.reference_config(device), device);
    for (const Fields& producer : operation.producers(item.workload, device)) {
        const Config config = operation.heuristic(operation.workload_of(producer), device);
        for (KernelSpec& spec : operation.kernels(producer, config, device)) specs.push_back(std::move(spec));
    }
    return specs;
}

WorkloadTuner::WorkloadTuner(const TuningTools& tools, const SweepItem& item, CandidateList list,
                             const ProfileEntry* before)
    : tools_(tools), item_(item), list_(std::move(list)) {
    recall(before);
}

// What profile and journal hold of the candidates; the journal knows more of each.
void WorkloadTuner::recall(const ProfileEntry* before) {
    if (before && !tools_.retest) {
        try {
            if (item_.operation->filter(item_.workload, before->config, tools_.device).fits) before_ = *before;
        } catch (const Error& error) {
            log(LogLevel::debug,
                fmt::format("{}: the profile's winner is passed over: {}", item_.workload.to_string(), error.what()));
        }
    }
    auto remember = [&](const Config& config, bool in_entry, const CandidateOutcome* outcome) {
        for (const Candidate& candidate : known_)
            if (candidate.outcome.config == config) return;
        Candidate candidate{*outcome, in_entry};
        if (const CandidateOutcome* full = tools_.journal.find(item_.workload, config);
            full && full->measured() == outcome->measured())
            candidate.outcome = *full;
        known_.push_back(std::move(candidate));
    };
    if (before_) {
        CandidateOutcome outcome;
        outcome.workload = item_.workload;
        outcome.config = before_->config;
        outcome.latency = before_->latency;
        outcome.parity = before_->parity;
        outcome.registers = before_->registers;
        outcome.local_bytes = before_->local_bytes;
        outcome.shared_bytes = before_->shared_bytes;
        remember(outcome.config, true, &outcome);
        known_.front().outcome.latency = before_->latency;
        for (const MeasuredCandidate& measured : before_->measured) {
            CandidateOutcome other;
            other.workload = item_.workload;
            other.config = measured.config;
            other.latency = measured.latency;
            remember(other.config, true, &other);
        }
        for (const RejectedCandidate& rejected : before_->rejected) {
            if (rejected.reason == "filtered" || may_pass(rejected.reason)) continue;
            CandidateOutcome other;
            other.workload = item_.workload;
            other.config = rejected.config;
            other.reason = rejected.reason;
            other.detail = rejected.detail;
            remember(other.config, true, &other);
        }
    }
    for (const Config& config : list_.configs) {
        bool have =
            std::any_of(known_.begin(), known_.end(), [&](const Candidate& c) { return c.outcome.config == config; });
        if (have) continue;
        const CandidateOutcome* outcome = tools_.retest ? nullptr : tools_.journal.find(item_.workload, config);
        if (outcome && !may_pass(outcome->reason))
            known_.push_back({*outcome, false});
        else
            pending_.push_back(config);
    }
}

bool WorkloadTuner::complete() const {
    return before_ && pending_.empty() &&
           std::all_of(known_.begin(), known_.end(), [](const Candidate& c) { return c.in_entry; });
}

void WorkloadTuner::event(SweepEvent::Kind kind, const Config* config, const std::string& text) {
    SweepEvent event;
    event.kind = kind;
    event.candidate_count = int(list_.configs.size());
    event.workload = item_.workload;
    if (config) {
        auto place = std::find(list_.configs.begin(), list_.configs.end(), *config);
        if (place != list_.configs.end()) event.candidate_index = int(place - list_.configs.begin()) + 1;
        event.text = text.empty() ? config->to_string() : config->to_string() + ": " + text;
    } else {
        event.text = text;
    }
    event.best_ms = best_ms_;
    tools_.tell(event);
}

void WorkloadTuner::settle(CandidateOutcome outcome) {
    tools_.journal.append(outcome);
    if (outcome.measured()) {
        ++result_.measured;
        double ms = outcome.latency.median;
        if (best_ms_ == 0 || ms < best_ms_) best_ms_ = ms;
        event(SweepEvent::Kind::measured, &outcome.config,
              fmt::format("{:.4g} ms (min {:.4g}, p90 {:.4g})", ms, outcome.latency.min, outcome.latency.p90));
    } else {
        ++result_.rejected;
        event(SweepEvent::Kind::rejected, &outcome.config, outcome.reason + ": " + outcome.detail);
    }
    known_.push_back({std::move(outcome), false});
}

// The worker would compile them one after the other.
void WorkloadTuner::compile_test_kernels() {
    if (!tools_.compiler.useful()) return;
    try {
        tools_.compiler.compile(
            {test_kernels_of(item_, tools_.device)}, [](int, const CompileResult&) {}, [&] { return interrupted(); });
    } catch (const Error&) {
        // The worker meets the same failure, and reports it.
    }
}

// False when interrupted.
bool WorkloadTuner::compile_pending() {
    if (pending_.empty() || !tools_.compiler.useful()) return true;
    std::vector<Config> configs, left;
    std::vector<std::vector<KernelSpec>> specs;
    auto reject = [&](const Config& config, const std::string& reason, const std::string& detail) {
        CandidateOutcome outcome;
        outcome.workload = item_.workload;
        outcome.config = config;
        outcome.reason = reason;
        outcome.detail = detail;
        settle(std::move(outcome));
    };
    for (const Config& config : pending_) {
        try {
            specs.push_back(kernels_of(item_, config, tools_.device));
            configs.push_back(config);
        } catch (const Error& error) {
            reject(config, "launch_error", error.what());
        }
    }
    std::vector<bool> good(configs.size(), false);
    tools_.compiler.compile(
        specs,
        [&](int c, const CompileResult& result) {
            const Config& config = configs[std::size_t(c)];
            if (!result.reason.empty()) {
                reject(config, result.reason, result.detail);
                return;
            }
            good[std::size_t(c)] = true;
            if (specs[std::size_t(c)].empty()) return;
            event(SweepEvent::Kind::compiled, &config,
                  fmt::format("{} compiled in {:.0f} ms, {} from the store", result.compiled, result.compile_ms,
                              result.found));
        },
        [&] { return interrupted(); });
    if (interrupted()) return false;
    for (std::size_t c = 0; c < configs.size(); ++c)
        if (good[c]) left.push_back(configs[c]);
    pending_ = std::move(left);
    return true;
}

bool WorkloadTuner::measure_pending() {
    for (const Config& config : pending_) {
        if (interrupted()) return false;
        CandidateOutcome outcome = tools_.worker.measure(config, kFirstSamples);
        if (outcome.reason == "interrupted") return false;
        if (outcome.reason == "no_worker") {
            result_.failure = outcome.detail;
            return false;
        }
        settle(std::move(outcome));
    }
    pending_.clear();
    return !interrupted();
}

// Everything measured; beside an entry that holds already, only its winner and what the entry does not know.
std::vector<std::size_t> WorkloadTuner::entrants() const {
    std::vector<std::size_t> field;
    for (std::size_t i = 0; i < known_.size(); ++i) {
        const Candidate& candidate = known_[i];
        if (!candidate.outcome.measured()) continue;
        if (before_ && candidate.in_entry && candidate.outcome.config != before_->config) continue;
        field.push_back(i);
    }
    // Ties go by list order.
    auto place = [&](std::size_t i) {
        return std::find(list_.configs.begin(), list_.configs.end(), known_[i].outcome.config) - list_.configs.begin();
    };
    std::stable_sort(field.begin(), field.end(), [&](std::size_t a, std::size_t b) { return place(a) < place(b); });
    return field;
}

std::vector<std::vector<double>> WorkloadTuner::round(const std::vector<int>& field, int samples) {
    std::vector<std::vector<double>> taken(field.size());
    std::vector<std::size_t> left(field.size());
    for (std::size_t i = 0; i < left.size(); ++i) left[i] = i;
    // Each time somebody fails the rest are timed anew, so that their samples come from the same turns.
    while (!left.empty() && tools_.interrupts() < 2) {
        std::vector<Config> configs;
        for (std::size_t i : left) configs.push_back(known_[field_[std::size_t(field[i])]].outcome.config);
        RoundAnswer answer = tools_.worker.round(configs, samples);
        result_.failure = answer.no_worker;
        if (answer.interrupted || !answer.no_worker.empty()) break;
        if (answer.failures.empty()) {
            for (std::size_t i = 0; i < left.size(); ++i) taken[left[i]] = std::move(answer.samples[i]);
            break;
        }
        std::vector<bool> out(left.size(), false);
        for (const RoundAnswer::Failure& failure : answer.failures) {
            out[std::size_t(failure.index)] = true;
            CandidateOutcome& outcome = known_[field_[std::size_t(field[left[std::size_t(failure.index)]])]].outcome;
            outcome.reason = failure.reason;
            outcome.detail = "in a later round: " + failure.detail;
            tools_.journal.append(outcome);
            ++result_.rejected;
            event(SweepEvent::Kind::rejected, &outcome.config, outcome.reason + ": " + outcome.detail);
        }
        std::vector<std::size_t> rest;
        for (std::size_t i = 0; i < left.size(); ++i)
            if (!out[i]) rest.push_back(left[i]);
        left = std::move(rest);
    }
    return taken;
}

ProfileEntry WorkloadTuner::make_entry(std::size_t winner, const std::vector<std::size_t>& field,
                                       const SearchResult& search) const {
    const CandidateOutcome& best = known_[winner].outcome;
    ProfileEntry entry;
    entry.workload = item_.workload;
    entry.config = best.config;
    entry.latency = best.latency;
    entry.parity = best.parity;
    entry.registers = best.registers;
    entry.local_bytes = best.local_bytes;
    entry.shared_bytes = best.shared_bytes;
    for (std::size_t i = 0; i < known_.size(); ++i) {
        const CandidateOutcome& outcome = known_[i].outcome;
        if (!outcome.measured()) {
            entry.rejected.push_back({outcome.config, outcome.reason, outcome.detail});
            continue;
        }
        Latency latency = outcome.latency;
        auto timed = std::find(field.begin(), field.end(), i);
        if (timed != field.end())
            if (const Latency& late = search.latencies[std::size_t(timed - field.begin())]; late.samples > 0)
                latency = late;
        if (i == winner)
            entry.latency = latency;
        else
            entry.measured.push_back({outcome.config, latency});
    }
    for (const RejectedCandidate& filtered : list_.filtered) entry.rejected.push_back(filtered);
    return entry;
}

std::string WorkloadTuner::survey_failures() const {
    if (known_.empty()) return "there is no candidate";
    std::string text = fmt::format("none of {} candidates survived (--retest tries them again)", known_.size());
    const CandidateOutcome& first = known_.front().outcome;
    return text + fmt::format("; {}: {}: {}", first.config.to_string(), first.reason, first.detail);
}

// Seconds since it was last asked.
double WorkloadTuner::lap() {
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double> passed = now - lap_;
    lap_ = now;
    return passed.count();
}

TuningResult WorkloadTuner::run() {
    lap();
    auto end = [&](TuningEnd how, std::string failure = "") {
        result_.end = how;
        result_.blocked = false;
        result_.failure = std::move(failure);
        return result_;
    };
    auto blocked = [&](std::string failure) {
        end(TuningEnd::failed, std::move(failure));
        result_.blocked = true;
        return result_;
    };
    bool anything = !pending_.empty() || !entrants().empty();
    if (anything) {
        compile_test_kernels();
        if (interrupted()) return end(TuningEnd::interrupted);
        OpenedWorkload opened = tools_.worker.open(item_.workload, kDataSeed);
        result_.stages.open = lap();
        if (opened.failure == "interrupted") return end(TuningEnd::interrupted);
        if (!opened.failure.empty()) return blocked(opened.failure);
        result_.rotated_bytes = opened.rotated_bytes;
        result_.l2_bytes = opened.l2_bytes;
        event(SweepEvent::Kind::started, nullptr, opened.memory);
        const bool compiled = compile_pending();
        result_.stages.compile = lap();
        const bool measured = compiled && measure_pending();
        result_.stages.check = lap();
        if (!measured) return result_.failure.empty() ? end(TuningEnd::interrupted) : blocked(result_.failure);
    }

    field_ = entrants();
    if (field_.empty()) return end(TuningEnd::failed, survey_failures());
    SearchResult search;
    search.latencies.resize(field_.size());
    bool only_the_winner = before_ && field_.size() == 1 && known_[field_[0]].in_entry;
    if (only_the_winner) {
        search.winner = 0;  // the new ones were all rejected: the entry's own latency stands
    } else {
        std::vector<SearchCandidate> candidates;
        for (std::size_t i : field_) {
            const CandidateOutcome& outcome = known_[i].outcome;
            // What the entry says may be of a throttled device, or of another compiler.
            candidates.push_back({outcome.registers, known_[i].in_entry ? 0 : outcome.latency.median,
                                  list_.incumbent == outcome.config});
        }
        search = search_fastest(*this, candidates);
        result_.stages.search = lap();
        if (search.interrupted || tools_.interrupts() >= 2) return end(TuningEnd::interrupted);
        if (!result_.failure.empty()) return blocked(result_.failure);
        if (search.winner < 0) return end(TuningEnd::failed, survey_failures());
    }
    std::size_t winner = field_[std::size_t(search.winner)];
    result_.entry = make_entry(winner, field_, search);
    best_ms_ = result_.entry.latency.median;
    event(SweepEvent::Kind::workload_finished, &result_.entry.config,
          fmt::format("{:.4g} ms{}", best_ms_,
                      !list_.incumbent                           ? ""
                      : *list_.incumbent == result_.entry.config ? ", as in the profile known before"
                                                                 : ", in place of " + list_.incumbent->to_string()));
    return end(TuningEnd::finished);
}

}  // namespace turbotune
