#include "tune_options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <climits>

#include "output.h"
#include "turbotune/base/error.h"

namespace turbotune::cli {
namespace {

// A flag replaces the preset's values of one axis of the operations' workloads.
struct AxisFlag {
    const char* flag;
    const char* axis;
    const char* type;
    const char* help;
};

const AxisFlag kAxisFlags[] = {
    {"--lengths", "length", "N,N",
     "Length families, each an upper bound of the lengths that it serves: 64,128,384,512,..."},
    {"--head-dims", "head_dim", "N,N", "Head dimensions: 32,64,128"},
    {"--batch-heads", "batch_heads", "N,N", "Occupancy, batch times heads: 8,32"},
    {"--dtypes", "precision", "P,P",
     "Precisions: half (fp16 and bf16 alike), fp32_strict, fp32_fast (tf32); fp16, bf16, fp32 and tf32 are understood"},
    {"--layouts", "layout", "L,L", "Layouts, such as padded,padded_masked,packed"},
    {"--passes", "pass", "P,P", "Passes, such as inference,training (all of training)"},
    {"--dropout", "dropout", "on|off", "Dropout of the training passes"},
    {"--relative-modes", "relative", "M,M", "Position terms, such as c2p_p2c,c2p,p2c,none"},
};

// The operations that `names` chooses; all when it is empty. Throws InvalidArgument listing the names.
std::vector<const Operation*> chosen_operations(const std::vector<std::string>& names) {
    if (names.empty()) return operations();
    std::vector<const Operation*> chosen;
    for (const std::string& name : names) chosen.push_back(&find_operation(name));
    return chosen;
}

void check_axis(const AxisFlag& flag, const std::vector<const Operation*>& chosen) {
    for (const Operation* operation : chosen) {
        const auto axes = operation->axes();
        const bool known =
            std::any_of(axes.begin(), axes.end(), [&](const auto& axis) { return axis.first == flag.axis; });
        if (!known)
            throw InvalidArgument(flag.flag, fmt::format("{} has no axis {}; choose other operations with --ops",
                                                         operation->name(), flag.axis));
    }
}

// Values that an operation refuses, said with the flag's name.
void check_values(const WorkloadQuery& query, const std::vector<const Operation*>& chosen) {
    try {
        for (const Operation* operation : chosen) operation->workloads(query);
    } catch (const InvalidArgument& error) {
        for (const AxisFlag& flag : kAxisFlags)
            if (error.argument() == flag.axis)
                throw InvalidArgument(flag.flag, std::string(error.what()).substr(error.argument().size() + 2));
        throw;
    }
}

void parse_shard(const std::string& text, SweepOptions* options) {
    const char* const end = text.data() + text.size();
    int shard = 0, shards = 0;
    const auto first = std::from_chars(text.data(), end, shard);
    bool good = first.ec == std::errc() && first.ptr != end && *first.ptr == '/';
    if (good) {
        const auto second = std::from_chars(first.ptr + 1, end, shards);
        good = second.ec == std::errc() && second.ptr == end;
    }
    if (!good || shard < 1 || shard > shards)
        throw InvalidArgument("--shard", fmt::format("'{}' is not K/N with 1 <= K <= N, such as 2/8", text));
    options->shard = shard;
    options->shards = shards;
}

std::string this_program() {
    char path[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
    if (length <= 0)
        throw Error(ErrorCode::invalid_argument,
                    "/proc/self/exe: cannot tell which program this is; is /proc mounted?");
    return {path, static_cast<std::size_t>(length)};
}

}  // namespace

void TuneOptions::add_to(CLI::App& app) {
    const auto group = [](CLI::Option* option, const char* type, const char* name) {
        option->type_name(type)->group(name);
    };
    group(app.add_option("--preset", preset,
                         "Which workloads: quick (a few, minutes), standard (default), exhaustive (all, hours)"),
          "quick|standard|exhaustive", "What to tune");
    group(app.add_option("--ops", operations, "Operations; default all"), "A,B", "What to tune");
    for (const AxisFlag& flag : kAxisFlags)
        group(app.add_option(flag.flag, axes[flag.flag], flag.help), flag.type, "What to tune");
    group(app.add_option("--shard", shard,
                         "Take every N-th workload, beginning at the K-th: one share of N machines' work"),
          "K/N", "What to tune");
    group(app.add_option("--device", device, "auto (first GPU, else the CPU; default), cpu, or a GPU's number"),
          "N|cpu|auto", "How");
    group(app.add_option("--jobs", jobs, "Compile threads; default by cores and memory"), "N", "How");
    group(app.add_option("--time-budget", time_budget_s,
                         "Stop after the workload that passes S seconds; a later run goes on"),
          "S", "How");
    app.add_flag("--retest", retest, "Measure again what is already in the profile")->group("How");
    app.add_flag("--dry-run", dry_run, "List the workloads with their candidate counts and stop")->group("How");
    group(app.add_option("--output", output,
                         "The profile to write; default: one that programs on this device find by themselves"),
          "FILE", "Output");
    app.add_flag("--verbose", verbose, "Print every measured candidate")->group("Output");
    app.add_flag("--json", json, "One JSON object on standard output; progress goes to standard error")
        ->group("Output");
}

SweepOptions TuneOptions::sweep_options() const {
    SweepOptions options;
    options.query.preset = parse_preset(preset);
    if (!operations.empty()) options.operations = split_list("--ops", operations);
    const auto chosen = chosen_operations(options.operations);
    for (const AxisFlag& flag : kAxisFlags) {
        const std::string& values = axes.at(flag.flag);
        if (values.empty()) continue;
        check_axis(flag, chosen);
        options.query.axes[flag.axis] = split_list(flag.flag, values);
    }
    check_values(options.query, chosen);
    if (jobs < 0) throw InvalidArgument("--jobs", fmt::format("{} is not a number of threads", jobs));
    if (!(time_budget_s >= 0))
        throw InvalidArgument("--time-budget", fmt::format("{} is not a number of seconds", time_budget_s));
    if (!shard.empty()) parse_shard(shard, &options);
    options.device = device;
    options.output = output;
    options.jobs = jobs;
    options.time_budget_s = time_budget_s;
    options.retest = retest;
    options.worker_program = this_program();
    return options;
}

}  // namespace turbotune::cli
