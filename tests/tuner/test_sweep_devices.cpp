// A sweep over several devices: here the CPU device twice, each with a worker of its own.
#include <set>

#include "catch.h"
#include "sweep_bench.h"
#include "turbotune/base/error.h"
#include "turbotune/base/log.h"

using namespace turbotune;
using Kind = SweepEvent::Kind;

namespace {

// A worker that cannot serve: every second process that is started ends at once.
std::string half_broken_worker(const Scratch& scratch, const std::string& real) {
    const std::string path = scratch.file("half broken.sh");
    spit(path, "#!/bin/sh\nif mkdir '" + scratch.file("first") + "' 2>/dev/null; then echo $$ >'" +
                   scratch.file("broken") + "'; exit 7; fi\nexec '" + real + "'\n");
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
}

}  // namespace

TEST_CASE("two devices share the workloads and write one profile", "[sweep][devices]") {
    SweepBench bench({toy_config("good", 60), toy_config("good", 120), toy_config("wrong", 50)});
    bench.options.query.axes["length"] = {"8", "16", "32", "64", "96", "128"};
    bench.options.devices = {"cpu", "cpu"};
    std::set<int> announced;
    bench.on_event = [&](const SweepEvent& event) {
        if (event.kind == Kind::workload_finished) announced.insert(event.workload_index);
    };
    std::vector<std::string> warnings;
    set_log_sink([&](LogLevel level, const std::string& message) {
        if (level == LogLevel::warn && message.find("another sweep") != std::string::npos) warnings.push_back(message);
    });
    const SweepReport report = bench.run();
    set_log_sink({});
    CHECK(warnings.empty());  // a sweep does not compete with itself
    CHECK(report.workloads == 6);
    CHECK(report.measured == 6);
    CHECK(report.candidates_measured == 12);
    CHECK(report.candidates_rejected == 6);
    CHECK(report.failures.empty());
    CHECK(report.devices == std::vector<std::string>{"cpu", "cpu"});
    CHECK(announced.size() == 6);
    CHECK(bench.count(Kind::saved) == 6);
    CHECK(bench.worker_pids().size() == 2);
    const Profile profile = bench.profile();
    CHECK(profile.entries.size() == 6);
    for (const ProfileEntry& entry : profile.entries) CHECK(entry.rejected.size() == 1);
    CHECK(bench.events.front().text.find("on 2 x ") != std::string::npos);

    // What two measured one finds complete, and the other way round.
    bench.options.devices = {};
    CHECK(bench.run().resumed == 6);
    bench.options.devices = {"cpu", "cpu", "cpu"};
    CHECK(bench.run().resumed == 6);
    CHECK(bench.worker_pids().size() == 2);
}

TEST_CASE("one device by --devices is a sweep like any other", "[sweep][devices]") {
    SweepBench bench({toy_config("good", 60)});
    bench.options.devices = {"cpu"};
    const SweepReport report = bench.run();
    CHECK(report.measured == 1);
    CHECK(report.devices == std::vector<std::string>{"cpu"});
    CHECK(bench.events.front().text.find("2 x") == std::string::npos);
}

TEST_CASE("a candidate that takes one worker down leaves the other alone", "[sweep][devices]") {
    SweepBench bench({toy_config("good", 60), toy_config("segv", 50)});
    bench.options.query.axes["length"] = {"8", "16", "32", "64"};
    bench.options.devices = {"cpu", "cpu"};
    const SweepReport report = bench.run();
    CHECK(report.measured == 4);
    CHECK(report.candidates_rejected == 4);
    CHECK(report.worker_restarts >= 2);
    for (const ProfileEntry& entry : bench.profile().entries) CHECK(reason_of(entry, "segv") == "fault");
}

TEST_CASE("a workload that one device cannot begin is taken by another, and that is said", "[sweep][devices]") {
    SweepBench bench({toy_config("good", 60)});
    bench.options.query.axes["length"] = {"8", "16", "32"};
    bench.options.devices = {"cpu", "cpu"};
    bench.options.worker_program = half_broken_worker(bench.scratch, bench.options.worker_program);
    const SweepReport report = bench.run();
    CHECK(std::filesystem::exists(bench.scratch.file("broken")));
    CHECK(report.measured == 3);
    CHECK(report.failed == 0);
    CHECK(bench.profile().entries.size() == 3);
    CHECK(bench.count(Kind::workload_handed_over) == 1);
    REQUIRE(report.failures.size() == 1);
    CHECK(report.failures[0].find("device cpu could not begin 1 workload") == 0);
}

TEST_CASE("a workload that no device can begin fails once", "[sweep][devices]") {
    for (const auto& lengths : {std::vector<std::string>{"8", "16"}, {"40", "41"}}) {  // the latter share a measurement
        SweepBench bench({toy_config("good", 60)});
        bench.options.query.axes["length"] = lengths;
        bench.options.devices = {"cpu", "cpu"};
        bench.options.worker_program = "/bin/false";
        const SweepReport report = bench.run();
        CHECK(report.measured == 0);
        CHECK(report.failed == 2);
        CHECK(bench.count(Kind::workload_failed) == 2);
        CHECK_FALSE(report.interrupted);
    }
}

TEST_CASE("an interrupt ends all devices, and the same sweep goes on", "[sweep][devices]") {
    SweepBench bench({toy_config("good", 60), toy_config("good", 120)});
    bench.options.query.axes["length"] = {"8", "16", "32", "64", "96", "128"};
    bench.options.devices = {"cpu", "cpu"};
    bench.on_event = [&](const SweepEvent& event) {
        if (event.kind == Kind::saved) bench.interrupts = 1;
    };
    const SweepReport first = bench.run();
    CHECK(first.interrupted);
    CHECK(first.measured < 6);
    bench.on_event = nullptr;
    bench.interrupts = 0;
    const SweepReport second = bench.run();
    CHECK_FALSE(second.interrupted);
    CHECK(second.measured + second.resumed == 6);
    CHECK(second.resumed == first.measured);
}

TEST_CASE("what breaks one device's thread reaches the caller", "[sweep][devices]") {
    SweepBench bench({toy_config("good", 60)});
    bench.options.query.axes["length"] = {"8", "16", "32", "64"};
    bench.options.devices = {"cpu", "cpu"};
    SECTION("a worker program that cannot be run") {
        bench.options.worker_program = bench.scratch.file("absent");
        REQUIRE_THROWS_AS(bench.run(), InvalidArgument);
    }
    SECTION("a listener that throws") {
        bench.on_event = [](const SweepEvent& event) {
            if (event.kind == Kind::workload_finished) throw Unsupported("no more");
        };
        REQUIRE_THROWS_AS(bench.run(), Unsupported);
    }
}

TEST_CASE("the time budget holds for all devices together", "[sweep][devices]") {
    SweepBench bench({toy_config("good", 60)});
    bench.options.query.axes["length"] = {"8", "16", "32", "64", "96", "128"};
    bench.options.devices = {"cpu", "cpu"};
    bench.options.time_budget_s = 1e-6;
    const SweepReport report = bench.run();
    CHECK(report.out_of_time);
    CHECK(report.measured >= 1);
    CHECK(report.measured <= 2);
}

TEST_CASE("a shard's profile has a name of its own and says which it is", "[sweep][devices]") {
    SweepBench bench({toy_config("good", 60)});
    ScopedVariable folder("TURBOTUNE_PROFILE_DIR", bench.scratch.path());
    bench.options.query.axes["length"] = {"8", "16", "32"};
    bench.options.output.clear();
    bench.options.shard = 2;
    bench.options.shards = 3;
    const SweepReport report = bench.run();
    const std::string name = open_device("cpu").info().device_class.to_string();
    CHECK(report.profile_path == bench.scratch.file(name + "-shard-2-of-3.json"));
    const Profile profile = load_profile(report.profile_path);
    REQUIRE(profile.entries.size() == 1);
    CHECK(profile.entries[0].workload.fields.integer("length") == 16);
    CHECK(profile.provenance.at("shard") == "2/3");
    CHECK_FALSE(std::filesystem::exists(bench.scratch.file(name + ".json")));
}
