// The options of tuning, and their translation for the sweep.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "turbotune/tuner/sweep.h"
#include "workload_options.h"

namespace turbotune::cli {

struct TuneOptions {
    WorkloadOptions workloads;
    std::string output, device, devices, shard;
    int jobs = 0;
    double time_budget_s = 0;
    bool retest = false, verbose = false, dry_run = false, json = false;

    void add_to(CLI::App& app);
    // Throws InvalidArgument naming the flag.
    SweepOptions sweep_options() const;
};

}  // namespace turbotune::cli
