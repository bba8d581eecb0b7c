#include <algorithm>
#include <filesystem>
#include <map>

#include "../ops/attention_suite.h"
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
            for (const TestCase& data : operation.golden_cases(read_safetensors(entry.path().string()), nullptr)) {
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
            CHECK(served["simt"] == 9);  // three passes, three dtypes
            CHECK(served["reference"] == 9);
        }
    }
}
