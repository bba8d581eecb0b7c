// Candidates that break the device, the worker or the results, on a GPU. (Those of the CPU device: test_sweep_faults.)
#include <algorithm>
#include <chrono>
#include <sstream>

#include "../tuner/scratch.h"
#include "../tuner/sweep_bench.h"
#include "catch.h"
#include "faulty_operation.h"
#include "turbotune/base/error.h"
#include "turbotune/kernel/compiler.h"

using namespace turbotune;

namespace {

struct GpuBench {
    Scratch scratch;
    FaultyOperation operation;
    SweepOptions options;
    std::string templates = scratch.file("templates");
    ScopedVariable template_folder{"TURBOTUNE_TEMPLATE_DIR", templates};

    explicit GpuBench(std::vector<Config> configs) : operation(std::move(configs)) {
        write_faulty_template(templates);
        options.query.preset = Preset::exhaustive;
        options.query.axes["length"] = {"64"};
        options.device = "0";
        options.output = scratch.file("profile.json");
        options.worker_program = faulty_worker(scratch.path());
        options.store.directory = scratch.file("store");
    }
    SweepReport run() {
        return sweep(options, [](const SweepEvent&) {}, nullptr, {&operation});
    }
    ProfileEntry entry() const { return load_profile(options.output).entries.at(0); }
    std::size_t workers() const {
        std::istringstream lines(slurp(scratch.file("pids")));
        return std::size_t(std::count(std::istreambuf_iterator<char>(lines), {}, '\n'));
    }
};

}  // namespace

TEST_CASE(
    "candidates that fault, trap, hang, write half, nothing or the wrong thing are recorded on a GPU, and the best of "
    "the rest wins",
    "[gpu][alone][faults][field-15][field-17][field-19]") {
    ScopedVariable patience("TURBOTUNE_WATCHDOG_S", "5");
    const std::vector<std::pair<const char*, const char*>> expected = {{"null_write", "fault"},
                                                                       {"trap", "fault"},
                                                                       {"endless", "timeout"},
                                                                       {"half", "unwritten"},
                                                                       {"nothing", "unwritten"},
                                                                       {"wrong", "mismatch"},
                                                                       {"accumulate", "input_changed"},
                                                                       {"overrun", "overrun"},
                                                                       {"out_of_memory", "out_of_memory"},
                                                                       {"launch_error", "launch_error"},
                                                                       {"compile_error", "compile_error"},
                                                                       {"filtered", "filtered"}};
    std::vector<Config> configs = {toy_config("good", 300)};
    for (const auto& [kind, reason] : expected) configs.push_back(toy_config(kind, 1));
    configs.push_back(toy_config("good", 50));
    GpuBench bench(configs);
    const auto start = std::chrono::steady_clock::now();
    const SweepReport report = bench.run();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    CHECK(report.measured == 1);
    CHECK(report.failures.empty());
    CHECK(report.candidates_measured == 2);
    CHECK(report.candidates_rejected == int(expected.size()) - 1);  // what is filtered was no candidate
    const ProfileEntry entry = bench.entry();
    CHECK(entry.config == toy_config("good", 50));
    CHECK(entry.measured.size() == 1);
    for (const auto& [kind, reason] : expected) {
        INFO(kind);
        CHECK(reason_of(entry, kind) == reason);
    }
    for (const RejectedCandidate& candidate : entry.rejected) {
        INFO(candidate.config.to_string() << ": " << candidate.detail);
        const std::string kind = candidate.config.text("kind");
        if (kind == "null_write") CHECK(candidate.detail.find("CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos);
        if (kind == "half") CHECK(candidate.detail.find("[3]") != std::string::npos);  // of 6
        if (kind == "wrong") CHECK(candidate.detail.find("[2]") != std::string::npos);
        if (kind == "accumulate") CHECK(candidate.detail.find("[1]") != std::string::npos);
    }
    CHECK(report.worker_restarts == 3);  // null_write, trap, endless
    CHECK(bench.workers() == 4);
    CHECK(elapsed.count() < 60);

    // Of all that only what may pass another time is tried again.
    const SweepReport again = bench.run();
    CHECK(again.candidates_measured == 0);
    CHECK(again.candidates_rejected == 1);
    CHECK(again.worker_restarts == 0);
}

TEST_CASE("on a GPU the first candidate being wrong rejects it alone", "[gpu][alone][faults][field-16]") {
    GpuBench bench({toy_config("wrong", 1), toy_config("good", 100), toy_config("good", 200)});
    const SweepReport report = bench.run();
    CHECK(report.candidates_measured == 2);
    CHECK(report.candidates_rejected == 1);
    CHECK(bench.entry().config == toy_config("good", 100));
    CHECK(reason_of(bench.entry(), "wrong") == "mismatch");
    CHECK(report.worker_restarts == 0);
}

TEST_CASE("the kernels of the GPU fault tests compile, but the one that must not", "[nvrtc]") {
    try {
        nvrtc_targets();
    } catch (const CompileError& error) {
        WARN("not run: " << error.what());
        return;
    }
    Scratch scratch;
    write_faulty_template(scratch.path());
    const ScopedVariable folder("TURBOTUNE_TEMPLATE_DIR", scratch.path());
    DeviceInfo device;
    device.kind = DeviceKind::cuda;
    device.cc_major = 9;
    const FaultyOperation operation;
    for (const char* kind : {"good", "null_write", "trap", "endless", "nothing", "half", "wrong", "accumulate",
                             "overrun", "out_of_memory", "launch_error"}) {
        INFO(kind);
        const KernelSpec spec = operation.kernels({}, toy_config(kind, 5), device).front();
        const Image image = nvrtc_compiler().compile({render(spec), spec.kernel_name, spec.target, kind});
        CHECK(image.metadata.registers > 0);
    }
    const KernelSpec spec = operation.kernels({}, toy_config("compile_error", 5), device).front();
    REQUIRE_THROWS_AS(nvrtc_compiler().compile({render(spec), spec.kernel_name, spec.target, "no"}), CompileError);
}
