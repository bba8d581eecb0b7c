// A store that is filled where there is no such device holds what programs on one then ask for.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "catch.h"
#include "program.h"
#include "turbotune/base/error.h"
#include "turbotune/base/json.h"
#include "turbotune/kernel/compiler.h"
#include "turbotune/ops/operation.h"

using namespace turbotune;
using namespace turbotune::test;

namespace {

using Words = std::vector<std::string>;

// A few workloads that have kernels on every tier.
const Words kFew = {"--preset", "quick", "--passes", "inference", "--ops", "disentangled_attention"};

Words warm(const Words& more, const Words& which = kFew) {
    Words command = {"cache", "warm", "--json"};
    command.insert(command.end(), which.begin(), which.end());
    command.insert(command.end(), more.begin(), more.end());
    return command;
}

Json report_of(const Outcome& outcome) {
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    return parse_json(outcome.out, "standard output");
}

bool have_nvrtc() {
    try {
        return !nvrtc_targets().empty();
    } catch (const CompileError& error) {
        WARN("not run: " << error.what());
        return false;
    }
}

// Runs the case below in a process of its own; "compiles=N store_hits=N" of every problem that kFew covers.
std::string plan_in_child(const TempDir& home, const std::string& device,
                          std::map<std::string, std::string> environment = {}) {
    environment["TURBOTUNE_TEST_DEVICE"] = device;
    const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
    const Outcome outcome = Running(home, {self, "Child: plan what was warmed"}, environment).wait(300);
    INFO(outcome.out << outcome.err);
    REQUIRE(outcome.exit_code == 0);
    const std::size_t begin = outcome.out.find("compiles=");
    REQUIRE(begin != std::string::npos);
    return outcome.out.substr(begin, outcome.out.find('\n', begin) - begin);
}

}  // namespace

TEST_CASE("Child: plan what was warmed", "[.child]") {
    const char* device = std::getenv("TURBOTUNE_TEST_DEVICE");
    if (device == nullptr) return;
    RuntimeOptions options;
    options.device = device;
    Runtime runtime(options);
    const Operation& operation = find_operation("disentangled_attention");
    std::vector<Workload> workloads = operation.workloads({Preset::quick, {{"pass", {"inference"}}}});
    if (std::getenv("TURBOTUNE_TEST_ONE_WORKLOAD") != nullptr) workloads.resize(1);
    for (const Workload& workload : workloads)
        for (const Fields& few : operation.problems(workload, runtime.device().info())) {
            Fields many = few;  // more than any device takes at once: may be served by another config
            many.set("batch", 400);
            operation.plan(runtime, few, nullptr);
            operation.plan(runtime, many, nullptr);
        }
    const KernelCacheStatistics kernels = runtime.statistics().kernels;
    std::printf("\ncompiles=%d store_hits=%d\n", int(kernels.compiles), int(kernels.store_hits));
    if (kernels.compiles == 0) CHECK_FALSE(nvrtc_loaded());
}

TEST_CASE("cache warm for the CPU leaves a program nothing to compile", "[cache_warm][slow]") {
    const TempDir home;
    const Json first = report_of(run_turbotune(home, warm({"--arch", "cpu"})));
    const int kernels = first["kernels"];
    CHECK(kernels > 0);
    CHECK(first["compiled"] == kernels);
    CHECK(first["found"] == 0);
    CHECK(first["directory"] == home / "cache");
    CHECK(first["devices"].size() == 1);
    CHECK(first["devices"][0]["from_heuristic"] == first["workloads"]);
    CHECK(plan_in_child(home, "cpu") == "compiles=0 store_hits=" + std::to_string(kernels));

    const Json second = report_of(run_turbotune(home, warm({"--arch", "cpu"})));
    CHECK(second["compiled"] == 0);
    CHECK(second["found"] == kernels);
}

TEST_CASE("cache warm for sm_90 on a machine without a GPU serves the GPU that is there later",
          "[cache_warm][nvrtc][slow]") {
    if (!have_nvrtc()) return;
    const TempDir home;
    const char* chosen = std::getenv("CXX");
    const Outcome built = run_program(
        home, {chosen && *chosen ? chosen : "c++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", home / "libcuda.so.1",
               TURBOTUNE_SOURCE_DIR "/tests/device/fake_driver/fake_libcuda.cpp", "-pthread"});
    INFO(built.err);
    REQUIRE(built.exit_code == 0);
    std::map<std::string, std::string> driver = {
        {"LD_LIBRARY_PATH", home.path()}, {"FAKE_LOADS", "1"}, {"TURBOTUNE_TEST_ONE_WORKLOAD", "1"}};
    const Words one = {"--preset", "quick", "--passes", "inference", "--layouts", "padded"};

    // By the heuristic, then by the winners of the profile that ships for this class.
    for (const std::string& shipped : {home / "no profiles", std::string(TURBOTUNE_SOURCE_DIR "/profiles")}) {
        INFO(shipped);
        std::map<std::string, std::string> profiles = {{"TURBOTUNE_SHIPPED_PROFILES", shipped}};
        const Json report = report_of(run_turbotune(home, warm({"--arch", "sm_90"}, one), profiles));
        CHECK(report["devices"][0]["target"] == "sm_90a");
        driver["TURBOTUNE_SHIPPED_PROFILES"] = shipped;
        CHECK(plan_in_child(home, "0", driver) == "compiles=0 store_hits=" + report["kernels"].dump());
    }
    // Another GPU finds nothing of it.
    driver["FAKE_CC"] = "80";
    CHECK(plan_in_child(home, "0", driver).find("store_hits=0") != std::string::npos);
}

TEST_CASE("cache warm takes a device class, and every candidate when asked", "[cache_warm][nvrtc][slow]") {
    if (!have_nvrtc()) return;
    const TempDir home;
    const Words one = {"--preset", "quick", "--passes", "inference", "--layouts", "padded", "--dtypes", "fp32_strict"};
    const std::string name = "sm_80-64sm-5MiB-163KiB-320bit";
    const Json report = report_of(run_turbotune(home, warm({"--arch", name}, one)));
    CHECK(report["devices"][0]["class"] == name);
    CHECK(report["kernels"] == 1);
    const Json all = report_of(run_turbotune(home, warm({"--arch", name, "--all-candidates"}, one)));
    CHECK(all["kernels"] > 2);
    CHECK(all["found"] == 1);
}

TEST_CASE("cache warm compiles the winners of the profiles that programs will find", "[cache_warm][slow]") {
    const TempDir home;
    const Outcome tuned = run_turbotune(home, {"--device", "cpu", "--preset", "quick", "--passes", "inference",
                                               "--layouts", "padded", "--output", home / "profiles/mine.json"});
    INFO(tuned.err);
    REQUIRE(tuned.exit_code == 0);
    REQUIRE(run_turbotune(home, {"cache", "clear"}).exit_code == 0);
    const Json report = report_of(run_turbotune(home, warm({"--arch", "cpu"})));
    CHECK(report["devices"][0]["from_profiles"] >= 1);
    CHECK(plan_in_child(home, "cpu") == "compiles=0 store_hits=" + report["kernels"].dump());

    // Named ones serve where none is found.
    const std::map<std::string, std::string> hidden = {{"TURBOTUNE_PROFILE_DIR", home / "none"}};
    const Words elsewhere = {"--arch", "cpu", "--directory", home / "other/deep/store"};
    Words named = elsewhere;
    named.insert(named.end(), {"--profile", home / "profiles/mine.json"});
    const Json with = report_of(run_turbotune(home, warm(named), hidden));
    CHECK(with["devices"][0]["from_profiles"] == report["devices"][0]["from_profiles"]);
    CHECK(with["directory"] == home / "other/deep/store");
    CHECK(report_of(run_turbotune(home, warm(elsewhere), hidden))["devices"][0]["from_profiles"] == 0);
}

TEST_CASE("cache warm says by its exit code what is missing", "[cache_warm]") {
    const TempDir home;
    const auto run = [&](const Words& command, std::map<std::string, std::string> environment = {}) {
        return run_turbotune(home, command, std::move(environment));
    };
    const Outcome unknown = run(warm({"--arch", "sm_42"}));
    CHECK(unknown.exit_code == 2);
    CHECK(unknown.err.find("--arch: 'sm_42' is none of sm_80, ") != std::string::npos);
    CHECK(run({"cache", "warm"}).exit_code == 2);
    CHECK(run(warm({"--arch", "cpu", "--profile", home / "absent.json"})).exit_code == 2);

    // A compiler that always fails, and a folder that cannot be used.
    write_text(home / "c++", "#!/bin/sh\necho broken >&2; exit 1\n");
    std::filesystem::permissions(home / "c++", std::filesystem::perms::owner_all);
    const Outcome failed = run(warm({"--arch", "cpu"}), {{"CXX", home / "c++"}});
    CHECK(failed.exit_code == 1);
    const Json report = parse_json(failed.out, "standard output");
    CHECK(report["failures"].size() == report["kernels"]);
    CHECK(std::string(report["failures"][0]["why"]).find("broken") != std::string::npos);
    write_text(home / "file", "");
    const Outcome homeless = run(warm({"--arch", "cpu", "--directory", home / "file/store"}));
    CHECK(homeless.exit_code == 2);
    CHECK(homeless.err.find("--directory") != std::string::npos);
}

TEST_CASE("cache warm stops at Ctrl-C and the same command goes on", "[cache_warm]") {
    const TempDir home;
    const Words command = warm({"--arch", "cpu", "--jobs", "1"}, {"--preset", "exhaustive", "--passes", "inference"});
    Words words = command;
    words.insert(words.begin(), turbotune_program());
    {
        Running running(home, words);
        const auto has_entry = [&] {
            std::error_code error;
            for (std::filesystem::recursive_directory_iterator each(home / "cache", error), end; each != end && !error;
                 each.increment(error))
                if (each->path().filename().string().size() == 64) return true;
            return false;
        };
        for (int tries = 0; tries < 6000 && !has_entry(); ++tries) ::usleep(10000);
        running.send(SIGINT);
        const Outcome outcome = running.wait(60);
        INFO(outcome.err);
        CHECK(outcome.exit_code == 130);
        const Json report = parse_json(outcome.out, "standard output");
        CHECK(report["interrupted"] == true);
        CHECK(report["compiled"] < report["kernels"]);
        CHECK(report["compiled"] > 0);
    }
    const Outcome listed = run_turbotune(home, {"cache", "verify"});
    CHECK(listed.exit_code == 0);
}

TEST_CASE("cache warm names the architecture that it has no compiler for, and compiles the others' kernels",
          "[cache_warm]") {
    const TempDir home;
    const std::string own = open_device("cpu").info().device_class.to_string();  // as good as `cpu`
    const Outcome outcome = run_turbotune(home,
                                          {"cache", "warm", "--arch", "sm_90," + own, "--preset", "quick", "--lengths",
                                           "64", "--passes", "inference", "--layouts", "padded", "--json"},
                                          {{"TURBOTUNE_NVRTC", "/nonexistent"}});
    INFO(outcome.err);
    CHECK(outcome.exit_code == 1);
    const Json report = parse_json(outcome.out, "standard output");
    CHECK(report["devices"].size() == 1);
    CHECK(report["compiled"] > 0);
    REQUIRE(report["failures"].size() == 1);
    CHECK(report["failures"][0]["why"].get<std::string>().find("NVRTC") != std::string::npos);
}
