// Latency of disentangled attention forward, tier by tier, at a constant number of tokens: B = tokens / L. Inputs are
// random and rotate through more memory than the L2 holds.
//   benchmark_attention_latency --output benchmarks/results/attention_latency.json
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <ctime>

#include "cases.h"
#include "tier.h"
#include "turbotune/base/error.h"
#include "turbotune/base/files.h"
#include "turbotune/base/json.h"
#include "turbotune/kernel/compiler.h"
#include "turbotune/ops/disentangled_attention/attention.h"
#include "turbotune/tuner/measure.h"

using namespace turbotune;
namespace da = turbotune::disentangled_attention;

namespace {

struct Options {
    std::string output, device = "auto", tier, dtype = "bf16";
    std::vector<int> lengths = {128, 512, 1024, 2048, 4096, 8192};
    int heads = 12, head_dim = 64, tokens = 16384, batch = 0, samples = 50;
    bool all = false, masked = false;
};

struct Row {
    Config config;
    da::Problem problem;
    Latency latency;
    double tflops;
};

// By tier its first config that fits, or every one; the runtime's own choice leads when no tier is named.
std::vector<Config> configs_of(Runtime& runtime, const da::Problem& problem, const Options& options) {
    const Operation& operation = da::operation();
    const DeviceInfo& device = runtime.device().info();
    const Workload workload = operation.workload_of(problem.to_fields());
    std::vector<Config> configs;
    std::string previous;
    if (!options.all && options.tier.empty())
        configs.push_back(runtime.select(operation, workload, problem.to_fields()).config);
    const std::vector<Config> candidates = options.tier.empty()
                                               ? operation.candidates(workload, device)
                                               : da::find_tier(options.tier).candidates(workload, device);
    for (const Config& config : candidates) {
        const std::string& tier = config.text("tier");
        if (!operation.filter(workload, config, device).fits || (!options.all && tier == previous)) continue;
        previous = tier;
        if (std::find(configs.begin(), configs.end(), config) == configs.end()) configs.push_back(config);
    }
    return configs;
}

std::vector<Row> measure_length(Runtime& runtime, int length, const Options& options) {
    const Operation& operation = da::operation();
    da::Problem problem;
    problem.heads = options.heads;
    problem.length = length;
    problem.batch = options.batch ? options.batch : std::max(1, options.tokens / length);
    problem.head_dim = options.head_dim;
    problem.dtype = parse_dtype(options.dtype);
    problem.mask = options.masked;
    const TestCase data =
        da::make_case(problem, options.masked ? da::MaskPattern::right : da::MaskPattern::none, {}, 1, false);
    TimingBench bench(runtime, operation, data, memory_limit(runtime.device()));
    const std::vector<Config> configs = configs_of(runtime, problem, options);
    for (const Config& config : configs) bench.add(config);
    const std::vector<std::vector<double>> samples = bench.round(configs, options.samples);
    std::vector<Row> rows;
    for (std::size_t i = 0; i < configs.size(); ++i) {
        const Latency latency = summarize(samples[i]);
        rows.push_back({configs[i], problem, latency, operation.flops(data.problem) / latency.median * 1e-9});
    }
    std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.latency.median < b.latency.median; });
    return rows;
}

Json to_json(const Row& row) {
    const da::Problem& problem = row.problem;
    return {{"config", to_json(row.config)},
            {"dtype", std::string(to_string(problem.dtype))},
            {"masked", problem.mask},
            {"shape",
             {{"batch", problem.batch},
              {"heads", problem.heads},
              {"length", problem.length},
              {"head_dim", problem.head_dim}}},
            {"min_ms", row.latency.min},
            {"median_ms", row.latency.median},
            {"p90_ms", row.latency.p90},
            {"samples", row.latency.samples},
            {"tflops", row.tflops}};
}

std::string today() {
    const std::time_t now = std::time(nullptr);
    std::tm utc{};
    gmtime_r(&now, &utc);
    return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

}  // namespace

int main(int argc, char** argv) {
    Options options;
    CLI::App app{"Forward latency by length and tier."};
    app.add_option("--output", options.output, "JSON file to write");
    app.add_option("--device", options.device, "auto, cpu or an ordinal")->capture_default_str();
    app.add_option("--tier", options.tier, "only this tier");
    app.add_option("--dtype", options.dtype, "bf16, f16 or f32")->capture_default_str();
    app.add_option("--lengths", options.lengths, "sequence lengths")->delimiter(',')->capture_default_str();
    app.add_option("--heads", options.heads)->capture_default_str();
    app.add_option("--head-dim", options.head_dim)->capture_default_str();
    app.add_option("--tokens", options.tokens, "batch is tokens / length")->capture_default_str();
    app.add_option("--batch", options.batch, "batch at every length, instead of tokens");
    app.add_option("--samples", options.samples)->capture_default_str();
    app.add_flag("--all", options.all, "every candidate, not only the first of each tier");
    app.add_flag("--masked", options.masked, "with a right-padding mask");
    CLI11_PARSE(app, argc, argv);
    try {
        RuntimeOptions runtime_options;
        runtime_options.device = options.device;
        Runtime runtime(runtime_options);
        Json rows = Json::array();
        for (int length : options.lengths)
            for (const Row& row : measure_length(runtime, length, options)) {
                fmt::print("L {:5} B {:4}  median {:8.4f} ms  min {:8.4f}  p90 {:8.4f}  {:6.1f} TFLOP/s  {}\n", length,
                           row.problem.batch, row.latency.median, row.latency.min, row.latency.p90, row.tflops,
                           row.config.to_string());
                rows.push_back(to_json(row));
            }
        if (!options.output.empty()) {
            const DeviceInfo& device = runtime.device().info();
            std::string command = "benchmark_attention_latency";
            for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
            const Json json = {
                {"device", device.name},
                {"device_class", device.device_class.to_string()},
                {"driver", device.driver_version},
                {"compiler", (device.kind == DeviceKind::cuda ? nvrtc_compiler() : host_compiler()).identity()},
                {"date", today()},
                {"command", command},
                {"rows", rows}};
            if (const int error = write_file_atomic(options.output, json.dump(1) + "\n"))
                throw InvalidArgument(options.output, std::strerror(error));
        }
    } catch (const Error& error) {
        fmt::print(stderr, "benchmark_attention_latency: error: {}\n", error.what());
        return 2;
    }
    return 0;
}
