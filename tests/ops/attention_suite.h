// What every tier of disentangled attention must show, on whatever device the runtime has.
#pragma once

#include <cstring>
#include <numeric>
#include <string>

#include "attention_testing.h"
#include "catch.h"
#include "turbotune/base/error.h"
#include "turbotune/ops/disentangled_attention/attention.h"

namespace turbotune::testing {

namespace da = disentangled_attention;

// Elements of a problem, with the products that it allows them: f32 is strict unless told otherwise.
struct ElementType {
    DType dtype;
    da::Math math;
    ElementType(DType type, da::Math products = da::Math::strict) : dtype(type), math(products) {}
    operator DType() const { return dtype; }
};
inline const ElementType kTf32 = {DType::f32, da::Math::fast};

inline RuntimeOptions private_options(const std::string& device) {
    RuntimeOptions options;
    options.device = device;
    options.discover_profiles = false;
    options.store.directory = TURBOTUNE_TEST_STORE;  // each test alone would compile up to hundreds of kernels
    return options;
}

// First config of a tier that fits the problem, or an empty one.
inline Config config_of_tier(Runtime& runtime, const std::string& tier, const Fields& problem) {
    const Operation& operation = da::operation();
    const DeviceInfo& device = runtime.device().info();
    const Workload workload = operation.workload_of(problem);
    for (const Config& config : operation.candidates(workload, device))
        if (config.text("tier") == tier && operation.filter(workload, config, device).fits) return config;
    return {};
}

// A runtime of its own, and one tier of it.
class AttentionSuite {
  public:
    AttentionSuite(const std::string& device, std::string tier)
        : runtime_(private_options(device)), tier_(std::move(tier)) {}

    Runtime& runtime() { return runtime_; }

    // Own data and expected values by the operation's parity cases, at problems of our choice.
    double error_of(const da::Problem& problem, const TestCase& data) {
        const Config config = config_of_tier(runtime_, tier_, problem.to_fields());
        REQUIRE_FALSE(config.empty());
        const NamedTensors outputs = run_case(runtime_, da::operation(), data, &config);
        return largest_error(outputs.at("out"), data.expected.at("out"));
    }

    NamedTensors outputs_of(const TestCase& data) {
        const Config config = config_of_tier(runtime_, tier_, data.problem);
        REQUIRE_FALSE(config.empty());
        return run_case(runtime_, da::operation(), data, &config);
    }

    da::AttentionPlan plan_of(const da::Problem& problem) {
        const Config config = config_of_tier(runtime_, tier_, problem.to_fields());
        REQUIRE_FALSE(config.empty());
        return da::AttentionPlan::create(runtime_, problem, &config);
    }

  private:
    Runtime runtime_;
    std::string tier_;
};

// Bitwise equality of two tensors of the same dtype.
inline bool same_bits(const HostTensor& a, const HostTensor& b) {
    return a.data.size() == b.data.size() && std::memcmp(a.data.data(), b.data.data(), a.data.size()) == 0;
}

}  // namespace turbotune::testing
