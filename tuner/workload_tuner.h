// One workload from its candidates to its winner.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "candidate_list.h"
#include "compile_ahead.h"
#include "profile_file.h"
#include "turbotune/tuner/journal.h"
#include "turbotune/tuner/search.h"
#include "turbotune/tuner/sweep.h"
#include "worker_client.h"

namespace turbotune {

// What a sweep lends to the tuning of each workload.
struct TuningTools {
    const DeviceInfo& device;
    WorkerClient& worker;
    CompileAhead& compiler;
    Journal& journal;
    std::function<void(SweepEvent)> tell;  // adds the workload's place in the sweep
    std::function<int()> interrupts;       // so far
    bool retest = false;
};

enum class TuningEnd { finished, failed, interrupted, nothing_to_measure };

struct TuningResult {
    TuningEnd end = TuningEnd::failed;
    ProfileEntry entry;              // when finished
    std::string failure;             // when failed
    bool blocked = false;            // failed, and no candidate is to blame: there was no worker, or no test data
    int measured = 0, rejected = 0;  // candidates that were new
    double rotated_bytes = 0, l2_bytes = 0;
    SweepStages stages;
};

class WorkloadTuner : private CandidateTimer {
  public:
    // `before` is the profile's entry of the workload, or nullptr.
    WorkloadTuner(const TuningTools& tools, const SweepItem& item, CandidateList list, const ProfileEntry* before);

    // Candidates of which neither the profile nor the journal knows.
    int pending() const { return int(pending_.size()); }
    // Nothing to measure: the entry covers every candidate.
    bool complete() const;

    TuningResult run();

  private:
    struct Candidate {
        CandidateOutcome outcome;
        bool in_entry = false;
    };

    void recall(const ProfileEntry* before);
    bool interrupted() override { return tools_.interrupts() >= 1; }
    std::vector<std::vector<double>> round(const std::vector<int>& field, int samples) override;
    void compile_test_kernels();
    bool compile_pending();
    bool measure_pending();
    void settle(CandidateOutcome outcome);
    void event(SweepEvent::Kind kind, const Config* config, const std::string& text);
    std::vector<std::size_t> entrants() const;
    ProfileEntry make_entry(std::size_t winner, const std::vector<std::size_t>& field,
                            const SearchResult& search) const;
    std::string survey_failures() const;
    double lap();

    const TuningTools& tools_;
    SweepItem item_;
    CandidateList list_;
    std::optional<ProfileEntry> before_;  // when its winner may still run
    std::vector<Candidate> known_;        // outcomes so far, in list order after run()
    std::vector<Config> pending_;
    std::vector<std::size_t> field_;  // of the search: indices into known_
    TuningResult result_;
    double best_ms_ = 0;
    std::chrono::steady_clock::time_point lap_ = std::chrono::steady_clock::now();
};

// The kernels that a config needs over a whole workload, each once.
std::vector<KernelSpec> kernels_of(const SweepItem& item, const Config& config, const DeviceInfo& device);
// Those that its test cases take: of the reference, and of what produces inputs.
std::vector<KernelSpec> test_kernels_of(const SweepItem& item, const DeviceInfo& device);

inline constexpr std::uint64_t kDataSeed = 1;

}  // namespace turbotune
