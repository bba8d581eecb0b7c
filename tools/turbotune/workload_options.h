// The options that say which workloads: a preset, operations, and axes of it replaced.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "turbotune/tuner/sweep.h"

namespace turbotune::cli {

struct WorkloadOptions {
    std::string preset = "standard", operations;
    std::map<std::string, std::string> axes;  // by flag: "--lengths" -> "128,512"

    // `preset_help` tells what --preset means to the command.
    void add_to(CLI::App& app, const std::string& group, const std::string& preset_help);
    // Throws InvalidArgument naming the flag.
    void apply(SweepOptions* options) const;
};

}  // namespace turbotune::cli
