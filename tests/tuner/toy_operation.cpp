#include "toy_operation.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>
#include <random>

#include "catch.h"
#include "turbotune/base/error.h"
#include "turbotune/tuner/sweep.h"

namespace turbotune {

namespace {

using Clock = std::chrono::steady_clock;

class ToyExecution : public Execution {
  public:
    ToyExecution(std::string kind, int us, int length, float* in, float* out, float* workspace)
        : kind_(std::move(kind)), us_(us), length_(length), in_(in), out_(out), workspace_(workspace) {}

    void execute(StreamHandle) override {
        auto start = Clock::now();
        static int executions = 0;
        ++executions;
        if (kind_ == "segv" || (kind_ == "late_segv" && executions > 60)) {
            ::signal(SIGSEGV, SIG_DFL);  // past the handlers of Catch and of sanitizers
            ::raise(SIGSEGV);
        }
        if (kind_ == "abort") std::abort();
        if (kind_ == "killed") ::raise(SIGKILL);
        if (kind_ == "exit") ::_exit(3);
        if (kind_ == "hang")
            for (volatile bool forever = true; forever;) ::usleep(1000);
        if (kind_ == "sticky") throw DeviceError("the kernel wrote to address 0", 700, "CUDA_ERROR_ILLEGAL_ADDRESS");
        if (kind_ == "chatter") std::printf("{\"ok\":true,\"lies\":1}\n"), std::fflush(stdout);
        int written = kind_ == "partial" ? length_ / 2 : kind_ == "unwritten" ? 0 : length_;
        for (int i = 0; i < written; ++i) out_[i] = 2 * in_[i];
        if (kind_ == "wrong") out_[length_ / 3] += 1;
        if (kind_ == "accumulate") in_[1] += 1;
        if (kind_ == "overrun") out_[length_] = 1;
        if (kind_ == "workspace_overrun") workspace_[4] = 1;
        if (kind_ == "unrepeatable") out_[0] *= 1 + 1e-6f * float(executions % 2);
        while (Clock::now() - start < std::chrono::microseconds(us_)) {
        }
    }

  private:
    std::string kind_;
    int us_, length_;
    float *in_, *out_, *workspace_;
};

class ToyPlan : public Plan {
  public:
    ToyPlan(Workload workload, Config config, const char* origin, int length)
        : workload_(std::move(workload)), length_(length) {
        selection_.config = std::move(config);
        selection_.origin = origin;
    }
    const Workload& workload() const override { return workload_; }
    const Config& config() const override { return selection_.config; }
    const Selection& selection() const override { return selection_; }
    std::vector<KernelMetadata> kernels() const override {
        KernelMetadata metadata;
        metadata.registers = 40;
        metadata.static_shared_bytes = 100;
        return {metadata};
    }
    std::size_t workspace_bytes() const override { return 16; }
    std::unique_ptr<Execution> bind(const Bindings& tensors, DevicePointer workspace) const override {
        return std::make_unique<ToyExecution>(config().text("kind"), int(config().integer("us")), length_,
                                              static_cast<float*>(tensors.at("in")),
                                              static_cast<float*>(tensors.at("out")), static_cast<float*>(workspace));
    }

  private:
    Workload workload_;
    Selection selection_;
    int length_;
};

Fields toy_problem(int length) {
    return Fields{}.set("length", length);
}

}  // namespace

Config toy_config(const std::string& kind, int us, int id) {
    return Config{}.set("tier", "host").set("kind", kind).set("us", us).set("id", id);
}

TestCase toy_case(int length, std::uint64_t seed, bool with_expected) {
    TestCase test_case;
    test_case.label = fmt::format("L={} seed={}", length, seed);
    test_case.problem = toy_problem(length);
    HostTensor in(DType::f32, {length}), want(DType::f64, {length});
    std::mt19937_64 random(seed);
    for (int i = 0; i < length; ++i) {
        in.set(i, double(random() % 2001) / 1000 - 1);
        want.set(i, 2 * in.at(i));
    }
    test_case.inputs["in"] = std::move(in);
    test_case.outputs = {{"out", DType::f32, {length}}};
    if (with_expected) test_case.expected["out"] = std::move(want);
    test_case.tolerance = 1e-5;
    return test_case;
}

std::vector<Workload> ToyOperation::workloads(const WorkloadQuery& query) const {
    std::vector<std::string> lengths = {"64"};
    if (query.preset == Preset::standard) lengths = {"64", "128", "256"};
    if (query.preset == Preset::exhaustive) lengths = {"8", "16", "32", "64", "96", "128", "160", "192", "224", "256"};
    for (const auto& [axis, values] : query.axes) {
        if (axis != "length") throw InvalidArgument(axis, "is no axis of toy");
        lengths = values;
    }
    std::vector<Workload> workloads;
    for (const std::string& length : lengths) workloads.push_back({name_, toy_problem(std::stoi(length))});
    return workloads;
}

std::string ToyOperation::unavailable(const Workload& workload, const DeviceInfo&) const {
    return workload.fields.integer("length") == 13 ? "length 13 is not served" : "";
}

Verdict ToyOperation::filter(const Workload&, const Config& config, const DeviceInfo&) const {
    Verdict verdict;
    verdict.fits = config.text("kind") != "filtered";
    if (!verdict.fits) verdict.reason = "needs 999999 bytes of shared memory";
    verdict.resources.shared_bytes = 1000;
    return verdict;
}

Config ToyOperation::heuristic(const Workload&, const DeviceInfo&) const {
    for (const Config& config : configs_)
        if (config.text("kind") != "filtered") return config;
    throw Unsupported("toy has no candidates");
}

std::optional<Workload> ToyOperation::shared_winner(const Workload& workload) const {
    const std::int64_t length = workload.fields.integer("length");
    if (length != 40 && length != 41) return std::nullopt;
    return Workload{name_, toy_problem(length == 40 ? 41 : 40)};
}

Workload ToyOperation::workload_of(const Fields& problem) const {
    return {name_, problem};
}

std::vector<KernelSpec> ToyOperation::kernels(const Fields&, const Config& config, const DeviceInfo& device) const {
    if (config.text("kind") != "compile_error") return {};
    KernelSpec spec;
    spec.template_path = "toy/broken.cpp";
    spec.kernel_name = "broken";
    spec.target = device.target();
    return {spec};
}

std::vector<Fields> ToyOperation::problems(const Workload& workload, const DeviceInfo&) const {
    return {workload.fields};
}

std::vector<TestCase> ToyOperation::parity_cases(const Workload& workload, const DeviceInfo&,
                                                 std::uint64_t seed) const {
    return {toy_case(6, seed, true), toy_case(int(workload.fields.integer("length")), seed + 1, false)};
}

TestCase ToyOperation::timing_case(const Workload& workload, const DeviceInfo&, std::uint64_t seed) const {
    return toy_case(int(workload.fields.integer("length")), seed, false);
}

TestCase ToyOperation::problem_case(const Fields& problem, std::uint64_t seed) const {
    return toy_case(int(problem.integer("length")), seed, false);
}

Config ToyOperation::reference_config(const DeviceInfo&) const {
    return toy_config("good", 0, -1);
}

double ToyOperation::flops(const Fields& problem) const {
    return double(problem.integer("length"));
}

double ToyOperation::bytes(const Fields& problem) const {
    return 8.0 * double(problem.integer("length"));
}

std::unique_ptr<Plan> ToyOperation::plan(Runtime& runtime, const Fields& problem, const Config* config,
                                         StreamHandle) const {
    Workload workload = workload_of(problem);
    Config chosen = config ? *config : heuristic(workload, runtime.device().info());
    const std::string& kind = chosen.text("kind");
    if (kind == "out_of_memory") throw DeviceError("out of memory: 1099511627776 bytes");
    if (kind == "compile_error") throw CompileError("toy/broken.cpp does not compile", "error: no such thing");
    if (kind == "bad_alloc") throw std::bad_alloc();
    if (kind == "launch_error")
        throw DeviceError("cuLaunchKernelEx failed: CUDA_ERROR_INVALID_VALUE", 1, "CUDA_ERROR_INVALID_VALUE");
    int length = int(problem.integer("length"));
    return std::make_unique<ToyPlan>(std::move(workload), std::move(chosen), config ? "fixed" : "heuristic", length);
}

std::string toy_worker(const std::string& folder) {
    char self[4096] = {};
    if (::readlink("/proc/self/exe", self, sizeof self - 1) < 0) throw std::runtime_error("no /proc/self/exe");
    std::string path = folder + "/toy worker.sh";
    // Catch's own report must not reach the answers: its file is closed to it.
    std::ofstream(path) << "#!/bin/sh\necho $$ >>'" << folder << "/pids'\nTURBOTUNE_TOY_WORKER=1 exec '" << self
                        << "' '[.worker]' -o /dev/null\n";
    ::chmod(path.c_str(), 0755);
    return path;
}

}  // namespace turbotune

// Not a test: what toy_worker() runs.
TEST_CASE("serves the toy operation to a sweep", "[.worker]") {
    if (!std::getenv("TURBOTUNE_TOY_WORKER")) return;
    static turbotune::ToyOperation toy;
    turbotune::worker_main("cpu", {}, {&toy});
}
