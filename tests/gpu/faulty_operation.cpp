#include "faulty_operation.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "catch.h"
#include "turbotune/base/error.h"
#include "turbotune/tuner/sweep.h"

namespace turbotune {

namespace {

constexpr const char* kKinds[] = {"good",  "null_write", "trap",    "endless",       "nothing",      "half",
                                  "wrong", "accumulate", "overrun", "out_of_memory", "launch_error", "compile_error"};

constexpr const char* kTemplate = R"(#include "config"
enum Kind { good, null_write, trap, endless, nothing, half, wrong, accumulate, overrun, out_of_memory, launch_error,
            compile_error };
static_assert(config::kind != compile_error, "this candidate does not compile");

__device__ unsigned long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

// One block of 128 threads.
extern "C" __global__ void __launch_bounds__(128) faulty(float* in, float* out, int length) {
    const unsigned long long start = nanoseconds();
    if (config::kind == null_write) *reinterpret_cast<volatile int*>(0) = 1;
    if (config::kind == trap) asm volatile("trap;");
    while (config::kind == endless && nanoseconds() != 0) {}
    const int written = config::kind == nothing ? 0 : config::kind == half ? length / 2 : length;
    for (int i = threadIdx.x; i < written; i += 128) {
        float value = 2 * in[i];
        if (config::kind == wrong && i == length / 3) value += 1;
        out[i] = value;
    }
    if (config::kind == overrun && threadIdx.x == 0) out[length] = 1;
    __syncthreads();
    if (config::kind == accumulate && threadIdx.x == 0) in[1] += 1;
    while (nanoseconds() - start < 1000ull * config::us) {}
}
)";

int number_of(const std::string& kind) {
    for (int i = 0; i < int(std::size(kKinds)); ++i)
        if (kind == kKinds[i]) return i;
    throw InvalidArgument("kind", kind + " is not known");
}

class FaultyExecution : public Execution {
  public:
    FaultyExecution(std::shared_ptr<LoadedKernel> kernel, DevicePointer in, DevicePointer out, int length)
        : kernel_(std::move(kernel)), in_(in), out_(out), length_(length) {}

    void execute(StreamHandle stream) override {
        LaunchShape shape;
        shape.block[0] = 128;
        void* parameters[] = {&in_, &out_, &length_};
        kernel_->launch(shape, parameters, stream);
    }

  private:
    std::shared_ptr<LoadedKernel> kernel_;
    DevicePointer in_, out_;
    int length_;
};

class FaultyPlan : public Plan {
  public:
    FaultyPlan(Workload workload, Config config, int length, std::shared_ptr<LoadedKernel> kernel)
        : workload_(std::move(workload)), length_(length), kernel_(std::move(kernel)) {
        selection_.config = std::move(config);
        selection_.origin = "fixed";
    }
    const Workload& workload() const override { return workload_; }
    const Config& config() const override { return selection_.config; }
    const Selection& selection() const override { return selection_; }
    std::vector<KernelMetadata> kernels() const override { return {kernel_->metadata()}; }
    std::size_t workspace_bytes() const override {
        return config().text("kind") == "out_of_memory" ? std::size_t{1} << 42 : 16;
    }
    std::unique_ptr<Execution> bind(const Bindings& tensors, DevicePointer) const override {
        return std::make_unique<FaultyExecution>(kernel_, tensors.at("in"), tensors.at("out"), length_);
    }

  private:
    Workload workload_;
    Selection selection_;
    int length_;
    std::shared_ptr<LoadedKernel> kernel_;
};

}  // namespace

std::vector<KernelSpec> FaultyOperation::kernels(const Fields&, const Config& config, const DeviceInfo& device) const {
    KernelSpec spec;
    spec.template_path = "faulty/double.cu";
    spec.kernel_name = "faulty";
    spec.parameters.set("kind", number_of(config.text("kind"))).set("us", config.integer("us"));
    spec.target = device.target();
    return {spec};
}

std::unique_ptr<Plan> FaultyOperation::plan(Runtime& runtime, const Fields& problem, const Config* config,
                                            StreamHandle) const {
    Device& device = runtime.device();
    const Workload workload = workload_of(problem);
    const Config chosen = config ? *config : heuristic(workload, device.info());
    device.make_current();
    auto kernel = runtime.kernels().get(device, kernels(problem, chosen, device.info()).front());
    if (chosen.text("kind") == "launch_error") kernel->allow_shared_memory(std::size_t{1} << 20);
    return std::make_unique<FaultyPlan>(workload, chosen, int(problem.integer("length")), std::move(kernel));
}

void write_faulty_template(const std::string& folder) {
    std::filesystem::create_directories(folder + "/faulty");
    std::ofstream(folder + "/faulty/double.cu") << kTemplate;
}

std::string faulty_worker(const std::string& folder) {
    const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
    const std::string path = folder + "/faulty worker.sh";
    std::ofstream(path) << "#!/bin/sh\necho $$ >>'" << folder << "/pids'\nTURBOTUNE_FAULTY_WORKER=1 exec '" << self
                        << "' '[.faulty_worker]' -o /dev/null\n";
    ::chmod(path.c_str(), 0755);
    return path;
}

}  // namespace turbotune

// Not a test: what faulty_worker() runs.
TEST_CASE("serves the faulty operation to a sweep", "[.faulty_worker]") {
    if (!std::getenv("TURBOTUNE_FAULTY_WORKER")) return;
    static turbotune::FaultyOperation faulty;
    turbotune::worker_main("0", {}, {&faulty});
}
