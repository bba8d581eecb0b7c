// What the sweep asks of its worker, in its own words. Every failure of a candidate comes back as an outcome; a worker
// that died is started again and given the workload again at the next request.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "turbotune/kernel/store.h"
#include "turbotune/tuner/journal.h"
#include "turbotune/tuner/worker_process.h"

namespace turbotune {

struct OpenedWorkload {
    std::string failure;  // why the workload cannot be measured at all; empty: it can
    std::string memory;   // MemoryPlan::to_string()
    double rotated_bytes = 0, l2_bytes = 0;
};

struct RoundAnswer {
    struct Failure {
        int index;
        std::string reason, detail;
    };
    std::vector<std::vector<double>> samples;  // per config; what was taken before a failure is kept
    std::vector<Failure> failures;
    bool interrupted = false;
    std::string no_worker;  // why no worker could be had: no candidate's fault
};

class WorkerClient {
  public:
    WorkerClient(std::string program, std::string device, Store::Options store, const std::atomic<int>* interrupts);

    // Without `timing` only check() may follow.
    OpenedWorkload open(const Workload& workload, std::uint64_t seed, bool timing = true);
    // Parity, then a first timing of `samples` samples. The reason is "interrupted" or "no_worker" when nothing was
    // learnt of the candidate.
    CandidateOutcome measure(const Config& config, int samples);
    // Parity alone; the outcome's latency stays empty. Reasons as of measure().
    CandidateOutcome check(const Config& config);
    RoundAnswer round(const std::vector<Config>& configs, int samples);
    void close();

    // Starts after the first.
    int restarts() const { return process_.starts() > 1 ? process_.starts() - 1 : 0; }

  private:
    Exchange ask(const std::string& request, double silence_s);
    // False with the reason when there is no worker that has the workload.
    bool ready(std::string* why);
    CandidateOutcome ask_outcome(const std::string& request, const Config& config);
    double patience(double execution_ms) const;

    WorkerProcess process_;
    Store::Options store_;
    const std::atomic<int>* interrupts_;
    bool greeted_ = false, opened_ = false;
    Workload workload_;
    std::uint64_t seed_ = 0;
    bool timing_ = true;
    double reference_ms_ = 0;
    OpenedWorkload opened_as_;
};

// Seconds of silence after which a worker is taken for hung, before what the workload itself takes is added: 30, or
// TURBOTUNE_WATCHDOG_S.
double watchdog_seconds();

}  // namespace turbotune
