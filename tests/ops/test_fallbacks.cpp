// What a plan does when a profile's config does not compile here, and what it leaves behind in the caller's thread.
#include <filesystem>

#include "../device/run_self.h"
#include "../kernel/kernel_testing.h"
#include "catch.h"
#include "turbotune/base/error.h"
#include "turbotune/base/log.h"
#include "turbotune/base/sha256.h"
#include "turbotune/device/cuda_driver.h"
#include "turbotune/kernel/compiler.h"
#include "turbotune/ops/operation.h"

using namespace turbotune;
using namespace turbotune::testing;
using turbotune::test::run_self;

namespace fs = std::filesystem;

namespace {

const Operation& attention() {
    return find_operation("disentangled_attention");
}

Workload a_workload() {
    return attention()
        .workloads({Preset::quick, {{"pass", {"inference"}}, {"layout", {"padded"}}, {"precision", {"fp32_strict"}}}})
        .at(0);
}

// A config of the best tier other than the heuristic's, and "axis == value" for a field in which they differ.
Config another_config(const DeviceInfo& device, std::string* condition) {
    const Config first = attention().heuristic(a_workload(), device);
    for (const Config& config : attention().candidates(a_workload(), device))
        for (const auto& [name, value] : config.entries())
            if (const auto* number = std::get_if<std::int64_t>(&value);
                number && *first.find(name) != value && attention().filter(a_workload(), config, device).fits) {
                *condition = "config::" + name + " == " + std::to_string(*number);
                return config;
            }
    return {};
}

}  // namespace

TEST_CASE(
    "a profile of another compiler whose config does not compile here falls back, and says so; an exact one fails",
    "[fallback]") {
    const TempFolder folder;
    const Device& device = open_device("cpu");
    std::string condition;
    const Config config = another_config(device.info(), &condition);
    REQUIRE_FALSE(config.empty());

    // Templates that refuse the config.
    const std::string templates = folder.path() + "/templates";
    fs::copy(TURBOTUNE_SOURCE_DIR "/kernel_templates", templates, fs::copy_options::recursive);
    const std::string path = templates + "/disentangled_attention/forward_host.cpp";
    write_text(path, read_text(path) + "\nstatic_assert(!(" + condition + "), \"refused here\");\n");
    const ScopedVariable chosen("TURBOTUNE_TEMPLATE_DIR", templates);
    const ScopedVariable temp("TMPDIR", folder.path());

    Profile profile;
    profile.device_class = device.info().device_class;
    profile.templates["disentangled_attention"] = to_hex(template_digest("disentangled_attention"));
    profile.entries.resize(1);
    profile.entries[0].workload = a_workload();
    profile.entries[0].config = config;
    profile.entries[0].latency = {1, 1, 1, 1, 20};
    const Fields problem = attention().problems(a_workload(), device.info()).at(0);
    RuntimeOptions options;
    options.device = "cpu";
    options.discover_profiles = false;
    options.profiles = {folder.path() + "/p.json"};
    options.store.memory_only = true;

    profile.compiler = "another compiler";
    save_profile(profile, options.profiles[0]);
    {
        Runtime runtime(options);
        std::vector<std::string> warnings;
        set_log_sink([&](LogLevel, const std::string& message) { warnings.push_back(message); });
        const auto plan = attention().plan(runtime, problem, nullptr);
        CHECK(plan->selection().origin == "heuristic");
        CHECK(plan->config() == attention().heuristic(a_workload(), device.info()));
        CHECK(plan->selection().note.find("refused here") != std::string::npos);
        set_log_sink({});
        REQUIRE(warnings.size() == 1);
        CHECK(warnings[0].find("does not compile here") != std::string::npos);
    }
    profile.compiler = host_compiler().identity();
    save_profile(profile, options.profiles[0]);
    Runtime runtime(options);
    REQUIRE_THROWS_AS(attention().plan(runtime, problem, nullptr), CompileError);
}

TEST_CASE("Child: plan while another device is current", "[.child]") {
    if (!test::is_child()) return;
    const cuda::Driver* driver = cuda::driver();
    REQUIRE(driver != nullptr);
    open_device("0").make_current();
    open_device("1").make_current();
    cuda::Context before = nullptr, after = nullptr;
    REQUIRE(driver->CtxGetCurrent(&before) == 0);
    REQUIRE(before != nullptr);
    RuntimeOptions options;
    options.device = "0";
    options.discover_profiles = false;
    options.store.memory_only = true;
    Runtime runtime(options);
    const Fields problem = attention().problems(a_workload(), runtime.device().info()).at(0);
    std::unique_ptr<Plan> plan;
    try {
        plan = attention().plan(runtime, problem, nullptr);
    } catch (const CompileError&) {  // no NVRTC here: the context comes back all the same
    }
    REQUIRE(driver->CtxGetCurrent(&after) == 0);
    REQUIRE(after == before);
    if (!plan) return;
    const Bindings tensors = [&] {
        Bindings all;
        for (const char* name : {"q", "k", "v", "position_key", "position_query", "out"})
            all[name] = reinterpret_cast<void*>(0x1000);  // the driver here launches nothing
        return all;
    }();
    REQUIRE_THROWS_AS(plan->bind(tensors, reinterpret_cast<void*>(0x1000))->execute(nullptr), DeviceError);
    REQUIRE(driver->CtxGetCurrent(&after) == 0);
    REQUIRE(after == before);
}

TEST_CASE("A plan and its execution leave the caller's device current", "[fallback]") {
    const TempFolder folder;
    const std::string problem = test::build_fake_driver(folder.path());
    INFO(problem);
    REQUIRE(problem.empty());
    const test::Finished finished =
        run_self("Child: plan while another device is current",
                 {{"LD_LIBRARY_PATH", folder.path()}, {"FAKE_LOADS", "1"}, {"FAKE_CC", "80"}});
    INFO(finished.output);
    CHECK(finished.passed());
}
