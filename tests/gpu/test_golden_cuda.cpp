#include <algorithm>
#include <filesystem>
#include <map>

#include "../ops/attention_suite.h"
#include "cases.h"
#include "catch.h"
#include "tier.h"

using namespace turbotune;
using namespace turbotune::testing;

TEST_CASE("every tier meets the golden values of every pass in every dtype it serves", "[gpu][golden][long]") {
    Runtime runtime(private_options("0"));
    const Operation& operation = da::operation();
    const DeviceInfo& device = runtime.device().info();
    for (const auto& entry : std::filesystem::directory_iterator(TURBOTUNE_TEST_DATA)) {
        const std::string file = entry.path().filename().string();
        if (file.rfind("da_", 0) != 0) continue;
        DYNAMIC_SECTION(file) {
            std::map<std::string, int> served;
            std::vector<TestCase> cases = operation.golden_cases(read_safetensors(entry.path().string()), nullptr);
            for (std::size_t i = 0, strict = cases.size(); i < strict; ++i) {  // f32 once more, in tf32
                da::Problem problem = da::Problem::from_fields(cases[i].problem);
                if (problem.dtype != DType::f32) continue;
                problem.math = da::Math::fast;
                TestCase fast = cases[i];
                fast.problem = problem.to_fields();
                fast.tolerance = da::tolerance_of(problem);
                cases.push_back(fast);
            }
            for (const TestCase& data : cases) {
                const Workload workload = operation.workload_of(data.problem);
                std::vector<Config> configs = {operation.reference_config(device)};
                for (const Config& config : operation.candidates(workload, device)) {
                    const bool first = std::none_of(configs.begin(), configs.end(), [&](const Config& other) {
                        return other.text("tier") == config.text("tier");
                    });
                    if (first && operation.filter(workload, config, device).fits) configs.push_back(config);
                }
                for (const Config& config : configs) {
                    INFO(data.label << " " << config.to_string());
                    const NamedTensors outputs = run_case(runtime, operation, data, &config);
                    for (const auto& [name, expected] : data.expected) {
                        INFO(name);
                        CHECK(largest_error(outputs.at(name), expected) <= data.tolerance);
                    }
                    ++served[config.text("tier")];
                }
            }
            CHECK(served["simt"] == 12);  // three passes, three dtypes and tf32
            CHECK(served["reference"] == 12);
        }
    }
}
