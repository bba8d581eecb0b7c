#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "commands.h"
#include "exit_code.h"
#include "interrupts.h"
#include "output.h"
#include "sweep_view.h"
#include "table.h"
#include "tune_options.h"
#include "turbotune/base/error.h"
#include "turbotune/profile/selection.h"

namespace turbotune::cli {
namespace {

constexpr std::size_t kRowsShown = 40;  // of winners; inspect shows all

int dry_run(const TuneOptions& options, const SweepOptions& sweep_options) {
    const std::vector<PlannedWorkload> planned = plan_sweep(sweep_options);
    const DeviceInfo& device = open_device(sweep_options.device).info();
    if (options.json) {
        Json out;
        out["preset"] = to_string(sweep_options.query.preset);
        out["device"] = device_json(device);
        out["workloads"] = Json::array();
        for (const PlannedWorkload& each : planned) {
            Json row;
            row["operation"] = each.workload.operation;
            row["workload"] = to_json(each.workload.fields);
            row["candidates"] = each.candidates;
            row["filtered"] = each.filtered;
            row["unavailable"] = each.unavailable.empty() ? Json(nullptr) : Json(each.unavailable);
            out["workloads"].push_back(row);
        }
        out["count"] = planned.size();
        print_json(out);
        return kDone;
    }
    std::vector<Workload> workloads;
    for (const PlannedWorkload& each : planned) workloads.push_back(each.workload);
    int candidates = 0, tunable = 0;
    for (const std::string& operation : operations_of(workloads)) {
        std::vector<Workload> mine;
        for (const Workload& workload : workloads)
            if (workload.operation == operation) mine.push_back(workload);
        const WorkloadColumns columns(mine);
        std::vector<std::string> headers = columns.names();
        for (const char* header : {">candidates", ">filtered out", "note"}) headers.push_back(header);
        Table table(headers);
        for (const PlannedWorkload& each : planned) {
            if (each.workload.operation != operation) continue;
            std::vector<std::string> row = columns.cells(each.workload);
            row.push_back(std::to_string(each.candidates));
            row.push_back(std::to_string(each.filtered));
            row.push_back(each.unavailable);
            table.add(row);
            candidates += each.candidates;
            tunable += each.candidates > 0;
        }
        fmt::print("{}{}\n{}\n", operation, columns.common().empty() ? "" : fmt::format(" ({})", columns.common()),
                   table.to_string());
    }
    fmt::print("{}, {} of them can be tuned on {}; {}\n", counted(std::int64_t(planned.size()), "workload"), tunable,
               device_line(device), counted(candidates, "candidate"));
    return kDone;
}

// The profile's entries of the workloads that this run was asked for.
std::vector<ProfileEntry> winners(const std::string& path, const SweepOptions& options) {
    std::vector<ProfileEntry> entries;
    if (path.empty() || !file_exists(path)) return entries;
    const Profile profile = load_profile(path);
    for (const PlannedWorkload& each : plan_sweep(options))
        if (const ProfileEntry* entry = profile.find(each.workload)) entries.push_back(*entry);
    return entries;
}

int exit_code_of(const SweepReport& report) {
    if (report.interrupted) return kInterrupted;
    return report.failed > 0 || !report.failures.empty() ? kFailures : kDone;
}

Json report_json(const SweepReport& report, const SweepOptions& options, const std::vector<ProfileEntry>& entries) {
    Json out;
    out["preset"] = to_string(options.query.preset);
    out["device"] = device_json(open_device(options.device).info());
    out["devices"] = report.devices;
    out["shard"] = options.shards > 1 ? Json(fmt::format("{}/{}", options.shard, options.shards)) : Json(nullptr);
    out["profile"] = report.profile_path;
    out["workloads"] = report.workloads;
    out["measured"] = report.measured;
    out["resumed"] = report.resumed;
    out["skipped"] = report.skipped;
    out["failed"] = report.failed;
    out["candidates_measured"] = report.candidates_measured;
    out["candidates_rejected"] = report.candidates_rejected;
    out["worker_restarts"] = report.worker_restarts;
    out["interrupted"] = report.interrupted;
    out["out_of_time"] = report.out_of_time;
    out["seconds"] = report.seconds;
    out["stages"] = {{"open", report.stages.open},
                     {"compile", report.stages.compile},
                     {"check", report.stages.check},
                     {"search", report.stages.search}};
    out["failures"] = report.failures;
    out["entries"] = Json::array();
    for (const ProfileEntry& entry : entries) {
        Json row;
        row["workload"] = workload_json(entry.workload);
        row["config"] = to_json(entry.config);
        row["latency"] = latency_json(entry.latency);
        out["entries"].push_back(row);
    }
    return out;
}

std::string summary(const SweepReport& report, bool retest) {
    const int left = report.workloads - report.measured - report.resumed - report.skipped - report.failed;
    std::string line;
    if (left == 0 && report.measured == 0 && report.candidates_measured == 0 && report.failed == 0)
        line = fmt::format("nothing to measure: {} of {} already in the profile", report.resumed,
                           counted(report.workloads, "workload was", "workloads were"));
    else
        line = fmt::format("{} measured ({}, {} rejected), {} resumed, {} failed", counted(report.measured, "workload"),
                           counted(report.candidates_measured, "candidate"), report.candidates_rejected, report.resumed,
                           report.failed);
    if (report.skipped > 0) line += fmt::format(", {} skipped", report.skipped);
    if (report.worker_restarts > 0)
        line += fmt::format(", worker started again {}", counted(report.worker_restarts, "time"));
    line += fmt::format(", in {}", duration(report.seconds));
    const std::string rest =
        fmt::format("{} left; {}", counted(left, "workload"),
                    retest ? "with --retest the same command begins at the first again: name what is left (--lengths, "
                             "--passes, ...)"
                           : "the same command goes on from here");
    if (report.interrupted) line += "\ninterrupted, " + rest;
    if (report.out_of_time) line += "\nthe time budget is spent, " + rest;
    return line;
}

int tune(const TuneOptions& options, const std::string& command_line) {
    SweepOptions sweep_options = options.sweep_options();
    sweep_options.command_line = command_line;
    sweep_options.profiles = discover_profiles({});
    if (options.dry_run) return dry_run(options, sweep_options);

    std::FILE* const stream = options.json ? stderr : stdout;
    SweepView view(stream, options.verbose, sweep_options.devices.size() > 1);
    if (sweep_options.shards > 1) tell(stream, "shard {}/{}\n", sweep_options.shard, sweep_options.shards);
    const Interrupts interrupts;
    const SweepReport report = sweep(
        sweep_options, [&](const SweepEvent& event) { view.on(event); }, interrupts.count());
    view.finish();

    const std::vector<ProfileEntry> entries = winners(report.profile_path, sweep_options);
    if (!options.json && !entries.empty()) fmt::print("\n{}\n", winners_text(entries, kRowsShown));
    tell(stream, "{}\n", summary(report, options.retest));
    for (const std::string& failure : report.failures) tell(stream, "failed: {}\n", failure);
    if (!report.profile_path.empty() && file_exists(report.profile_path))
        tell(stream, "profile: {}\nread it: turbotune inspect {}\n", report.profile_path,
             shell_word(report.profile_path));
    if (options.json) print_json(report_json(report, sweep_options, entries));
    if (report.workloads > 0 && report.measured + report.resumed + report.failed == 0 && !report.interrupted) {
        tell(stderr, "turbotune: error: none of the {} can be tuned on this device\n",
             counted(report.workloads, "workload"));
        return kFailures;
    }
    return exit_code_of(report);
}

}  // namespace

Action add_tune(CLI::App& app, const std::string& command_line) {
    auto options = std::make_shared<TuneOptions>();
    options->add_to(app);
    return [options, command_line] { return tune(*options, command_line); };
}

}  // namespace turbotune::cli
