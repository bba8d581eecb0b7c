// Host time of one AttentionPlan::execute: the cost that a caller's thread pays per call on a GPU. Batches of calls are
// short enough never to fill the driver's queue; the device is drained between them, outside the timing.
//   benchmark_execute_overhead --output benchmarks/results/execute_overhead.json
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>

#include "turbotune/base/error.h"
#include "turbotune/base/files.h"
#include "turbotune/base/json.h"
#include "turbotune/kernel/compiler.h"
#include "turbotune/ops/disentangled_attention/attention.h"

using namespace turbotune;
namespace da = turbotune::disentangled_attention;

namespace {

struct Figures {
    double min, median, p90;  // microseconds per call
};

Figures measure(Device& device, const da::AttentionPlan& plan, const da::Buffers& buffers, StreamHandle stream) {
    using Clock = std::chrono::steady_clock;
    constexpr int kCalls = 50, kBatches = 400;
    std::vector<double> micros;
    for (int batch = 0; batch < kBatches + 20; ++batch) {  // the first 20 warm up
        device.synchronize(stream);
        const auto begin = Clock::now();
        for (int call = 0; call < kCalls; ++call) plan.execute(buffers, stream);
        const auto end = Clock::now();
        if (batch >= 20) micros.push_back(std::chrono::duration<double, std::micro>(end - begin).count() / kCalls);
    }
    device.synchronize(stream);
    std::sort(micros.begin(), micros.end());
    return {micros.front(), micros[micros.size() / 2], micros[micros.size() * 9 / 10]};
}

std::string today() {
    const std::time_t now = std::time(nullptr);
    std::tm utc{};
    gmtime_r(&now, &utc);
    return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

}  // namespace

int main(int argc, char** argv) {
    std::string output, device_name = "auto";
    int length = 64;
    CLI::App app{"Host microseconds of one execute."};
    app.add_option("--output", output, "JSON file to write");
    app.add_option("--device", device_name, "auto, cpu or an ordinal")->capture_default_str();
    app.add_option("--length", length, "rows of the (small) problem")->capture_default_str();
    CLI11_PARSE(app, argc, argv);
    try {
        RuntimeOptions options;
        options.device = device_name;
        Runtime runtime(options);
        Device& device = runtime.device();
        device.make_current();
        da::Problem problem;
        problem.heads = 4;
        problem.length = length;
        const da::AttentionPlan plan = da::AttentionPlan::create(runtime, problem);
        const std::size_t rows = static_cast<std::size_t>(length) * 4 * 64 * 2, table = 512 * 4 * 64 * 2;
        std::vector<DeviceBuffer> owned;
        auto filled = [&](std::size_t bytes) {
            owned.emplace_back(device, bytes);
            device.fill(owned.back().get(), 0x3c, bytes);  // a small bf16 number everywhere: only host time counts here
            return owned.back().get();
        };
        da::Buffers buffers;
        buffers.q = filled(rows);
        buffers.k = filled(rows);
        buffers.v = filled(rows);
        buffers.position_key = filled(table);
        buffers.position_query = filled(table);
        buffers.out = filled(rows);
        buffers.workspace = filled(std::max<std::size_t>(256, plan.workspace_bytes()));
        const StreamHandle stream = device.create_stream();
        const Figures figures = measure(device, plan, buffers, stream);
        device.destroy_stream(stream);
        fmt::print("execute on {}: min {:.2f} us, median {:.2f} us, p90 {:.2f} us of host time, {} launch(es)\n",
                   device.info().name, figures.min, figures.median, figures.p90, plan.kernels().size());
        if (!output.empty()) {
            std::string command = "benchmark_execute_overhead";
            for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
            const Json json = {
                {"what", "host time of one AttentionPlan::execute"},
                {"device", device.info().name},
                {"driver", device.info().driver_version},
                {"date", today()},
                {"command", command},
                {"config", to_json(plan.selection().config)},
                {"launches", plan.kernels().size()},
                {"microseconds", {{"min", figures.min}, {"median", figures.median}, {"p90", figures.p90}}},
                {"bound_microseconds", 10}};
            if (const int error = write_file_atomic(output, json.dump(1) + "\n"))
                throw InvalidArgument(output, std::strerror(error));
        }
    } catch (const Error& error) {
        fmt::print(stderr, "benchmark_execute_overhead: error: {}\n", error.what());
        return 2;
    }
    return 0;
}
