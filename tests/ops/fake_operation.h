// An operation of a few lines for the tests of the runtime: out = 2 * in on the host, with candidates that are slow,
// wrong or broken on demand.
#pragma once

#include <atomic>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <thread>

#include "turbotune/base/error.h"
#include "turbotune/ops/operation.h"

namespace turbotune::test {

enum class Fault { none, compile_error, device_error, not_finite, unwritten };

struct Behaviour {
    double ms = 0.2;  // of one execution
    Fault fault = Fault::none;
};

class FakeOperation : public Operation {
  public:
    // By the config's field `block`, which is at most 64.
    std::map<std::int64_t, Behaviour> behaviours = {{8, {}}};
    std::vector<std::int64_t> blocks = {8};
    std::int64_t heuristic_block = 8;
    std::int64_t output_elements = 0;  // of the timing case; 0: the workload's size
    mutable std::atomic<int> plans{0}, timing_cases{0};

    static Config config_of(std::int64_t block) { return Fields().set("tier", "host").set("block", FieldValue(block)); }
    static Workload workload_for(std::int64_t size) {
        return {"fake_operation", Fields().set("size", FieldValue(size))};
    }
    static Fields problem_of(std::int64_t size) { return Fields().set("size", FieldValue(size)); }

    int executions(std::int64_t block) const {
        const std::lock_guard lock(mutex_);
        const auto found = executions_.find(block);
        return found == executions_.end() ? 0 : found->second;
    }

    const std::string& name() const override { return name_; }
    std::vector<Workload> workloads(const WorkloadQuery&) const override { return {workload_for(1024)}; }
    std::vector<std::pair<std::string, std::string>> axes() const override { return {}; }
    std::string unavailable(const Workload&, const DeviceInfo&) const override { return {}; }

    std::vector<Config> candidates(const Workload&, const DeviceInfo&) const override {
        std::vector<Config> configs;
        for (const std::int64_t block : blocks) configs.push_back(config_of(block));
        return configs;
    }
    Verdict filter(const Workload&, const Config& config, const DeviceInfo&) const override {
        const std::int64_t block = config.integer("block");
        if (block > 64) return {false, "block " + std::to_string(block) + " is more than 64", {}};
        return {true, {}, {}};
    }
    Config heuristic(const Workload&, const DeviceInfo&) const override { return config_of(heuristic_block); }
    std::vector<Workload> neighbours(const Workload& workload) const override {
        const std::int64_t size = workload.fields.integer("size");
        return {workload_for(2 * size), workload_for(size / 2)};
    }
    Workload workload_of(const Fields& problem) const override { return workload_for(problem.integer("size")); }
    std::vector<KernelSpec> kernels(const Fields&, const Config&, const DeviceInfo&) const override { return {}; }

    std::vector<TestCase> parity_cases(const Workload&, const DeviceInfo&, std::uint64_t) const override { return {}; }
    TestCase timing_case(const Workload& workload, const DeviceInfo&, std::uint64_t) const override {
        ++timing_cases;
        const std::int64_t size = workload.fields.integer("size");
        TestCase result;
        result.problem = problem_of(size);
        result.inputs["in"] = HostTensor(DType::f32, {size});
        for (std::int64_t i = 0; i < size; ++i) result.inputs["in"].set(i, static_cast<double>(i));
        result.outputs = {{"out", DType::f32, {output_elements ? output_elements : size}}};
        return result;
    }
    Fields example_problem() const override { return problem_of(8); }
    TestCase problem_case(const Fields& problem, std::uint64_t) const override {
        return timing_case(workload_of(problem), {}, 0);
    }
    Config reference_config(const DeviceInfo&) const override { return config_of(1); }
    double flops(const Fields&) const override { return 0; }
    double bytes(const Fields&) const override { return 0; }
    std::vector<TestCase> golden_cases(const SafetensorsFile&,
                                       std::vector<std::pair<std::string, std::string>>*) const override {
        return {};
    }

    std::unique_ptr<Plan> plan(Runtime& runtime, const Fields& problem, const Config* config,
                               StreamHandle stream) const override {
        ++plans;
        const Workload workload = workload_of(problem);
        Selection selection;
        if (config)
            selection.config = *config;
        else
            selection = runtime.select(*this, workload, problem, stream);
        const auto behaviour = behaviours.find(selection.config.integer("block"));
        if (behaviour != behaviours.end() && behaviour->second.fault == Fault::compile_error)
            throw CompileError("this candidate does not compile");
        return std::make_unique<FakePlan>(*this, workload, selection);
    }

  private:
    class FakeExecution : public Execution {
      public:
        FakeExecution(const FakeOperation& operation, std::int64_t block, std::int64_t size, const Bindings& tensors)
            : operation_(operation),
              block_(block),
              size_(size),
              in_(static_cast<const float*>(tensors.at("in"))),
              out_(static_cast<float*>(tensors.at("out"))) {}

        void execute(StreamHandle) override {
            {
                const std::lock_guard lock(operation_.mutex_);
                ++operation_.executions_[block_];
            }
            const auto found = operation_.behaviours.find(block_);
            const Behaviour behaviour = found == operation_.behaviours.end() ? Behaviour{} : found->second;
            std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(behaviour.ms));
            if (behaviour.fault == Fault::device_error) throw DeviceError("launch failed", 700, "CUDA_ERROR");
            const std::int64_t written = behaviour.fault == Fault::unwritten ? size_ - 1 : size_;
            for (std::int64_t i = 0; i < written; ++i) out_[i] = 2 * in_[i];
            if (behaviour.fault == Fault::not_finite) out_[size_ / 2] = INFINITY;
        }

      private:
        const FakeOperation& operation_;
        std::int64_t block_, size_;
        const float* in_;
        float* out_;
    };

    class FakePlan : public Plan {
      public:
        FakePlan(const FakeOperation& operation, Workload workload, Selection selection)
            : operation_(operation), workload_(std::move(workload)), selection_(std::move(selection)) {}
        const Workload& workload() const override { return workload_; }
        const Config& config() const override { return selection_.config; }
        const Selection& selection() const override { return selection_; }
        std::vector<KernelMetadata> kernels() const override { return {}; }
        std::size_t workspace_bytes() const override { return 64; }
        std::unique_ptr<Execution> bind(const Bindings& tensors, DevicePointer workspace) const override {
            if (!workspace) throw InvalidArgument("workspace", "null");
            return std::make_unique<FakeExecution>(operation_, selection_.config.integer("block"),
                                                   workload_.fields.integer("size"), tensors);
        }

      private:
        const FakeOperation& operation_;
        Workload workload_;
        Selection selection_;
    };

    std::string name_ = "fake_operation";
    mutable std::mutex mutex_;
    mutable std::map<std::int64_t, int> executions_;
};

}  // namespace turbotune::test
