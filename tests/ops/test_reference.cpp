#include "reference.h"

#include <filesystem>

#include "attention_testing.h"
#include "catch.h"
#include "turbotune/ops/disentangled_attention/attention.h"

using namespace turbotune;
using namespace turbotune::testing;

TEST_CASE("the float64 reference agrees with the golden values to their fp32 rounding", "[reference]") {
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(TURBOTUNE_TEST_DATA)) {
        if (entry.path().filename().string().rfind("da_", 0) != 0) continue;
        ++files;
        const TestCase golden =
            disentangled_attention::operation().golden_cases(read_safetensors(entry.path().string()), nullptr).front();
        const NamedTensors outputs = disentangled_attention::forward_reference(
            disentangled_attention::Problem::from_fields(golden.problem), golden.inputs);
        INFO(entry.path().filename());
        CHECK(largest_error(outputs.at("out"), golden.expected.at("out")) < 3e-7);
    }
    CHECK(files == 10);
}

TEST_CASE("the reference gives hidden queries the mean of the values and a uniform lse", "[reference]") {
    disentangled_attention::Problem problem;
    problem.heads = 2;
    problem.length = 6;
    problem.head_dim = 32;
    problem.dtype = DType::f32;
    problem.mask = true;
    problem.position_buckets = 4;
    problem.max_relative_positions = 8;
    NamedTensors inputs;
    for (const char* name : {"q", "k", "v"}) {
        inputs[name] = HostTensor(DType::f32, {1, 6, 64});
        for (std::int64_t i = 0; i < inputs[name].size(); ++i) inputs[name].set(i, double(i % 7) - 3);
    }
    inputs["position_key"] = inputs["position_query"] = HostTensor(DType::f32, {8, 64});
    inputs["mask"] = HostTensor(DType::u8, {1, 6});
    for (int j : {0, 1, 4}) inputs["mask"].set(j, 1);
    const NamedTensors outputs = disentangled_attention::forward_reference(problem, inputs);
    for (int i : {2, 3, 5})
        for (int d = 0; d < 64; ++d) {
            double mean = 0;
            for (int j = 0; j < 6; ++j) mean += inputs["v"].at(j * 64 + d) / 6;
            REQUIRE(outputs.at("out").at(i * 64 + d) == Approx(mean).margin(1e-12));
            REQUIRE(outputs.at("lse").at(i) == Approx(std::log2(6.0)));
        }
}
