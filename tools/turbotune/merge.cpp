#include "turbotune/tuner/merge.h"

#include <fmt/format.h>

#include <memory>
#include <optional>

#include "commands.h"
#include "exit_code.h"
#include "output.h"
#include "table.h"
#include "workload_options.h"

namespace turbotune::cli {
namespace {

struct MergeCommand {
    std::string output;
    std::vector<std::string> inputs;
    WorkloadOptions workloads;
    bool expected = false;  // workloads were named
    bool json = false;
};

Json merge_json(const MergeCommand& options, const MergeReport& report, const std::optional<Coverage>& covered) {
    Json out;
    out["profile"] = options.output;
    out["device"] = {{"name", report.profile.device_name}, {"class", report.profile.device_class.to_string()}};
    out["compiler"] = report.profile.compiler;
    out["entries"] = report.profile.entries.size();
    out["inputs"] = Json::array();
    for (const MergeSource& each : report.sources)
        out["inputs"].push_back({{"path", each.path}, {"entries", each.entries}, {"kept", each.kept}});
    out["conflicts"] = Json::array();
    for (const MergeConflict& each : report.conflicts)
        out["conflicts"].push_back({{"workload", workload_json(each.workload)},
                                    {"kept", each.kept},
                                    {"dropped", each.dropped},
                                    {"kept_ms", each.kept_ms},
                                    {"dropped_ms", each.dropped_ms},
                                    {"same_config", each.same_config}});
    if (!covered) return out;
    out["workloads"] = covered->workloads;
    out["held"] = covered->held;
    out["unavailable"] = covered->unavailable;
    out["missing"] = Json::array();
    for (const MissingWorkload& each : covered->missing)
        out["missing"].push_back({{"workload", workload_json(each.workload)},
                                  {"shard", each.shard.empty() ? Json(nullptr) : Json(each.shard)}});
    return out;
}

void print_text(const MergeCommand& options, const MergeReport& report, const std::optional<Coverage>& covered) {
    Table table({"input", ">entries", ">kept"});
    for (const MergeSource& each : report.sources)
        table.add({each.path, std::to_string(each.entries), std::to_string(each.kept)});
    fmt::print("{}", table.to_string());
    for (const MergeConflict& each : report.conflicts)
        fmt::print("in several: {}: {} ms of {} kept, not {} ms of {}{}\n", each.workload.to_string(),
                   milliseconds(each.kept_ms), each.kept, milliseconds(each.dropped_ms), each.dropped,
                   each.same_config ? " (the same config)" : "");
    if (covered) {
        for (const MissingWorkload& each : covered->missing)
            fmt::print("missing: {}{}\n", each.workload.to_string(),
                       each.shard.empty() ? "" : fmt::format(" (shard {})", each.shard));
        fmt::print("{} of {} workloads held, {} missing, {} not available on this device class\n", covered->held,
                   covered->workloads, covered->missing.size(), covered->unavailable);
    }
    fmt::print("profile: {} ({} entries)\n", options.output, report.profile.entries.size());
}

int merge(const MergeCommand& options) {
    SweepOptions expected;
    options.workloads.apply(&expected);  // a bad flag is refused before anything is written
    const MergeReport report = merge_files(options.output, options.inputs);
    std::optional<Coverage> covered;
    if (options.expected) covered = coverage(report.profile, expected);
    if (options.json)
        print_json(merge_json(options, report, covered));
    else
        print_text(options, report, covered);
    return covered && !covered->missing.empty() ? kFailures : kDone;
}

}  // namespace

void add_merge(CLI::App& app, Action& chosen) {
    auto options = std::make_shared<MergeCommand>();
    CLI::App* command = app.add_subcommand(
        "merge",
        "Join profiles of one device class, such as the shards of a sweep\n"
        "Profiles of another device class, compiler or templates are refused, naming the difference. Where several "
        "hold "
        "a workload the lower median wins, of equal ones the first named. What OUT already holds stays, as the first "
        "input: the same merge again changes nothing. Told what must be there (--preset and its "
        "flags), it names the workloads that nobody measured; exit 1 when there is one.");
    command->add_option("OUT", options->output, "The profile to write")->required();
    command->add_option("IN", options->inputs, "Profiles to join")->required();
    command->add_flag("--json", options->json, "One JSON object with lists `inputs`, `conflicts` and `missing`");
    options->workloads.add_to(*command, "What must be there", "The workloads of a preset: quick, standard, exhaustive");
    command->footer(
        "Examples:\n"
        "  turbotune merge all.json shard-*.json\n"
        "  turbotune merge all.json shard-*.json --preset exhaustive");
    command->callback([options, command, &chosen] {
        for (const CLI::Option* option : command->get_options())
            if (option->get_group() == "What must be there" && option->count() > 0) options->expected = true;
        chosen = [options] { return merge(*options); };
    });
}

}  // namespace turbotune::cli
