// The main job on a GPU, through the program: tune, save, resume, inspect, validate; and a runtime that uses the
// profile.
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "../ops/attention_suite.h"
#include "catch.h"
#include "turbotune/base/files.h"
#include "turbotune/profile/profile.h"

using namespace turbotune;
using namespace turbotune::testing;

namespace {

struct Scratch {
    std::string path, store;
    Scratch() {
        char name[] = "/tmp/turbotune-gpu-XXXXXX";
        path = ::mkdtemp(name);
        store = path + "/cache";
    }
    ~Scratch() { std::filesystem::remove_all(path); }
};

// Exit code of the program, its standard output in DIR/out.
int run_program(const Scratch& scratch, const std::string& arguments) {
    const std::string command = "TURBOTUNE_CACHE_DIR=" + scratch.store + " " TURBOTUNE_BUILD_DIR "/turbotune " +
                                arguments + " >" + scratch.path + "/out 2>" + scratch.path + "/err </dev/null";
    const int status = std::system(command.c_str());
    INFO(command << "\n" << read_file(scratch.path + "/err").value_or(""));
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

}  // namespace

TEST_CASE("the quick preset tunes on the GPU, resumes with nothing to measure, and its profile serves a runtime",
          "[gpu][main_job]") {
    const Scratch scratch;
    const std::string profile_path = scratch.path + "/gpu.json";
    const std::string tune = "--preset quick --device 0 --json --output " + profile_path;
    REQUIRE(run_program(scratch, tune) == 0);
    const Profile profile = load_profile(profile_path);
    REQUIRE(profile.entries.size() == 12);
    for (const ProfileEntry& entry : profile.entries) {
        INFO(entry.workload.to_string());
        CHECK(entry.latency.median > 0);
        CHECK(entry.latency.median < 1);
        CHECK(entry.rejected.empty());
        REQUIRE_FALSE(entry.parity.outputs.empty());
        for (const OutputParity& parity : entry.parity.outputs) CHECK(parity.error <= parity.tolerance);
        CHECK(entry.registers > 0);
    }
    const std::string before = read_file(profile_path).value();
    REQUIRE(run_program(scratch, tune) == 0);
    CHECK(read_file(profile_path).value() == before);
    CHECK(read_file(scratch.path + "/out").value().find("\"measured\": 0") != std::string::npos);
    CHECK(run_program(scratch, "inspect " + profile_path) == 0);
    CHECK(read_file(scratch.path + "/out").value().find("exact") != std::string::npos);

    RuntimeOptions options = private_options("0");
    options.profiles = {profile_path};
    options.policy = Policy::profile_only;
    Runtime runtime(options);
    const Workload& tuned = profile.entries.front().workload;
    da::Problem problem;
    problem.batch = 4;
    problem.heads = 8;
    problem.length = 50;
    REQUIRE(da::operation().workload_of(problem.to_fields()) == tuned);
    const da::AttentionPlan plan = da::AttentionPlan::create(runtime, problem);
    CHECK(plan.selection().origin == "profile");
    CHECK(plan.selection().grade == Grade::exact);
    CHECK(plan.selection().config == profile.entries.front().config);
    problem.length = 3000;  // not tuned
    REQUIRE_THROWS_AS(da::AttentionPlan::create(runtime, problem), ProfileMiss);
}

TEST_CASE("validate passes every known case on the GPU", "[gpu][main_job][long]") {
    Scratch scratch;
    scratch.store = private_options("0").store.directory;
    CHECK(run_program(scratch, "validate --cases " TURBOTUNE_TEST_DATA " --device 0") == 0);
}
