// A sweep: presets -> workloads -> candidates -> filter -> compile ahead -> parity -> time -> winner -> saved.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "turbotune/ops/operation.h"
#include "turbotune/profile/selection.h"

namespace turbotune {

struct SweepOptions {
    WorkloadQuery query;
    std::vector<std::string> operations;  // empty: all
    std::string device = "auto";          // "auto", "cpu" or an ordinal
    std::vector<std::string> devices;     // instead of `device`: several of one class, one worker each
    std::string output;                   // profile path; empty: default_profile_path()
    std::vector<LoadedProfile> profiles;  // whose winners are measured, too, and stay unless clearly beaten
    int jobs = 0;                         // compile threads; 0: compile_jobs()
    double time_budget_s = 0;             // 0: none; else stop after the workload that passes it
    int shard = 1, shards = 1;            // every shards-th workload, beginning at the shard-th (1-based)
    bool retest = false;                  // measure again what the journal or the profile already holds
    std::string worker_program;           // the executable whose `worker --device D` subcommand runs worker_main
    std::string command_line;             // recorded as provenance
    Store::Options store;
};

struct PlannedWorkload {
    Workload workload;
    int candidates = 0;       // that pass the filter
    int filtered = 0;         // turned down by it
    std::string unavailable;  // why the workload cannot be tuned here; candidates is then 0
};
// What a sweep would do on its (first) device. Compiles and measures nothing; opens the device only to learn what it
// is.
std::vector<PlannedWorkload> plan_sweep(const SweepOptions& options,
                                        const std::vector<const Operation*>& known = operations());

struct SweepEvent {
    enum class Kind {
        started,  // text: where things are saved; before the first measurement, and when it changes, the memory plan
        workload_started,
        workload_resumed,      // nothing to measure: the profile already holds it
        workload_skipped,      // unavailable; text: why
        compiled,              // candidate compiled ahead; text: from the compiler or the store, ms
        rejected,              // text: reason and detail
        measured,              // text: config, latency
        workload_finished,     // text: winner
        workload_failed,       // no candidate survived; text: why
        workload_handed_over,  // the device could not begin it, another one takes it; text: why
        saved,                 // text: profile path; a large profile is not saved after each workload, but at the end
    };
    Kind kind;
    int workload_index = 0, workload_count = 0;  // 1-based
    int candidate_index = 0, candidate_count = 0;
    Workload workload;
    std::string device;  // "cpu" or an ordinal: where the workload is measured
    std::string text;
    double best_ms = 0;  // 0: none yet
    double eta_s = -1;   // -1: not known yet
};
// Called by one thread at a time, not always the same one.
using SweepListener = std::function<void(const SweepEvent&)>;

// Where the time of a sweep went, in seconds, summed over its devices.
struct SweepStages {
    double open = 0;     // test data and references, with waiting for their kernels
    double compile = 0;  // waiting for kernels that were not ready
    double check = 0;    // parity, and each candidate's first timing
    double search = 0;   // timing until the winner is known

    void add(const SweepStages& other) {
        open += other.open, compile += other.compile, check += other.check, search += other.search;
    }
};

struct SweepReport {
    int workloads = 0, measured = 0, resumed = 0, skipped = 0, failed = 0;
    int candidates_measured = 0, candidates_rejected = 0, worker_restarts = 0;
    std::vector<std::string> failures;  // one line each
    bool interrupted = false, out_of_time = false;
    std::string profile_path;
    std::vector<std::string> devices;  // "cpu" or ordinals
    double seconds = 0;
    SweepStages stages;
};

// `interrupts` counts Ctrl-C: 1 = finish the current measurement, save, return with interrupted; 2 = at once. Throws
// InvalidArgument (bad query, devices of different classes, foreign or broken profile at the output path), DeviceError
// (no usable device), and Error when the profile cannot be written. Several devices take the workloads one by one, each
// the next as soon as it is free, and write one profile.
// `known` are the operations that exist; the worker program must know them too.
SweepReport sweep(const SweepOptions& options, const SweepListener& listener,
                  const std::atomic<int>* interrupts = nullptr,
                  const std::vector<const Operation*>& known = operations());

// user_profile_directory()/<device class>.json; <device class>-shard-K-of-N.json for one of several shards, so that no
// two of them write one file.
std::string default_profile_path(const DeviceInfo& device, int shard = 1, int shards = 1);

// The worker process: serves requests from standard input until it closes. Returns the exit code. `store` holds until
// the parent names its own.
int worker_main(const std::string& device, const Store::Options& store,
                const std::vector<const Operation*>& known = operations());

}  // namespace turbotune
