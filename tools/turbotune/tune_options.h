// The options of tuning, and their translation for the sweep.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "turbotune/tuner/sweep.h"

namespace turbotune::cli {

struct TuneOptions {
    std::string preset = "standard", output, operations, device = "auto", shard;
    std::map<std::string, std::string> axes;  // by flag: "--lengths" -> "128,512"
    int jobs = 0;
    double time_budget_s = 0;
    bool retest = false, verbose = false, dry_run = false, json = false;

    void add_to(CLI::App& app);
    // Throws InvalidArgument naming the flag.
    SweepOptions sweep_options() const;
};

}  // namespace turbotune::cli
