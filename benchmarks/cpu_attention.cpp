// Disentangled attention on the CPU device, driven from standard input so that another program can time its own
// computation in between: benchmarks/cpu_vs_pytorch.py. Reads q, k, v, position_key and position_query as raw fp32 from
// a directory (dense [B, L, H*D], tables [2*span, H*D]), prints one JSON line about itself, then answers every line
// "run" with the milliseconds of one execution and, at the end of input, writes out.f32 beside the inputs.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstring>
#include <iostream>

#include "turbotune/base/error.h"
#include "turbotune/base/files.h"
#include "turbotune/base/json.h"
#include "turbotune/device/thread_pool.h"
#include "turbotune/kernel/compiler.h"
#include "turbotune/ops/disentangled_attention/attention.h"

using namespace turbotune;
namespace da = turbotune::disentangled_attention;

namespace {

std::vector<float> load(const std::string& directory, const std::string& name, std::size_t elements) {
    const std::string path = directory + "/" + name + ".f32";
    const std::optional<std::string> bytes = read_file(path);
    if (!bytes) throw InvalidArgument("directory", path + " cannot be read");
    if (bytes->size() != elements * sizeof(float))
        throw InvalidArgument("directory", fmt::format("{} has {} bytes, the problem needs {}", path, bytes->size(),
                                                       elements * sizeof(float)));
    std::vector<float> values(elements);
    std::memcpy(values.data(), bytes->data(), bytes->size());
    return values;
}

void serve(const da::Problem& problem, const std::string& directory) {
    RuntimeOptions options;
    options.device = "cpu";
    Runtime runtime(options);
    const da::AttentionPlan plan = da::AttentionPlan::create(runtime, problem);

    const std::size_t width = std::size_t(problem.heads) * problem.head_dim;
    const std::size_t elements = std::size_t(problem.batch) * problem.length * width;
    const std::size_t table = 2 * std::size_t(problem.span()) * width;
    const std::vector<float> q = load(directory, "q", elements), k = load(directory, "k", elements),
                             v = load(directory, "v", elements), pk = load(directory, "position_key", table),
                             pq = load(directory, "position_query", table);
    std::vector<float> out(elements);
    da::Buffers buffers;
    buffers.q = q.data();
    buffers.k = k.data();
    buffers.v = v.data();
    buffers.position_key = pk.data();
    buffers.position_query = pq.data();
    buffers.out = out.data();

    Json about;
    about["device"] = runtime.device().info().name;
    about["device_class"] = runtime.device().info().device_class.to_string();
    about["threads"] = ThreadPool::shared().threads();
    about["compiler"] = host_compiler().identity();
    about["config"] = plan.selection().config.to_string();
    about["origin"] = plan.selection().origin;
    std::cout << about.dump() << std::endl;

    for (std::string line; std::getline(std::cin, line);) {
        if (line != "run") throw InvalidArgument("input", "\"" + line + "\" is no command; there is: run");
        const auto start = std::chrono::steady_clock::now();
        plan.execute(buffers);
        const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
        std::cout << fmt::format("{:.4f}", time.count()) << std::endl;
    }
    const std::string_view bytes(reinterpret_cast<const char*>(out.data()), out.size() * sizeof(float));
    if (const int code = write_file_atomic(directory + "/out.f32", bytes))
        throw InvalidArgument("directory", fmt::format("out.f32 cannot be written: {}", std::strerror(code)));
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app{"Disentangled attention on the CPU device; see benchmarks/cpu_vs_pytorch.py"};
    da::Problem problem;
    problem.dtype = DType::f32;
    std::string directory;
    app.add_option("directory", directory, "where the tensors are")->required();
    app.add_option("--batch", problem.batch);
    app.add_option("--heads", problem.heads);
    app.add_option("--length", problem.length);
    app.add_option("--head-dim", problem.head_dim);
    app.add_option("--position-buckets", problem.position_buckets);
    app.add_option("--max-relative-positions", problem.max_relative_positions);
    CLI11_PARSE(app, argc, argv);
    try {
        serve(problem, directory);
    } catch (const Error& error) {
        std::cerr << "benchmark_cpu_attention: error: " << error.what() << std::endl;
        return 1;
    }
}
