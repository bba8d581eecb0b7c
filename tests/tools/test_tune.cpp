// The main job through the program itself, on the CPU device: tune, save, resume, inspect, interrupt.
#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include "catch.h"
#include "program.h"
#include "turbotune/base/files.h"
#include "turbotune/base/json.h"
#include "turbotune/profile/profile.h"

using namespace turbotune;
using namespace turbotune::test;

namespace {

// Small enough for two cores: three workloads.
const std::vector<std::string> kSmall = {"--preset", "quick", "--ops",    "disentangled_attention",
                                         "--device", "cpu",   "--passes", "inference"};

// The same as a command of its own.
std::vector<std::string> small_sweep(const std::string& flag = "") {
    std::vector<std::string> command = {turbotune_program()};
    command.insert(command.end(), kSmall.begin(), kSmall.end());
    if (!flag.empty()) command.push_back(flag);
    return command;
}

Outcome tune(const TempDir& home, const std::vector<std::string>& more,
             std::map<std::string, std::string> environment = {}) {
    std::vector<std::string> arguments = kSmall;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_turbotune(home, arguments, std::move(environment));
}

Json json_of(const Outcome& outcome) {
    INFO(outcome.out << outcome.err);
    REQUIRE(outcome.exit_code == 0);
    return parse_json(outcome.out, "standard output");
}

}  // namespace

TEST_CASE("Tuning writes a profile that inspect reads, and a second run measures nothing", "[tune][slow]") {
    const TempDir home;
    const Json first = json_of(tune(home, {"--json"}, shared_store()));
    CHECK(first["workloads"] == 3);
    CHECK(first["measured"] == 3);
    CHECK(first["failed"] == 0);
    CHECK(first["candidates_measured"].get<int>() >= 3);
    REQUIRE(first["entries"].size() == 3);
    const std::string path = first["profile"];
    CHECK(path.rfind(home / "profiles", 0) == 0);

    const Json seen = parse_json(run_turbotune(home, {"inspect", "--json"}).out, "inspect");  // finds it by itself
    CHECK(seen["path"] == path);
    CHECK(seen["grade"] == "exact");
    REQUIRE(seen["entries"].size() == 3);
    for (const Json& entry : seen["entries"]) {
        CHECK(entry["latency"]["min"].get<double>() > 0);
        CHECK(entry["latency"]["min"] <= entry["latency"]["median"]);
        CHECK(entry["latency"]["median"] <= entry["latency"]["p90"]);
        REQUIRE_FALSE(entry["parity"]["outputs"].empty());
        for (const Json& output : entry["parity"]["outputs"]) CHECK(output["error"] <= output["tolerance"]);
        CHECK_FALSE(entry["parity"]["patterns"].empty());
    }

    const std::string before = read_text(path);
    const Json second = json_of(tune(home, {"--json"}, shared_store()));
    CHECK(second["measured"] == 0);
    CHECK(second["candidates_measured"] == 0);
    CHECK(second["resumed"] == 3);
    CHECK(second["entries"] == first["entries"]);
    CHECK(parse_profile(read_text(path), path).entries.size() == parse_profile(before, path).entries.size());

    const Outcome text = tune(home, {});
    CHECK(text.exit_code == 0);
    CHECK(text.out.find("nothing to measure") != std::string::npos);
    CHECK(text.out.find("turbotune inspect") != std::string::npos);
    CHECK(text.out.find('\x1b') == std::string::npos);  // plain where there is no terminal
}

TEST_CASE("The quick preset tunes every pass on the CPU, the two of the backward pass at once", "[tune][slow][long]") {
    const TempDir home;
    const Json report =
        json_of(run_turbotune(home, {"--preset", "quick", "--device", "cpu", "--json"}, shared_store()));
    CHECK(report["workloads"] == 12);
    CHECK(report["measured"] == 12);
    CHECK(report["failed"] == 0);
    const std::string path = report["profile"];
    const Profile profile = parse_profile(read_text(path), path);
    REQUIRE(profile.entries.size() == 12);
    int shared = 0;
    for (const ProfileEntry& entry : profile.entries) {
        if (entry.workload.fields.text("pass") != "backward_dq") continue;
        Workload other = entry.workload;
        other.fields.set("pass", "backward_dkdv");
        for (const ProfileEntry& each : profile.entries)
            if (each.workload == other) {
                CHECK(each.config == entry.config);
                CHECK(each.latency.median == entry.latency.median);
                ++shared;
            }
    }
    CHECK(shared == 3);  // layouts
}

TEST_CASE("Without a C++ compiler the CPU cannot be tuned, and the error says so", "[tune]") {
    const TempDir home;
    const Outcome outcome = tune(home, {}, {{"PATH", "/nonexistent"}, {"CXX", ""}});
    CHECK(outcome.exit_code != 0);
    CHECK((outcome.out + outcome.err).find("compiler") != std::string::npos);
}

TEST_CASE("Ctrl-C once saves and exits 130, and the same command repeats nothing", "[tune][slow]") {
    const TempDir home;
    Running running(home, small_sweep("--verbose"));
    REQUIRE(running.wait_for(" measured: ", 300));
    running.send(SIGINT);
    const Outcome interrupted = running.wait(60);
    INFO(interrupted.out << interrupted.err);
    CHECK(interrupted.exit_code == 130);
    CHECK(interrupted.out.find("interrupted, ") != std::string::npos);
    CHECK(interrupted.out.find(" left; the same command goes on") != std::string::npos);
    CHECK(interrupted.out.find("nothing to measure") == std::string::npos);

    const Json resumed = json_of(tune(home, {"--json"}));
    CHECK(resumed["failed"] == 0);
    CHECK(resumed["entries"].size() == 3);
    const TempDir other;
    const Json whole = json_of(tune(other, {"--json"}, shared_store()));
    CHECK(resumed["candidates_measured"].get<int>() < whole["candidates_measured"].get<int>());
}

TEST_CASE("A terminal that closes ends a sweep as Ctrl-C does", "[tune][slow]") {
    const TempDir home;
    Running running(home, small_sweep(), shared_store());
    REQUIRE(running.wait_for("[1/3]", 300));
    running.send(SIGHUP);
    const Outcome outcome = running.wait(60);
    INFO(outcome.out << outcome.err);
    CHECK(outcome.exit_code == 130);
    CHECK(outcome.out.find("the same command goes on") != std::string::npos);
}

TEST_CASE("Ctrl-C twice exits 130 at once", "[tune][slow]") {
    const TempDir home;
    Running running(home, small_sweep("--verbose"));
    REQUIRE(running.wait_for("[1/3]", 300));
    running.send(SIGINT);
    running.send(SIGINT);
    running.send(SIGINT);
    CHECK(running.wait(10).exit_code == 130);
}

TEST_CASE("A second sweep on a device is told that the two distort each other's times", "[tune][slow]") {
    const TempDir home;
    std::filesystem::create_directories(home / "profiles");
    const auto sweep = [&](const std::string& output) {
        return tune(home, {"--output", home / output, "--layouts", "padded", "--dtypes", "fp32"}, shared_store());
    };
    const std::string told = "another sweep is measuring on ";
    {
        char host[256] = {};
        REQUIRE(::gethostname(host, sizeof host - 1) == 0);
        const FileLock other =
            FileLock::acquire(home / "profiles/measuring-" + host + "-cpu.lock", std::chrono::milliseconds(0));
        REQUIRE(other.held());
        const Outcome second = sweep("second.json");
        CHECK(second.exit_code == 0);
        CHECK(second.err.find(told) != std::string::npos);
        CHECK(sweep("second.json").err.find(told) == std::string::npos);  // which measures nothing
        std::filesystem::remove(home / "second.json");  // its journal is there: the final is timed anew
        CHECK(sweep("second.json").err.find(told) != std::string::npos);
    }
    CHECK(sweep("third.json").err.find(told) == std::string::npos);
}

TEST_CASE("The flag --output takes the profile elsewhere, and a foreign file there is never overwritten", "[tune]") {
    const TempDir home;
    write_text(home / "notes.json", "{\"mine\": true}\n");
    const Outcome outcome = tune(home, {"--output", home / "notes.json"});
    CHECK(outcome.exit_code == 2);
    CHECK(read_text(home / "notes.json") == "{\"mine\": true}\n");
}
