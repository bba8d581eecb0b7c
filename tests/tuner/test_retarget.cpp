// Re-issuing a profile for another compiler or other templates: what stays, what is dropped, what is said.
#include "turbotune/tuner/retarget.h"

#include "catch.h"
#include "sweep_bench.h"
#include "turbotune/base/error.h"
#include "turbotune/kernel/compiler.h"

using namespace turbotune;

namespace {

struct RetargetBench : SweepBench {
    RetargetOptions retarget_options;
    std::vector<RetargetProgress> progress;

    // Measures three workloads, then makes the profile one of another compiler and other templates.
    RetargetBench() : SweepBench({toy_config("good", 60, 1), toy_config("good", 120, 2), toy_config("wrong", 50, 3)}) {
        options.query.axes["length"] = {"8", "16", "32"};
        run();
        edit([](Profile& profile) {
            profile.compiler = "cc-0.0";
            profile.templates["toy"] = std::string(64, 'a');
        });
        retarget_options.input = options.output;
        retarget_options.output = scratch.file("new.json");
        retarget_options.device = "cpu";
        retarget_options.worker_program = options.worker_program;
        retarget_options.command_line = "turbotune retarget";
        retarget_options.store = options.store;
    }
    template <typename Change>
    void edit(Change&& change) {
        Profile old = load_profile(options.output);
        change(old);
        save_profile(old, options.output);
    }
    RetargetReport retarget_it() {
        progress.clear();
        return retarget(retarget_options, [&](const RetargetProgress& each) { progress.push_back(each); }, &interrupts,
                        {&toy});
    }
    Profile result() const { return load_profile(retarget_options.output); }
};

}  // namespace

TEST_CASE("a same-class profile is re-issued with its latencies, and says where they come from", "[retarget]") {
    RetargetBench bench;
    const Profile old = bench.profile();
    const RetargetReport report = bench.retarget_it();
    CHECK(report.entries == 3);
    CHECK(report.kept == 3);
    CHECK(report.dropped.empty());
    CHECK(report.configs == 6);
    CHECK(report.differences.size() == 2);
    CHECK(bench.progress.size() == 3);
    CHECK(bench.progress.back().text == "kept");

    const Profile profile = bench.result();
    CHECK(profile.compiler == host_compiler().identity());
    CHECK(profile.templates.at("toy") != std::string(64, 'a'));
    CHECK(profile.provenance.at("retargeted_from") == "profile.json");
    CHECK(profile.provenance.at("measured_compiler") == "cc-0.0");
    CHECK(profile.provenance.at("measured_templates_toy") == std::string(64, 'a'));
    CHECK(profile.provenance.at("measured_date") == old.provenance.at("date"));
    CHECK(profile.provenance.at("command") == "turbotune retarget");
    REQUIRE(profile.entries.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) {
        CHECK(profile.entries[i].config == old.entries[i].config);
        CHECK(profile.entries[i].latency.median == old.entries[i].latency.median);
        CHECK(profile.entries[i].latency.samples == old.entries[i].latency.samples);
        CHECK(profile.entries[i].measured.size() == 1);
        CHECK(profile.entries[i].rejected.empty());  // "wrong" was wrong under the other compiler
        CHECK_FALSE(profile.entries[i].parity.patterns.empty());
    }

    // A sweep onto it measures only what the profile does not know: the candidate that was rejected elsewhere.
    bench.options.output = bench.retarget_options.output;
    const SweepReport sweep_report = bench.run();
    CHECK(sweep_report.candidates_measured == 0);
    CHECK(sweep_report.candidates_rejected == 3);
}

TEST_CASE("entries whose winner does not pass here are dropped by name", "[retarget]") {
    RetargetBench bench;
    bench.edit([](Profile& profile) {
        profile.entries[0].config = toy_config("wrong", 60);
        profile.entries[1].config = toy_config("filtered", 60);
    });
    const RetargetReport report = bench.retarget_it();
    CHECK(report.kept == 1);
    REQUIRE(report.dropped.size() == 2);
    CHECK(report.dropped[0].workload.fields.integer("length") == 8);
    CHECK(report.dropped[0].reason == "mismatch");
    CHECK(report.dropped[0].detail.find("out[") != std::string::npos);
    CHECK(report.dropped[1].reason == "filtered");
    REQUIRE(bench.result().entries.size() == 1);
    CHECK(bench.result().entries[0].workload.fields.integer("length") == 32);
}

TEST_CASE("winners that fault or hang are dropped, and the others are still checked", "[retarget]") {
    ScopedVariable watchdog("TURBOTUNE_WATCHDOG_S", "2");
    RetargetBench bench;
    bench.edit([](Profile& profile) {
        profile.entries[0].config = toy_config("segv", 60);
        profile.entries[1].config = toy_config("hang", 60);
    });
    const RetargetReport report = bench.retarget_it();
    REQUIRE(report.dropped.size() == 2);
    CHECK(report.dropped[0].reason == "fault");
    CHECK(report.dropped[1].reason == "timeout");
    CHECK(report.kept == 1);
}

TEST_CASE("another config that does not pass is recorded as rejected and its entry stays", "[retarget]") {
    RetargetBench bench;
    bench.edit([](Profile& profile) { profile.entries[0].measured[0].config = toy_config("partial", 60); });
    const RetargetReport report = bench.retarget_it();
    CHECK(report.kept == 3);
    CHECK(report.configs_turned_down == 1);
    const Profile profile = bench.result();
    CHECK(profile.entries[0].measured.empty());
    CHECK(reason_of(profile.entries[0], "partial") == "unwritten");
}

TEST_CASE("operations and workloads that this build does not serve are dropped", "[retarget]") {
    RetargetBench bench;
    bench.edit([](Profile& profile) {
        profile.entries[0].workload.operation = "another";
        profile.entries[1].workload.fields.set("length", 13);
        profile.entries[2].workload.fields = Fields{}.set("size", 3);
    });
    const RetargetReport report = bench.retarget_it();
    REQUIRE(report.dropped.size() == 3);
    CHECK(report.dropped[0].reason == "unknown_operation");
    CHECK(report.dropped[1].detail.find("length 13 is not served") != std::string::npos);
    CHECK(report.dropped[2].reason == "unavailable");
    CHECK_FALSE(std::filesystem::exists(bench.retarget_options.output));  // nothing is left to save
}

TEST_CASE("an interrupted retarget goes on where it stopped", "[retarget]") {
    RetargetBench bench;
    const RetargetReport first =
        retarget(bench.retarget_options, [&](const RetargetProgress&) { bench.interrupts = 1; }, &bench.interrupts,
                 {&bench.toy});
    CHECK(first.interrupted);
    CHECK(first.kept == 1);
    bench.interrupts = 0;
    const RetargetReport second = bench.retarget_it();
    CHECK_FALSE(second.interrupted);
    CHECK(second.already == 1);
    CHECK(second.kept == 2);
    CHECK(bench.result().entries.size() == 3);
}

TEST_CASE("what cannot be retargeted is refused and nothing is written", "[retarget]") {
    RetargetBench bench;
    SECTION("another device class") {
        bench.edit([](Profile& profile) { profile.device_class.sm_count += 1; });
        try {
            bench.retarget_it();
            FAIL("accepted");
        } catch (const InvalidArgument& error) {
            CHECK(std::string(error.what()).find(open_device("cpu").info().device_class.to_string()) !=
                  std::string::npos);
        }
    }
    SECTION("the profile itself as the output") {
        bench.retarget_options.output = bench.retarget_options.input;
        const std::string before = slurp(bench.retarget_options.input);
        REQUIRE_THROWS_AS(bench.retarget_it(), InvalidArgument);
        CHECK(slurp(bench.retarget_options.input) == before);
        return;
    }
    SECTION("a broken profile") {
        spit(bench.retarget_options.input, "{");
        REQUIRE_THROWS_AS(bench.retarget_it(), InvalidArgument);
    }
    SECTION("no profile") {
        bench.retarget_options.input = bench.scratch.file("absent.json");
        REQUIRE_THROWS_AS(bench.retarget_it(), InvalidArgument);
    }
    SECTION("a worker program that cannot be run") {
        bench.retarget_options.worker_program = bench.scratch.file("absent");
        REQUIRE_THROWS_AS(bench.retarget_it(), InvalidArgument);
    }
    CHECK_FALSE(std::filesystem::exists(bench.retarget_options.output));
}
