#include "workload_options.h"

#include <fmt/format.h>

#include <algorithm>

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

}  // namespace

void WorkloadOptions::add_to(CLI::App& app, const std::string& group, const std::string& preset_help) {
    const auto add = [&](const char* flag, std::string& value, const std::string& help, const char* type) {
        app.add_option(flag, value, help)->type_name(type)->group(group);
    };
    add("--preset", preset, preset_help, "quick|standard|exhaustive");
    add("--ops", operations, "Operations; default all", "A,B");
    for (const AxisFlag& flag : kAxisFlags) add(flag.flag, axes[flag.flag], flag.help, flag.type);
}

void WorkloadOptions::apply(SweepOptions* options) const {
    options->query.preset = parse_preset(preset);
    if (!operations.empty()) options->operations = split_list("--ops", operations);
    const auto chosen = chosen_operations(options->operations);
    for (const AxisFlag& flag : kAxisFlags) {
        const std::string& values = axes.at(flag.flag);
        if (values.empty()) continue;
        check_axis(flag, chosen);
        options->query.axes[flag.axis] = split_list(flag.flag, values);
    }
    check_values(options->query, chosen);
}

}  // namespace turbotune::cli
