// Disentangled attention on the CPU device, driven from standard input so that another program can time its own
// computation in between: benchmarks/cpu_vs_pytorch.py. Reads q, k, v, position_key, position_query and, for --pass
// backward, dout as raw fp32 from a directory (dense [B, L, H*D], tables [2*span, H*D]), prints one JSON line about
// itself, then answers every line "run" with the milliseconds of one execution, by the clock and of processor time,
// and, at the end of input, writes its outputs (out, or dq, dk, dv, d_position_key and d_position_query) beside the
// inputs.
#include <fmt/format.h>
#include <time.h>

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

// Of all threads of this process.
double processor_ms() {
    timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

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

void save(const std::string& directory, const std::string& name, const std::vector<float>& values) {
    const std::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    if (const int code = write_file_atomic(directory + "/" + name + ".f32", bytes))
        throw InvalidArgument("directory", fmt::format("{}.f32 cannot be written: {}", name, std::strerror(code)));
}

void serve(const da::Problem& problem, const std::string& directory) {
    const bool backward = problem.pass == da::Pass::backward;
    RuntimeOptions options;
    options.device = "cpu";
    Runtime runtime(options);
    const da::AttentionPlan plan = da::AttentionPlan::create(runtime, problem);

    const std::size_t width = std::size_t(problem.heads) * problem.head_dim;
    const std::size_t rows = std::size_t(problem.batch) * problem.length, elements = rows * width;
    const std::size_t table = 2 * std::size_t(problem.span()) * width;
    const std::vector<float> q = load(directory, "q", elements), k = load(directory, "k", elements),
                             v = load(directory, "v", elements), pk = load(directory, "position_key", table),
                             pq = load(directory, "position_query", table);
    std::vector<float> out(elements), lse, dout, dq, dk, dv, d_pk, d_pq;
    da::Buffers buffers;
    buffers.q = q.data();
    buffers.k = k.data();
    buffers.v = v.data();
    buffers.position_key = pk.data();
    buffers.position_query = pq.data();
    buffers.out = out.data();
    lse.resize(rows * std::size_t(problem.heads));
    buffers.lse = lse.data();
    // Aligned as a plan wants it.
    const DeviceBuffer workspace(runtime.device(), std::max<std::size_t>(256, plan.workspace_bytes()));
    buffers.workspace = workspace.get();
    if (backward) {
        dq.resize(elements), dk.resize(elements), dv.resize(elements), d_pk.resize(table), d_pq.resize(table);
        dout = load(directory, "dout", elements);
        buffers.dout = dout.data();
        buffers.dq = dq.data();
        buffers.dk = dk.data();
        buffers.dv = dv.data();
        buffers.d_position_key = d_pk.data();
        buffers.d_position_query = d_pq.data();
        da::Problem forward = problem;
        forward.pass = da::Pass::training_forward;
        da::AttentionPlan::create(runtime, forward).execute(buffers);
    }

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
        const double processor_start = processor_ms();
        plan.execute(buffers);
        const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
        std::cout << fmt::format("{:.4f} {:.4f}", time.count(), processor_ms() - processor_start) << std::endl;
    }
    if (!backward) return save(directory, "out", out);
    save(directory, "dq", dq);
    save(directory, "dk", dk);
    save(directory, "dv", dv);
    save(directory, "d_position_key", d_pk);
    save(directory, "d_position_query", d_pq);
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app{"Disentangled attention on the CPU device; see benchmarks/cpu_vs_pytorch.py"};
    da::Problem problem;
    problem.dtype = DType::f32;
    std::string directory, pass = "inference";
    app.add_option("directory", directory, "where the tensors are")->required();
    app.add_option("--pass", pass, "inference, training_forward or backward")
        ->check(CLI::IsMember({"inference", "training_forward", "backward"}));
    app.add_option("--batch", problem.batch);
    app.add_option("--heads", problem.heads);
    app.add_option("--length", problem.length);
    app.add_option("--head-dim", problem.head_dim);
    app.add_option("--position-buckets", problem.position_buckets);
    app.add_option("--max-relative-positions", problem.max_relative_positions);
    app.add_option("--dropout", problem.dropout);
    CLI11_PARSE(app, argc, argv);
    for (da::Pass each : {da::Pass::inference, da::Pass::training_forward, da::Pass::backward})
        if (da::to_string(each) == pass) problem.pass = each;
    try {
        serve(problem, directory);
    } catch (const Error& error) {
        std::cerr << "benchmark_cpu_attention: error: " << error.what() << std::endl;
        return 1;
    }
}
