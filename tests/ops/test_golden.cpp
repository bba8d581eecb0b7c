#include <algorithm>
#include <filesystem>

#include "attention_testing.h"
#include "catch.h"
#include "turbotune/base/error.h"
#include "turbotune/ops/disentangled_attention/attention.h"

using namespace turbotune;
using namespace turbotune::testing;
namespace fs = std::filesystem;

namespace {

std::vector<std::string> golden_files(const std::string& prefix) {
    std::vector<std::string> paths;
    for (const auto& entry : fs::directory_iterator(TURBOTUNE_TEST_DATA))
        if (entry.path().filename().string().rfind(prefix, 0) == 0) paths.push_back(entry.path().string());
    std::sort(paths.begin(), paths.end());
    return paths;
}

RuntimeOptions cpu_options() {
    RuntimeOptions options;
    options.device = "cpu";
    options.discover_profiles = false;
    options.store.directory = TURBOTUNE_TEST_STORE;
    return options;
}

}  // namespace

TEST_CASE("the CPU device meets the golden values in every dtype", "[golden][slow][long]") {
    const Operation& operation = disentangled_attention::operation();
    Runtime runtime(cpu_options());
    const std::vector<std::string> files = golden_files("da_");
    REQUIRE(files.size() == 10);
    for (const std::string& path : files) {
        std::vector<std::pair<std::string, std::string>> skipped;
        const std::vector<TestCase> cases = operation.golden_cases(read_safetensors(path), &skipped);
        REQUIRE(cases.size() == 9);  // three passes, three dtypes
        for (const TestCase& test_case : cases) {
            INFO(path << " " << test_case.label);
            const NamedTensors outputs = run_case(runtime, operation, test_case);
            for (const auto& [name, expected] : test_case.expected)
                CHECK(largest_error(outputs.at(name), expected) <= test_case.tolerance);
        }
    }
}

TEST_CASE("the plain reference meets the golden values to fp32 rounding", "[golden]") {
    const Operation& operation = disentangled_attention::operation();
    Runtime runtime(cpu_options());
    const Config config = operation.reference_config(runtime.device().info());
    for (const std::string& path : golden_files("da_both_l")) {
        const TestCase test_case = operation.golden_cases(read_safetensors(path), nullptr).front();
        INFO(path);
        const NamedTensors outputs = run_case(runtime, operation, test_case, &config);
        CHECK(largest_error(outputs.at("out"), test_case.expected.at("out")) <= 1e-6);
    }
}

TEST_CASE("a golden file with a wrong shape or without its description is refused", "[golden]") {
    const Operation& operation = disentangled_attention::operation();
    SafetensorsFile file = read_safetensors(TURBOTUNE_TEST_DATA "/da_none_l50_d64.safetensors");
    SafetensorsFile broken = file;
    broken.metadata.clear();
    REQUIRE_THROWS_AS(operation.golden_cases(broken, nullptr), InvalidArgument);
    broken = file;
    broken.tensors.at("in.k").shape = {1, 128, 50};
    REQUIRE_THROWS_AS(operation.golden_cases(broken, nullptr), InvalidArgument);
    broken = file;
    broken.tensors.erase("in.v");
    REQUIRE_THROWS_AS(operation.golden_cases(broken, nullptr), InvalidArgument);
}
