#include "tune_options.h"

#include <fmt/format.h>

#include "device_list.h"
#include "output.h"
#include "shard.h"
#include "turbotune/base/error.h"
#include "turbotune/base/files.h"
#include "turbotune/device/device.h"

namespace turbotune::cli {

void TuneOptions::add_to(CLI::App& app) {
    const auto group = [](CLI::Option* option, const char* type, const char* name) {
        option->type_name(type)->group(name);
    };
    workloads.add_to(app, "What to tune",
                     "Which workloads: quick (12), standard (84, default), exhaustive (1134; 13 minutes on an "
                     "H200)");
    group(app.add_option("--shard", shard,
                         "Take every N-th workload, beginning at the K-th: one share of N machines' work; auto: by the "
                         "rank that Slurm, Open MPI or PMI gives"),
          "K/N|auto", "What to tune");
    group(app.add_option("--device", device, "auto (first GPU, else the CPU; default), cpu, or a GPU's number"),
          "N|cpu|auto", "How");
    group(app.add_option("--devices", devices, "Several GPUs of one class side by side: all, or their numbers"),
          "all|N,N", "How");
    group(app.add_option("--jobs", jobs, "Compile threads; default by cores and memory"), "N", "How");
    group(app.add_option("--time-budget", time_budget_s,
                         "Stop after the workload that passes S seconds; a later run goes on"),
          "S", "How");
    app.add_flag("--retest", retest, "Measure again what is already in the profile")->group("How");
    app.add_flag("--dry-run", dry_run, "List the workloads with their candidate counts and stop")->group("How");
    group(app.add_option("--output", output,
                         "The profile to write; default: one that programs on this device find by themselves, one for "
                         "each shard"),
          "FILE", "Output");
    app.add_flag("--verbose", verbose, "Print every measured candidate")->group("Output");
    app.add_flag("--json", json, "One JSON object on standard output; progress goes to standard error")
        ->group("Output");
}

SweepOptions TuneOptions::sweep_options() const {
    SweepOptions options;
    workloads.apply(&options);
    if (jobs < 0 || jobs > 1024)
        throw InvalidArgument("--jobs", fmt::format("{} is not a number of threads from 0 to 1024", jobs));
    if (!(time_budget_s >= 0))
        throw InvalidArgument("--time-budget", fmt::format("{} is not a number of seconds", time_budget_s));
    if (!shard.empty()) {
        const Shard share = parse_shard(shard, environment);
        options.shard = share.index;
        options.shards = share.count;
    }
    options.device = device.empty() ? "auto" : device;
    if (!devices.empty()) {
        if (!device.empty()) throw InvalidArgument("--devices", "and --device exclude each other");
        std::string why_no_gpu;
        const std::vector<DeviceInfo> present = list_devices(&why_no_gpu);
        options.devices = choose_devices(devices, present, why_no_gpu);
        options.device = options.devices.front();
    }
    options.output = output;
    options.jobs = jobs;
    options.time_budget_s = time_budget_s;
    options.retest = retest;
    options.worker_program = this_program();
    return options;
}

}  // namespace turbotune::cli
