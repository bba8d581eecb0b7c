// The options of `turbotune bench`, and the problems that they name.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

#include "turbotune/ops/operation.h"

namespace turbotune::cli {

struct BenchCommand {
    std::string operation = "disentangled_attention";
    std::map<std::string, std::string> values;  // by flag: "--length" -> "128,512"
    std::vector<std::string> set;               // "name=value" of any other field
    bool mask = false;
    std::int64_t tokens = 0;  // rows in all; the batch follows from the length
    std::string config, policy, profile, device = "auto";
    int repeats = 50;
    double peak_tflops = 0, peak_gigabytes = 0;
    bool json = false;

    void add_to(CLI::App& app);
    // Every combination of the lists, later flags varying fastest. Throws InvalidArgument naming the flag.
    std::vector<Fields> problems(const Operation& operation) const;
    RuntimeOptions runtime_options() const;
};

}  // namespace turbotune::cli
