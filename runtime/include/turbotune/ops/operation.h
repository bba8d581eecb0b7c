// What the tuner, the CLI and the runtime know of an operation. Adding an operation adds one folder
// under ops/ and one under kernel_templates/, and one line in operations().
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "turbotune/base/safetensors.h"
#include "turbotune/base/tensor.h"
#include "turbotune/ops/runtime.h"

namespace turbotune {

enum class Preset { quick, standard, exhaustive };
const char* to_string(Preset preset);
Preset parse_preset(const std::string& name);   // throws InvalidArgument listing the names

// A preset, with some of its axes replaced: {"length": {"128","512"}, "pass": {"inference"}, ...}.
struct WorkloadQuery {
    Preset preset = Preset::standard;
    std::map<std::string, std::vector<std::string>> axes;
};

// What a config needs, known before anything is compiled.
struct Resources {
    int threads = 0;            // per block
    int registers = 0;          // upper bound per thread that the kernel's launch bounds enforce
    std::int64_t shared_bytes = 0;   // dynamic, per block
};

struct Verdict {
    bool fits = false;
    std::string reason;         // when it does not: "needs 180224 bytes of shared memory, device has 101376"
    Resources resources;
};

struct TensorSpec {
    std::string name;           // "q", "out", ...
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape;   // dense row major
};

// A problem with data: for parity, timing and golden files.
struct TestCase {
    std::string label;          // "L=33 mask=holes bf16 seed=1"
    Fields problem;             // what plan() takes
    NamedTensors inputs;
    std::vector<TensorSpec> outputs;
    NamedTensors expected;      // float64 by output name; empty: compare with the plan of reference_config()
    // When not empty: a problem whose outputs are inputs of this one, under the same names, and not yet among `inputs`
    // (a backward pass wants what its forward pass gave). See produce_inputs.
    Fields producer;
    std::vector<TensorSpec> produced;
    double tolerance = 0;       // largest |got - want| allowed, relative to the largest |want| of the tensor
};

// The tensors of a plan by name, in device memory.
using Bindings = std::map<std::string, DevicePointer>;

// A plan bound to its buffers. execute allocates nothing, locks nothing, synchronises nothing.
class Execution {
  public:
    virtual ~Execution() = default;
    virtual void execute(StreamHandle stream) = 0;
};

class Plan {
  public:
    virtual ~Plan() = default;
    virtual const Workload& workload() const = 0;
    virtual const Config& config() const = 0;
    virtual const Selection& selection() const = 0;
    virtual std::vector<KernelMetadata> kernels() const = 0;
    virtual std::size_t workspace_bytes() const = 0;
    // Dense tensors of the shapes in the problem. Throws InvalidArgument for a missing or null tensor. Every
    // tensor and the workspace must outlive the execution.
    virtual std::unique_ptr<Execution> bind(const Bindings& tensors, DevicePointer workspace) const = 0;
};

class Operation {
  public:
    virtual ~Operation() = default;
    virtual const std::string& name() const = 0;

    virtual std::vector<Workload> workloads(const WorkloadQuery& query) const = 0;
    // The names that `axes` may use, with their default values for help texts.
    virtual std::vector<std::pair<std::string, std::string>> axes() const = 0;
    // Empty when kernels exist for the workload on this device; else why not ("pass backward_dq is not available on the mma tier").
    virtual std::string unavailable(const Workload& workload, const DeviceInfo& device) const = 0;

    // Best guess first, over every tier of the device; before the filter.
    virtual std::vector<Config> candidates(const Workload& workload, const DeviceInfo& device) const = 0;
    virtual Verdict filter(const Workload& workload, const Config& config, const DeviceInfo& device) const = 0;
    // Always fits. Throws Unsupported when nothing does.
    virtual Config heuristic(const Workload& workload, const DeviceInfo& device) const = 0;
    virtual std::vector<Workload> neighbours(const Workload& workload) const = 0;
    // Another workload with the same problems and kernels: the tuner measures one of the two and enters both.
    virtual std::optional<Workload> shared_winner(const Workload&) const { return std::nullopt; }

    virtual Workload workload_of(const Fields& problem) const = 0;
    // Every kernel that plan(problem, config) loads.
    virtual std::vector<KernelSpec> kernels(const Fields& problem, const Config& config, const DeviceInfo& device) const = 0;

    // One problem for each set of kernels that tuning the workload compiles (one per element type, say), without data:
    // what compile-ahead asks. kernels() of these covers kernels() of every parity and timing case.
    virtual std::vector<Fields> problems(const Workload& workload, const DeviceInfo& device) const {
        return {timing_case(workload, device, 1).problem};
    }

    // The producers of the workload's test cases (TestCase::producer), one for each set of kernels, without data: what
    // compile-ahead asks besides.
    virtual std::vector<Fields> producers(const Workload&, const DeviceInfo&) const { return {}; }

    // Problems of the workload for whose length plan() takes another config than the one it chose for the workload, and
    // that config: what warming a cache compiles besides.
    virtual std::vector<std::pair<Fields, Config>> exceptions(const Workload&, const Config&, const DeviceInfo&) const {
        return {};
    }

    // Small and odd shapes with every mask pattern and float64 results, then the full length of the family with
    // no `expected` (reference_config). `seed` draws fresh data.
    virtual std::vector<TestCase> parity_cases(const Workload& workload, const DeviceInfo& device, std::uint64_t seed) const = 0;
    // Random inputs at the workload's full size. No expected values.
    virtual TestCase timing_case(const Workload& workload, const DeviceInfo& device, std::uint64_t seed) const = 0;
    // A problem of usual sizes with every field set, and random inputs (no expected values) of any problem: what
    // `turbotune bench` starts from.
    virtual Fields example_problem() const = 0;
    virtual TestCase problem_case(const Fields& problem, std::uint64_t seed) const = 0;
    // A deliberately plain kernel, independent of every candidate; never selected.
    virtual Config reference_config(const DeviceInfo& device) const = 0;
    // Useful floating-point operations and compulsory bytes of one execution, for reports.
    virtual double flops(const Fields& problem) const = 0;
    virtual double bytes(const Fields& problem) const = 0;

    // Problems with data from a golden file: one per pass and dtype that exist here. Parts of the file that no pass
    // serves yet are named in `skipped` as (pass, reason). Throws InvalidArgument for a malformed file.
    virtual std::vector<TestCase> golden_cases(const SafetensorsFile& file,
                                               std::vector<std::pair<std::string, std::string>>* skipped) const = 0;

    // config == nullptr: by the runtime's policy. Throws Unsupported, InvalidArgument, CompileError, DeviceError, ProfileMiss.
    virtual std::unique_ptr<Plan> plan(Runtime& runtime, const Fields& problem, const Config* config,
                                       StreamHandle stream = nullptr) const = 0;
};

// Runs the case's producer, if it has one, by the heuristic's config, and moves its outputs to the inputs.
void produce_inputs(Runtime& runtime, const Operation& operation, TestCase& test_case);

// Every operation of this build.
const std::vector<const Operation*>& operations();
// Throws InvalidArgument listing the names.
const Operation& find_operation(const std::string& name);

}  // namespace turbotune
