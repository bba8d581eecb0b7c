// The runtime: one device, its kernels, its profiles and the policy. Shared freely between threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "turbotune/device/device.h"
#include "turbotune/kernel/kernel_cache.h"
#include "turbotune/profile/selection.h"

namespace turbotune {

class Operation;

struct RuntimeOptions {
    std::string device = "auto";               // "auto", "cpu", "0", "1", ...
    Policy policy = Policy::automatic;         // TURBOTUNE_POLICY when not set here
    std::vector<std::string> profiles;         // explicit paths, preferred to those discovered
    bool discover_profiles = true;
    Config fixed_config;                       // policy fixed
    int autotune_candidates = 4;               // policy autotune: how many, and for how long per workload
    double autotune_budget_ms = 2000;
    Store::Options store;
};

struct RuntimeStatistics {
    KernelCacheStatistics kernels;
    StoreStatistics store;
    std::vector<Selection> selections;         // one per workload planned so far, with its origin and grade
};

class Runtime {
  public:
    // Touches no file and no driver. The device is opened, and profiles are read, on first use.
    explicit Runtime(RuntimeOptions options = {});
    ~Runtime();
    Runtime(const Runtime&) = delete;
    Runtime& operator=(const Runtime&) = delete;

    const RuntimeOptions& options() const;
    Device& device();
    KernelCache& kernels();
    const std::vector<LoadedProfile>& profiles();

    // The config for a problem of this workload, by policy. An autotune run measures the workload's timing case and
    // picks only what also plans `problem`; while `stream` is being captured nothing is tuned (heuristic, one warning).
    // Throws ProfileMiss under profile_only, Unsupported or InvalidArgument for a fixed config that may not run.
    Selection select(const Operation& operation, const Workload& workload, const Fields& problem, StreamHandle stream = nullptr);

    // Constant tables in device memory: the same bytes give the same pointer, which lives as long as the runtime.
    // Legal during stream capture.
    DevicePointer constant(const void* data, std::size_t bytes);

    RuntimeStatistics statistics();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

// What policy `auto` picks on a device that need not be here. `compiler` and `digest` as of compare(). Throws
// Unsupported when no config of the operation runs there.
Selection automatic_selection(const Operation& operation, const Workload& workload, const DeviceInfo& device,
                              const std::vector<LoadedProfile>& profiles, const std::string& compiler,
                              const std::string& digest);

}  // namespace turbotune
