#include "turbotune/tuner/retarget.h"

#include <fmt/format.h>

#include <memory>

#include "commands.h"
#include "exit_code.h"
#include "interrupts.h"
#include "output.h"
#include "progress.h"
#include "table.h"
#include "turbotune/base/error.h"
#include "turbotune/base/files.h"

namespace turbotune::cli {
namespace {

struct RetargetCommand {
    RetargetOptions retarget;
    bool json = false;
};

Json report_json(const RetargetCommand& options, const RetargetReport& report) {
    Json out;
    out["input"] = options.retarget.input;
    out["profile"] = report.profile_path;
    out["device"] = device_json(report.device);
    out["differences"] = report.differences;
    out["entries"] = report.entries;
    out["kept"] = report.kept;
    out["already_there"] = report.already;
    out["configs_checked"] = report.configs;
    out["configs_turned_down"] = report.configs_turned_down;
    out["interrupted"] = report.interrupted;
    out["seconds"] = report.seconds;
    out["dropped"] = Json::array();
    for (const DroppedEntry& each : report.dropped)
        out["dropped"].push_back({{"workload", workload_json(each.workload)},
                                  {"config", to_json(each.config)},
                                  {"reason", each.reason},
                                  {"detail", each.detail}});
    return out;
}

int run_retarget(const RetargetCommand& options) {
    if (options.retarget.jobs < 0 || options.retarget.jobs > 1024)
        throw InvalidArgument("--jobs",
                              fmt::format("{} is not a number of threads from 0 to 1024", options.retarget.jobs));
    std::FILE* const stream = options.json ? stderr : stdout;
    Progress progress(stream);
    const Interrupts interrupts;
    const RetargetReport report = retarget(
        options.retarget,
        [&](const RetargetProgress& each) {
            progress.update(fmt::format("[{}/{}] {}: {}", each.index, each.count, each.workload.to_string(), each.text),
                            true);
        },
        interrupts.count());
    progress.clear();
    for (const std::string& difference : report.differences) tell(stream, "- {}\n", difference);
    if (report.differences.empty()) tell(stream, "the profile is exact here already\n");
    for (const DroppedEntry& each : report.dropped)
        tell(stream, "dropped: {}: {}: {}: {}\n", each.workload.to_string(), each.config.to_string(), each.reason,
             each.detail);
    tell(stream, "{} of {} entries kept, {} dropped, {} already there; {} configs checked, in {}{}\n", report.kept,
         report.entries, report.dropped.size(), report.already, report.configs, duration(report.seconds),
         report.interrupted ? "\ninterrupted; the same command goes on from here" : "");
    if (file_exists(report.profile_path)) tell(stream, "profile: {}\n", report.profile_path);
    if (options.json) print_json(report_json(options, report));
    if (report.interrupted) return kInterrupted;
    return report.dropped.empty() ? kDone : kFailures;
}

}  // namespace

void add_retarget(CLI::App& app, Action& chosen, const std::string& command_line) {
    auto options = std::make_shared<RetargetCommand>();
    CLI::App* command = app.add_subcommand(
        "retarget",
        "Re-issue a profile for the compiler and the kernel templates of this machine\n"
        "For a profile that inspect grades same-class. Every config is compiled and checked again, nothing is timed: "
        "latencies are those of the profile, which the new one says. Entries whose winner no longer passes are dropped "
        "and named; exit 1 when there is one. A sweep onto the new profile then measures only what is missing.");
    command->add_option("FILE", options->retarget.input, "The profile")->required();
    command->add_option("--output", options->retarget.output, "The profile to write")->type_name("OUT")->required();
    command
        ->add_option("--device", options->retarget.device,
                     "auto (first GPU, else the CPU; default), cpu, or a GPU's number")
        ->type_name("N|cpu|auto");
    command->add_option("--jobs", options->retarget.jobs, "Compile threads; default by cores and memory")
        ->type_name("N");
    command->add_flag("--json", options->json, "One JSON object with a list `dropped`");
    command->footer("Example:\n  turbotune retarget old.json --output new.json");
    options->retarget.command_line = command_line;
    command->callback([options, &chosen] {
        chosen = [options] {
            options->retarget.worker_program = this_program();
            return run_retarget(*options);
        };
    });
}

}  // namespace turbotune::cli
