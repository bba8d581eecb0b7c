#include "turbotune/tuner/bench.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <new>

#include "bench_options.h"
#include "commands.h"
#include "exit_code.h"
#include "interrupts.h"
#include "output.h"
#include "progress.h"
#include "table.h"
#include "turbotune/base/error.h"
#include "turbotune/tuner/peaks.h"

namespace turbotune::cli {
namespace {

struct Interrupted {};

struct Row {
    Fields problem;
    std::optional<BenchResult> result;
    std::optional<double> floor_ms;
    std::string failure;  // when there is no result
};

struct Report {
    DeviceInfo device;
    std::string operation;
    std::vector<Row> rows;
    std::string peaks_source;
    bool interrupted = false;
};

std::optional<Peaks> peaks_of(const BenchCommand& command, const DeviceInfo& device, const Fields& problem) {
    std::optional<Peaks> peaks = known_peaks(device, problem);
    if (command.peak_tflops == 0 && command.peak_gigabytes == 0) return peaks;
    if (!(command.peak_tflops >= 0) || std::isinf(command.peak_tflops))
        throw InvalidArgument("--peak-tflops", "must be a number above 0");
    if (!(command.peak_gigabytes >= 0) || std::isinf(command.peak_gigabytes))
        throw InvalidArgument("--peak-gbs", "must be a number above 0");
    if (!peaks && command.peak_tflops == 0) throw InvalidArgument("--peak-gbs", "needs --peak-tflops on this device");
    if (!peaks && command.peak_gigabytes == 0)
        throw InvalidArgument("--peak-tflops", "needs --peak-gbs on this device");
    if (!peaks) peaks = Peaks{};
    if (command.peak_tflops > 0) peaks->flops_per_s = command.peak_tflops * 1e12;
    if (command.peak_gigabytes > 0) peaks->bytes_per_s = command.peak_gigabytes * 1e9;
    peaks->source = "given on the command line";
    return peaks;
}

// A mistake in the first problem ends everything; what fails later or on the device is told, and the others go on.
Row measure(const BenchCommand& command, Runtime& runtime, const Operation& operation, const Fields& problem,
            const BenchOptions& options) {
    Row row{problem, std::nullopt, std::nullopt, ""};
    try {
        row.result = bench(runtime, operation, problem, options);
        row.problem = row.result->problem;
        if (const auto peaks = peaks_of(command, runtime.device().info(), row.problem))
            row.floor_ms = peaks->floor_ms(row.result->flops, row.result->bytes);
    } catch (const InvalidArgument& error) {
        if (error.argument() != "config") throw;
        throw InvalidArgument("--config", std::string(error.what()).substr(error.argument().size() + 2));
    } catch (const Error& error) {
        row.failure = error.what();
    } catch (const std::bad_alloc&) {
        row.failure = "out of host memory";
    }
    return row;
}

Report measure_all(const BenchCommand& command) {
    if (command.repeats < 1)
        throw InvalidArgument("--repeats", fmt::format("{} is no number of samples", command.repeats));
    const Operation& operation = find_operation(command.operation);
    const std::vector<Fields> problems = command.problems(operation);
    BenchOptions options;
    options.samples = command.repeats;
    if (!command.config.empty()) options.config = parse_fields(command.config, "--config");
    Runtime runtime(command.runtime_options());
    Report report;
    report.device = runtime.device().info();
    report.operation = operation.name();
    if (!command.profile.empty()) runtime.profiles();  // a broken one is told, whatever the policy
    if (const auto peaks = peaks_of(command, report.device, problems.front())) report.peaks_source = peaks->source;

    const Interrupts interrupts;
    Progress progress(stderr);
    for (std::size_t i = 0; i < problems.size() && !report.interrupted; ++i) {
        const std::string head = fmt::format("[{}/{}] {}", i + 1, problems.size(), problems[i].to_string());
        options.before_sample = [&](int done) {
            if (*interrupts.count() > 0) throw Interrupted();
            progress.update(fmt::format("{}: {} of {} samples", head, done, options.samples));
        };
        progress.update(head + ": compiling", true);
        try {
            report.rows.push_back(measure(command, runtime, operation, problems[i], options));
        } catch (const Interrupted&) {
            report.interrupted = true;
        } catch (const InvalidArgument& error) {
            if (report.rows.empty()) throw;  // else what is measured would be lost
            report.rows.push_back({problems[i], std::nullopt, std::nullopt, error.what()});
        }
        report.interrupted |= *interrupts.count() > 0;
    }
    progress.clear();
    return report;
}

std::string optional_text(const std::optional<double>& value, const char* format) {
    return value ? fmt::format(fmt::runtime(format), *value) : "";
}

std::string share_text(const Row& row) {
    return row.floor_ms ? fmt::format("{:.0f} %", 100 * *row.floor_ms / row.result->latency.median) : "";
}

void print_table(const Report& report) {
    std::vector<Workload> problems;
    for (const Row& row : report.rows) problems.push_back({report.operation, row.problem});
    const WorkloadColumns columns(problems);
    fmt::print("{}\n", device_line(report.device));
    if (!columns.common().empty()) fmt::print("{} ({})\n", report.operation, columns.common());
    std::vector<std::string> headers = columns.names();
    for (const char* header : {">ms (median)", ">min", ">p10", ">p90", ">host us", ">TFLOP/s", ">GB/s", ">of floor",
                               ">workspace", "origin", "config"})
        headers.emplace_back(header);
    Table table(headers);
    for (const Row& row : report.rows) {
        std::vector<std::string> cells = columns.cells({report.operation, row.problem});
        if (!row.result) {
            cells.push_back("failed");
        } else {
            const BenchResult& result = *row.result;
            const Latency& latency = result.latency;
            for (double ms : {latency.median, latency.min, latency.p10, latency.p90}) cells.push_back(milliseconds(ms));
            cells.push_back(optional_text(result.host_us, "{:.1f}"));
            cells.push_back(fmt::format("{:.4g}", result.tflops()));
            cells.push_back(fmt::format("{:.4g}", result.gigabytes_per_s()));
            cells.push_back(share_text(row));
            cells.push_back(byte_count(static_cast<std::int64_t>(result.workspace_bytes)));
            cells.push_back(result.selection.origin);
            cells.push_back(result.selection.config.to_string());
        }
        table.add(std::move(cells));
    }
    fmt::print("{}", table.to_string());
    for (const Row& row : report.rows)
        if (row.result && !row.result->memory.cold())
            fmt::print("warm: {}: {}\n", row.problem.to_string(), row.result->memory.to_string());
    if (!report.peaks_source.empty()) fmt::print("floor: {}\n", report.peaks_source);
}

Json kernels_json(const std::vector<KernelMetadata>& kernels) {
    Json out = Json::array();
    for (const KernelMetadata& each : kernels)
        out.push_back({{"name", each.kernel_name},
                       {"registers", each.registers},
                       {"local_bytes", each.local_bytes},
                       {"static_shared_bytes", each.static_shared_bytes}});
    return out;
}

Json row_json(const Row& row) {
    Json out;
    out["problem"] = to_json(row.problem);
    out["failure"] = row.failure;
    if (!row.result) {
        for (const char* name : {"config", "origin", "note", "latency", "host_us", "flops", "tflops", "bytes", "gbs",
                                 "floor_ms", "share_of_floor", "workspace_bytes", "rotated_bytes", "cold", "kernels"})
            out[name] = nullptr;
        return out;
    }
    const BenchResult& result = *row.result;
    out["config"] = to_json(result.selection.config);
    out["origin"] = result.selection.origin;
    out["note"] = result.selection.note;
    out["latency"] = latency_json(result.latency);
    out["host_us"] = result.host_us ? Json(*result.host_us) : Json();
    out["flops"] = result.flops;
    out["tflops"] = result.tflops();
    out["bytes"] = result.bytes;
    out["gbs"] = result.gigabytes_per_s();
    out["floor_ms"] = row.floor_ms ? Json(*row.floor_ms) : Json();
    out["share_of_floor"] = row.floor_ms ? Json(*row.floor_ms / result.latency.median) : Json();
    out["workspace_bytes"] = result.workspace_bytes;
    out["rotated_bytes"] = result.memory.rotated_bytes();
    out["cold"] = result.memory.cold();
    out["kernels"] = kernels_json(result.kernels);
    return out;
}

int run_bench(const BenchCommand& command) {
    const Report report = measure_all(command);
    if (command.json) {
        Json out;
        out["device"] = device_json(report.device);
        out["operation"] = report.operation;
        out["peaks"] = report.peaks_source;
        out["interrupted"] = report.interrupted;
        out["rows"] = Json::array();
        for (const Row& row : report.rows) out["rows"].push_back(row_json(row));
        print_json(out);
    } else if (!report.rows.empty()) {
        print_table(report);
    }
    bool failed = false;
    for (const Row& row : report.rows) {
        if (row.failure.empty()) continue;
        tell(stderr, "turbotune: failed: {}: {}\n", row.problem.to_string(), row.failure);
        failed = true;
    }
    return report.interrupted ? kInterrupted : failed ? kFailures : kDone;
}

}  // namespace

void add_bench(CLI::App& app, Action& chosen) {
    auto options = std::make_shared<BenchCommand>();
    CLI::App* command = app.add_subcommand(
        "bench",
        "Measure an operation on problems of your own\n"
        "Inputs are random and rotate through more memory than the L2 holds. TFLOP/s counts the products that the "
        "definition needs, GB/s every input and output once. The floor is the longer of the times that the device "
        "needs for either at its peak. Host time is what one call costs the calling thread.");
    options->add_to(*command);
    command->footer(
        "Examples:\n"
        "  turbotune bench --length 128,512,2048 --tokens 16384 --heads 12\n"
        "  turbotune bench --pass training_forward,backward --dropout 0.1 --batch 8 --length 512\n"
        "  turbotune bench --config \"tier=mma\" --length 1024 --json");
    command->callback([options, &chosen] { chosen = [options] { return run_bench(*options); }; });
}

}  // namespace turbotune::cli
