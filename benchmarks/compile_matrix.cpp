// Compiles every candidate of every workload for each GPU family, with no GPU at hand, and records registers, spills
// and shared memory beside what the filter predicted.
//   benchmark_compile_matrix --output benchmarks/results/compile_matrix.json
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <ctime>
#include <map>

#include "turbotune/base/error.h"
#include "turbotune/base/files.h"
#include "turbotune/base/json.h"
#include "turbotune/kernel/compiler.h"
#include "turbotune/tuner/compile_matrix.h"

namespace {

std::string today() {
    const std::time_t now = std::time(nullptr);
    std::tm utc{};
    gmtime_r(&now, &utc);
    return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

turbotune::Json row_to_json(const turbotune::CompileRow& row) {
    return {{"target", row.target},
            {"kernel", row.kernel},
            {"threads", row.threads},
            {"registers", row.registers},
            {"predicted_registers", row.predicted_registers},
            {"spill_store_bytes", row.spill_store_bytes},
            {"spill_load_bytes", row.spill_load_bytes},
            {"static_shared_bytes", row.static_shared_bytes},
            {"dynamic_shared_bytes", row.predicted_shared_bytes},
            {"compile_ms", row.compile_ms},
            {"problem", row.problem}};
}

}  // namespace

int main(int argc, char** argv) {
    turbotune::CompileMatrixOptions options;
    std::string output, operation = "disentangled_attention";
    CLI::App app{"Compiles every candidate for every GPU family and checks the filter's predictions."};
    app.add_option("--output", output, "JSON file to write");
    app.add_option("--operation", operation, "which operation")->capture_default_str();
    app.add_option("--targets", options.targets, "GPU families")->delimiter(',')->capture_default_str();
    app.add_option("--every", options.every, "only every n-th kernel");
    app.add_option("--jobs", options.jobs, "compile threads; 0: by cores and memory");
    CLI11_PARSE(app, argc, argv);
    try {
        const auto begin = std::chrono::steady_clock::now();
        const std::vector<turbotune::CompileRow> rows = compile_matrix(turbotune::find_operation(operation), options);
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        struct Count {
            int kernels = 0, spilling = 0, failed = 0;
        };
        std::map<std::string, Count> counts;
        turbotune::Json list = turbotune::Json::array();
        for (const turbotune::CompileRow& row : rows) {
            Count& count = counts[row.target];
            ++count.kernels;
            count.spilling += row.spill_store_bytes > 0;
            count.failed += !row.problem.empty();
            if (!row.problem.empty()) fmt::print("{}: {}\n", row.kernel, row.problem);
            list.push_back(row_to_json(row));
        }
        int failed = 0;
        turbotune::Json summary = turbotune::Json::object();
        for (const auto& [target, count] : counts) {
            fmt::print("{}: {} kernels, {} spilling, {} failed\n", target, count.kernels, count.spilling, count.failed);
            summary[target] = {{"kernels", count.kernels}, {"spilling", count.spilling}, {"failed", count.failed}};
            failed += count.failed;
        }
        fmt::print("{} kernels in {:.1f} s\n", rows.size(), seconds);
        if (!output.empty()) {
            std::string command = "benchmark_compile_matrix";
            for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
            const turbotune::Json json = {{"what", "every candidate compiled by NVRTC, no GPU needed"},
                                          {"compiler", turbotune::nvrtc_compiler().identity()},
                                          {"date", today()},
                                          {"command", command},
                                          {"seconds", seconds},
                                          {"summary", summary},
                                          {"rows", list}};
            if (const int error = turbotune::write_file_atomic(output, json.dump(1) + "\n"))
                throw turbotune::InvalidArgument(output, std::strerror(error));
        }
        return rows.empty() || failed ? 1 : 0;
    } catch (const turbotune::Error& error) {
        fmt::print(stderr, "benchmark_compile_matrix: error: {}\n", error.what());
        return 2;
    }
}
