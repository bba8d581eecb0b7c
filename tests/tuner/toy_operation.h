// An operation for tests of the tuner: out = 2 * in, by configs that behave well or badly in a named way. It needs no
// kernels, except for kind=compile_error.
#pragma once

#include <string>
#include <vector>

#include "turbotune/ops/operation.h"

namespace turbotune {

// kind: good, wrong, partial, unwritten, accumulate, overrun, workspace_overrun, unrepeatable, segv, abort, hang, exit,
// out_of_memory, bad_alloc, launch_error, sticky, chatter, late_segv, compile_error, filtered.
// us: how long one execution takes, in microseconds.
Config toy_config(const std::string& kind, int us, int id = 0);

class ToyOperation : public Operation {
  public:
    explicit ToyOperation(std::vector<Config> configs = {}) : configs_(std::move(configs)) {}

    void set_configs(std::vector<Config> configs) { configs_ = std::move(configs); }

    const std::string& name() const override { return name_; }
    std::vector<Workload> workloads(const WorkloadQuery& query) const override;
    std::vector<std::pair<std::string, std::string>> axes() const override { return {{"length", "64"}}; }
    std::string unavailable(const Workload& workload, const DeviceInfo& device) const override;
    std::vector<Config> candidates(const Workload&, const DeviceInfo&) const override { return configs_; }
    Verdict filter(const Workload& workload, const Config& config, const DeviceInfo& device) const override;
    Config heuristic(const Workload& workload, const DeviceInfo& device) const override;
    std::vector<Workload> neighbours(const Workload&) const override { return {}; }
    // Lengths 40 and 41 are one measurement.
    std::optional<Workload> shared_winner(const Workload& workload) const override;
    Workload workload_of(const Fields& problem) const override;
    std::vector<KernelSpec> kernels(const Fields& problem, const Config& config,
                                    const DeviceInfo& device) const override;
    std::vector<Fields> problems(const Workload& workload, const DeviceInfo& device) const override;
    std::vector<TestCase> parity_cases(const Workload& workload, const DeviceInfo& device,
                                       std::uint64_t seed) const override;
    TestCase timing_case(const Workload& workload, const DeviceInfo& device, std::uint64_t seed) const override;
    Fields example_problem() const override { return Fields{}.set("length", 64); }
    TestCase problem_case(const Fields& problem, std::uint64_t seed) const override;
    Config reference_config(const DeviceInfo& device) const override;
    double flops(const Fields& problem) const override;
    double bytes(const Fields& problem) const override;
    std::vector<TestCase> golden_cases(const SafetensorsFile&,
                                       std::vector<std::pair<std::string, std::string>>*) const override {
        return {};
    }
    std::unique_ptr<Plan> plan(Runtime& runtime, const Fields& problem, const Config* config,
                               StreamHandle stream) const override;

  private:
    std::string name_ = "toy";
    std::vector<Config> configs_;
};

TestCase toy_case(int length, std::uint64_t seed, bool with_expected);

// A program for SweepOptions::worker_program that serves the toy operation: a script in `folder`.
std::string toy_worker(const std::string& folder);

}  // namespace turbotune
