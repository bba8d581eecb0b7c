// Fills a store with the kernels that programs on a device will ask for. The device need not be here: an image for a
// cluster is built without a GPU.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "turbotune/kernel/store.h"
#include "turbotune/ops/operation.h"

namespace turbotune {

struct WarmOptions {
    WorkloadQuery query;
    std::vector<std::string> operations;  // empty: all
    std::vector<DeviceInfo> devices;      // several of one target share their kernels
    std::vector<LoadedProfile> profiles;  // as the programs will find them
    bool all_candidates = false;          // and the reference kernels: what a sweep of every candidate compiles
    int jobs = 0;                         // compile threads; 0: compile_jobs()
    Store::Options store;
};

// What a device's workloads run with.
struct WarmDevice {
    DeviceInfo device;
    int from_profiles = 0, from_heuristic = 0;  // workloads
    int unavailable = 0;                        // workloads that no kernel serves there
    std::string why_unavailable;                // of the last of them
};

struct WarmFailure {
    std::string kernel;  // KernelSpec::to_string()
    std::string config, why;
};

struct WarmReport {
    std::vector<WarmDevice> devices;
    int workloads = 0;            // of the query
    int kernels = 0;              // distinct ones
    int compiled = 0, found = 0;  // found: they were in the store before
    double compile_ms = 0;        // sum over the compiled
    std::vector<WarmFailure> failures;
    std::string not_kept;  // why the store does not hold all that was compiled; empty: it does
    bool interrupted = false;
    std::string directory;
    double seconds = 0;
};

struct WarmProgress {
    int done = 0, count = 0;  // kernels
    std::string kernel;       // the one just finished
    double eta_s = -1;        // -1: not known yet
};
using WarmListener = std::function<void(const WarmProgress&)>;  // called by one thread at a time

// Keys are those that KernelCache uses on such a device, so a program there loads what was compiled here, provided that
// it has the same compiler build and templates. A kernel that does not compile costs only itself. `interrupts` > 0 ends
// the work after the compiles that are under way. Throws CompileError (no compiler for a device), StoreError (no folder
// to keep anything in) and InvalidArgument (an unknown operation or axis).
WarmReport warm_store(const WarmOptions& options, const WarmListener& listener,
                      const std::atomic<int>* interrupts = nullptr,
                      const std::vector<const Operation*>& known = operations());

}  // namespace turbotune
