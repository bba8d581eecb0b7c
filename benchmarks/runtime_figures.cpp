// What a kernel costs before its first launch: a cold compile, and a store hit in a fresh process.
//   benchmark_runtime_figures --output benchmarks/results/runtime_figures.json
// The kernels are those of the first operation's first quick workload. With no GPU the CUDA image is compiled for an
// H200 and read back verified, but not loaded. Host time of execute: execute_overhead.cpp.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "turbotune/base/error.h"
#include "turbotune/base/files.h"
#include "turbotune/base/json.h"
#include "turbotune/device/device.h"
#include "turbotune/kernel/kernel_cache.h"
#include "turbotune/ops/operation.h"

using namespace turbotune;
using Clock = std::chrono::steady_clock;

namespace {

double ms_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

Json figures(std::vector<double> samples) {
    std::sort(samples.begin(), samples.end());
    return {{"min", samples.front()},
            {"median", samples[samples.size() / 2]},
            {"p90", samples[samples.size() * 9 / 10]},
            {"samples", samples.size()}};
}

std::string today() {
    const std::time_t now = std::time(nullptr);
    char text[16];
    std::tm utc{};
    gmtime_r(&now, &utc);
    std::strftime(text, sizeof text, "%Y-%m-%d", &utc);
    return text;
}

// Numbers of an H200, for compiling where there is none.
DeviceInfo assumed_gpu() {
    DeviceInfo info;
    info.kind = DeviceKind::cuda;
    info.name = "none (compiled for sm_90a)";
    info.device_class = {"sm_90", 132, std::int64_t{60} << 20, std::int64_t{227} << 10, 6016};
    info.cc_major = 9;
    info.total_memory = std::int64_t{141} << 30;
    info.registers_per_sm = 65536;
    info.shared_per_sm = std::int64_t{228} << 10;
    info.max_threads_per_sm = 2048;
    return info;
}

struct Subject {
    DeviceInfo info;
    Device* device = nullptr;  // nullptr: compiled and read, not loaded
    KernelSpec spec;
};

Subject find_subject(const std::string& name) {
    Subject subject;
    if (name == "cpu") {
        subject.device = &open_device("cpu");
        subject.info = subject.device->info();
    } else if (list_devices().front().kind == DeviceKind::cuda) {
        subject.device = &open_device("0");
        subject.info = subject.device->info();
    } else {
        subject.info = assumed_gpu();
    }
    const Operation& operation = *operations().front();
    for (const Workload& workload : operation.workloads({Preset::quick, {}})) {
        if (!operation.unavailable(workload, subject.info).empty()) continue;
        const Config config = operation.heuristic(workload, subject.info);
        subject.spec =
            operation.kernels(operation.problems(workload, subject.info).front(), config, subject.info).front();
        return subject;
    }
    throw Unsupported("no quick workload is available on " + subject.info.name);
}

// One use of a warm store, in a process that did nothing before but open its device.
int run_child(const std::string& device_name, const std::string& directory) {
    const Subject subject = find_subject(device_name);
    if (subject.device != nullptr) subject.device->make_current();
    Store::Options options;
    options.directory = directory;
    KernelOrigin origin{};
    const auto start = Clock::now();
    KernelCache cache(options);
    if (subject.device != nullptr)
        cache.get(*subject.device, subject.spec, &origin);
    else
        cache.prepare(subject.spec, &origin);
    const double ms = ms_since(start);
    fmt::print("{} {} {}\n", ms, to_string(origin), nvrtc_loaded() ? 1 : 0);
    return 0;
}

struct Hits {
    std::vector<double> ms;
    bool all_from_store = true, nvrtc_loaded = false;
};

Hits measure_hits(const std::string& device_name, const std::string& directory, int count) {
    const std::string self = std::filesystem::canonical("/proc/self/exe").string();
    Hits hits;
    for (int i = 0; i < count; ++i) {
        const std::string command = fmt::format("'{}' --child {} --store '{}'", self, device_name, directory);
        std::FILE* pipe = ::popen(command.c_str(), "r");
        double ms = 0;
        char origin[32] = {};
        int loaded = 0;
        const bool read = pipe != nullptr && std::fscanf(pipe, "%lf %31s %d", &ms, origin, &loaded) == 3;
        if (pipe == nullptr || ::pclose(pipe) != 0 || !read)
            throw DeviceError("a child of the benchmark failed: " + command);
        hits.ms.push_back(ms);
        hits.all_from_store = hits.all_from_store && std::string(origin) == "store";
        hits.nvrtc_loaded = hits.nvrtc_loaded || loaded != 0;
    }
    return hits;
}

Json measure(const std::string& device_name, const std::string& directory, int compiles, int hits) {
    const Subject subject = find_subject(device_name);
    Compiler& compiler = subject.spec.is_host() ? host_compiler() : nvrtc_compiler();
    const CompileRequest request{render(subject.spec), subject.spec.kernel_name, subject.spec.target,
                                 subject.spec.to_string()};
    auto start = Clock::now();
    const Image image = compiler.compile(request);  // loads the compiler
    const double first_ms = ms_since(start);
    std::vector<double> compile_ms;
    for (int i = 0; i < compiles; ++i) {
        start = Clock::now();
        compiler.compile(request);
        compile_ms.push_back(ms_since(start));
    }
    Store::Options options;
    options.directory = directory;
    KernelCache(options).prepare(subject.spec);
    const Hits found = measure_hits(device_name, directory, hits);
    if (!found.all_from_store) throw StoreError("a fresh process missed the store");

    std::vector<double> read_ms;
    const StoreKey key = store_key(request.source, compiler.options(request.target), request.target,
                                   compiler.identity(), request.kernel_name);
    for (int i = 0; i < hits; ++i) {
        Store store(options);
        start = Clock::now();
        if (!store.find(key)) throw StoreError("the entry is gone");
        read_ms.push_back(ms_since(start));
    }
    return {{"device", subject.info.name},
            {"driver", subject.info.driver_version},
            {"target", subject.spec.target},
            {"compiler", compiler.identity()},
            {"kernel", subject.spec.to_string()},
            {"source_bytes", request.source.size()},
            {"image_bytes", image.bytes.size()},
            {"loaded_on_device", subject.device != nullptr},
            {"first_compile_ms", first_ms},
            {"cold_compile_ms", figures(compile_ms)},
            {"store_hit_to_callable_ms", figures(found.ms)},
            {"verified_read_ms", figures(read_ms)},
            {"store_hit_loads_nvrtc", found.nvrtc_loaded}};
}

std::string command_line(int argc, char** argv) {
    std::string command = "benchmark_runtime_figures";
    for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
    return command;
}

void report(const Json& part) {
    const Json &compile = part["cold_compile_ms"], &hit = part["store_hit_to_callable_ms"];
    fmt::print(
        "{}: cold compile {:.0f} ms (first, with the compiler's own start, {:.0f} ms), store hit to {} {:.2f} ms "
        "(p90 {:.2f} ms), a hit loads NVRTC: {}\n",
        part["target"].get<std::string>(), compile["median"].get<double>(), part["first_compile_ms"].get<double>(),
        part["loaded_on_device"].get<bool>() ? "callable" : "verified image", hit["median"].get<double>(),
        hit["p90"].get<double>(), part["store_hit_loads_nvrtc"].get<bool>() ? "yes" : "no");
}

}  // namespace

int main(int argc, char** argv) {
    std::string output, child, store;
    int compiles = 5, hits = 31;
    CLI::App app{"Milliseconds of a cold compile and of a store hit in a fresh process."};
    app.add_option("--output", output, "JSON file to write");
    app.add_option("--compiles", compiles, "compiles to time")->capture_default_str()->check(CLI::PositiveNumber);
    app.add_option("--hits", hits, "fresh processes to time")->capture_default_str()->check(CLI::PositiveNumber);
    app.add_option("--child", child, "")->group("");
    app.add_option("--store", store, "")->group("");
    CLI11_PARSE(app, argc, argv);
    std::string folder = std::filesystem::temp_directory_path().string() + "/turbotune-figures-XXXXXX";
    try {
        if (!child.empty()) return run_child(child, store);
        if (::mkdtemp(folder.data()) == nullptr) throw StoreError(folder + ": " + std::strerror(errno));
        Json json = {{"what", "milliseconds before a kernel can be launched"},
                     {"date", today()},
                     {"command", command_line(argc, argv)},
                     {"bounds_ms", {{"cold_compile", 1000}, {"store_hit_to_callable", 2}}}};
        for (const char* name : {"cuda", "cpu"}) {
            json[name] = measure(name, folder, compiles, hits);
            report(json[name]);
        }
        std::filesystem::remove_all(folder);
        if (output.empty()) return 0;
        if (const int error = write_file_atomic(output, json.dump(1) + "\n"))
            throw InvalidArgument(output, std::strerror(error));
    } catch (const Error& error) {
        std::error_code ignored;
        if (folder.find("XXXXXX") == std::string::npos) std::filesystem::remove_all(folder, ignored);
        fmt::print(stderr, "benchmark_runtime_figures: error: {}\n", error.what());
        return 2;
    }
    return 0;
}
