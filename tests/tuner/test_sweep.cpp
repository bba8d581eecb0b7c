// A whole sweep: what is measured, saved, taken up again and refused.
#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "catch.h"
#include "sweep_bench.h"
#include "turbotune/base/error.h"
#include "turbotune/tuner/journal.h"

using namespace turbotune;
using Kind = SweepEvent::Kind;

TEST_CASE("a sweep saves the fastest candidate with its latency, parity and company", "[sweep]") {
    SweepBench bench(
        {toy_config("good", 300), toy_config("good", 100), toy_config("good", 200), toy_config("filtered", 1)});
    SweepReport report = bench.run();
    CHECK(report.workloads == 1);
    CHECK(report.measured == 1);
    CHECK(report.candidates_measured == 3);
    CHECK(report.candidates_rejected == 0);
    CHECK(report.worker_restarts == 0);
    CHECK(report.failures.empty());
    CHECK(report.profile_path == bench.options.output);
    CHECK_FALSE(report.interrupted);

    Profile profile = bench.profile();
    CHECK(profile.device_class == open_device("cpu").info().device_class);
    CHECK(profile.compiler == host_compiler().identity());
    CHECK(profile.templates.count("toy") == 1);
    CHECK(profile.provenance.at("command") == "turbotune --test");
    CHECK(profile.provenance.at("date").back() == 'Z');
    CHECK(profile.provenance.at("rotation").find("bytes rotated against") != std::string::npos);
    for (const char* key : {"host_cpu", "driver", "turbotune"}) CHECK_FALSE(profile.provenance.at(key).empty());

    const ProfileEntry& entry = profile.entries.at(0);
    CHECK(entry.workload.fields.integer("length") == 64);
    CHECK(entry.config == toy_config("good", 100));
    CHECK(entry.latency.min >= 0.1);
    CHECK(entry.latency.samples >= 8);
    CHECK(entry.parity.outputs.at(0).output == "out");
    CHECK(entry.parity.patterns.size() == 2);
    CHECK(entry.registers == 40);
    CHECK(entry.shared_bytes == 1100);
    CHECK(entry.measured.size() == 2);
    REQUIRE(entry.rejected.size() == 1);
    CHECK(entry.rejected[0].reason == "filtered");
    CHECK(entry.rejected[0].detail == "needs 999999 bytes of shared memory");

    CHECK(bench.events.front().kind == Kind::started);
    CHECK(bench.events.front().text.find(bench.options.output) != std::string::npos);
    CHECK(bench.count(Kind::measured) == 3);
    CHECK(bench.count(Kind::workload_finished) == 1);
    CHECK(bench.events.back().kind == Kind::saved);
    CHECK(bench.events.back().best_ms == 0);
}

TEST_CASE("workloads with the same kernels are measured once and both entered", "[sweep]") {
    SweepBench bench({toy_config("good", 120), toy_config("good", 60)});
    bench.options.query.axes["length"] = {"40", "8", "41"};
    const SweepReport report = bench.run();
    CHECK(report.workloads == 3);
    CHECK(report.measured == 3);
    CHECK(report.candidates_measured == 4);  // of 40 and of 8
    const Profile profile = bench.profile();
    REQUIRE(profile.entries.size() == 3);
    const ProfileEntry *first = nullptr, *second = nullptr;
    for (const ProfileEntry& entry : profile.entries) {
        if (entry.workload.fields.integer("length") == 40) first = &entry;
        if (entry.workload.fields.integer("length") == 41) second = &entry;
    }
    REQUIRE(first);
    REQUIRE(second);
    CHECK(first->config == second->config);
    CHECK(first->latency.median == second->latency.median);
    CHECK(first->measured.size() == second->measured.size());

    const SweepReport again = bench.run();
    CHECK(again.resumed == 3);
    CHECK(again.candidates_measured == 0);

    bench.options.retest = true;
    CHECK(bench.run().candidates_measured == 4);
    bench.options.retest = false;

    // One more candidate is measured once, too.
    bench.toy.set_configs({toy_config("good", 120), toy_config("good", 60), toy_config("good", 30)});
    CHECK(bench.run().candidates_measured == 2);
    for (const ProfileEntry& entry : bench.profile().entries) CHECK(entry.config == toy_config("good", 30));
}

TEST_CASE("a workload that shares its winner with one that was not asked for enters both", "[sweep]") {
    SweepBench bench({toy_config("good", 60)});
    bench.options.query.axes["length"] = {"41"};
    const SweepReport report = bench.run();
    CHECK(report.workloads == 1);
    CHECK(report.measured == 1);
    const Profile profile = bench.profile();
    REQUIRE(profile.entries.size() == 2);
    CHECK(profile.entries[0].workload.fields.integer("length") + profile.entries[1].workload.fields.integer("length") ==
          40 + 41);
    CHECK(bench.run().resumed == 1);
    bench.options.query.axes["length"] = {"40", "41"};
    CHECK(bench.run().resumed == 2);
}

TEST_CASE("workloads that share a winner go to one shard", "[sweep]") {
    SweepBench bench({toy_config("good", 60)});
    bench.options.query.axes["length"] = {"40", "8", "16", "41", "32"};
    std::set<int> seen;
    for (int shard = 1; shard <= 3; ++shard) {
        bench.options.shard = shard;
        bench.options.shards = 3;
        std::set<int> own;
        for (const PlannedWorkload& planned : plan_sweep(bench.options, {&bench.toy}))
            own.insert(int(planned.workload.fields.integer("length")));
        CHECK(own.count(40) == own.count(41));
        seen.insert(own.begin(), own.end());
    }
    CHECK(seen.size() == 5);
}

TEST_CASE("when no candidate of a workload survives, the one that shares its winner fails without another try",
          "[sweep]") {
    SweepBench bench({toy_config("wrong", 60)});
    bench.options.query.axes["length"] = {"40", "41"};
    const SweepReport report = bench.run();
    CHECK(report.failed == 2);
    CHECK(report.candidates_rejected == 1);
}

TEST_CASE("the memory plan is told before anything is measured, and shrinks under a cap", "[sweep]") {
    ScopedVariable limit("TURBOTUNE_MEMORY_LIMIT", "40000");
    SweepBench bench({toy_config("good", 50)});
    bench.run();
    auto plan = std::find_if(bench.events.begin(), bench.events.end(), [](const SweepEvent& event) {
        return event.kind == Kind::started && event.text.find("memory is limited") != std::string::npos;
    });
    auto measured = std::find_if(bench.events.begin(), bench.events.end(),
                                 [](const SweepEvent& event) { return event.kind == Kind::measured; });
    REQUIRE(plan != bench.events.end());
    CHECK(plan < measured);
    CHECK(bench.entry().config == toy_config("good", 50));
}

TEST_CASE("a memory limit below one copy is told as what it is, and never negative", "[sweep]") {
    ScopedVariable limit("TURBOTUNE_MEMORY_LIMIT", "1");
    SweepBench bench({toy_config("good", 50)});
    CHECK(bench.run().measured == 1);
    auto plan = std::find_if(bench.events.begin(), bench.events.end(), [](const SweepEvent& event) {
        return event.kind == Kind::started &&
               event.text.find("less than one copy cannot be timed") != std::string::npos;
    });
    REQUIRE(plan != bench.events.end());
    CHECK(plan->text.find("1 copy of ") == 0);
    CHECK(plan->text.find("the 0.0 MiB that memory is limited to") != std::string::npos);
    CHECK(plan->text.find("-") == std::string::npos);
}

TEST_CASE("a second run measures nothing and starts no worker", "[sweep]") {
    SweepBench bench({toy_config("good", 60), toy_config("wrong", 50), toy_config("good", 120)});
    bench.options.query.axes["length"] = {"64", "96"};
    SweepReport first = bench.run();
    CHECK(first.measured == 2);
    std::string saved = slurp(bench.options.output);
    std::size_t workers = bench.worker_pids().size();

    SweepReport second = bench.run();
    CHECK(second.resumed == 2);
    CHECK(second.measured == 0);
    CHECK(second.candidates_measured == 0);
    CHECK(bench.count(Kind::workload_resumed) == 2);
    CHECK(slurp(bench.options.output) == saved);
    CHECK(bench.worker_pids().size() == workers);
    CHECK(second.seconds < 5);
}

TEST_CASE("the profile alone, without the journal, is enough to resume", "[sweep]") {
    SweepBench bench({toy_config("good", 60), toy_config("wrong", 50)});
    bench.run();
    std::filesystem::remove(bench.options.output + ".journal");
    CHECK(bench.run().resumed == 1);
}

TEST_CASE("the journal alone saves all measuring but the final", "[sweep]") {
    SweepBench bench({toy_config("good", 60), toy_config("good", 120), toy_config("wrong", 50)});
    bench.run();
    std::filesystem::remove(bench.options.output);
    SweepReport report = bench.run();
    CHECK(report.measured == 1);
    CHECK(report.candidates_measured == 0);
    CHECK(report.candidates_rejected == 0);
    CHECK(bench.entry().config == toy_config("good", 60));
    CHECK(reason_of(bench.entry(), "wrong") == "mismatch");
}

TEST_CASE("retest measures everything again", "[sweep]") {
    SweepBench bench({toy_config("good", 60), toy_config("good", 120)});
    bench.run();
    bench.options.retest = true;
    SweepReport report = bench.run();
    CHECK(report.resumed == 0);
    CHECK(report.candidates_measured == 2);
}

TEST_CASE("adding one candidate measures one, and it wins only when it is faster", "[sweep][field-26]") {
    SweepBench bench({toy_config("good", 150), toy_config("good", 300)});
    bench.run();
    bench.toy.set_configs({toy_config("good", 150), toy_config("good", 300), toy_config("good", 200)});
    SweepReport slower = bench.run();
    CHECK(slower.candidates_measured == 1);
    CHECK(bench.entry().config == toy_config("good", 150));
    CHECK(bench.entry().measured.size() == 2);

    bench.toy.set_configs(
        {toy_config("good", 150), toy_config("good", 300), toy_config("good", 200), toy_config("good", 80)});
    SweepReport faster = bench.run();
    CHECK(faster.candidates_measured == 1);
    CHECK(bench.entry().config == toy_config("good", 80));
    CHECK(bench.entry().measured.size() == 3);
    CHECK(bench.run().resumed == 1);
}

TEST_CASE("adding a bad candidate records it and keeps the winner and its latency", "[sweep]") {
    SweepBench bench({toy_config("good", 150)});
    bench.run();
    Latency before = bench.entry().latency;
    bench.toy.set_configs({toy_config("good", 150), toy_config("wrong", 10)});
    SweepReport report = bench.run();
    CHECK(report.candidates_measured == 0);
    CHECK(report.candidates_rejected == 1);
    CHECK(bench.entry().latency.median == before.median);
    CHECK(reason_of(bench.entry(), "wrong") == "mismatch");
    CHECK(bench.run().resumed == 1);
}

TEST_CASE("the presets measure two, four or all candidates, the heuristic's first", "[sweep]") {
    std::vector<Config> configs = {toy_config("filtered", 1)};
    for (int i = 0; i < 7; ++i) configs.push_back(toy_config("good", 10, i));
    for (auto [preset, want] : {std::pair{Preset::quick, 2}, {Preset::standard, 4}, {Preset::exhaustive, 7}}) {
        SweepBench bench(configs, preset);
        std::vector<PlannedWorkload> plan = plan_sweep(bench.options, {&bench.toy});
        REQUIRE(plan.size() == 1);
        CHECK(plan[0].candidates == want);
        CHECK(plan[0].filtered == 1);
        CHECK(plan[0].unavailable.empty());
        CHECK_FALSE(std::filesystem::exists(bench.options.output));
    }
}

TEST_CASE("a workload without kernels is skipped with the reason", "[sweep]") {
    SweepBench bench({toy_config("good", 50)});
    bench.options.query.axes["length"] = {"13", "64"};
    std::vector<PlannedWorkload> plan = plan_sweep(bench.options, {&bench.toy});
    CHECK(plan.at(0).unavailable == "length 13 is not served");
    CHECK(plan.at(0).candidates == 0);
    SweepReport report = bench.run();
    CHECK(report.skipped == 1);
    CHECK(report.measured == 1);
    CHECK(bench.count(Kind::workload_skipped) == 1);
}

TEST_CASE("a workload of which no candidate survives fails by name and the sweep goes on", "[sweep]") {
    SweepBench bench({toy_config("wrong", 10), toy_config("unwritten", 10)});
    bench.options.query.axes["length"] = {"64", "96"};
    SweepReport report = bench.run();
    CHECK(report.failed == 2);
    REQUIRE(report.failures.size() == 2);
    CHECK(report.failures[0].find("length=64") != std::string::npos);
    CHECK(report.failures[0].find("mismatch") != std::string::npos);
    CHECK(report.candidates_rejected == 4);
    SweepReport again = bench.run();
    CHECK(again.failed == 2);
    CHECK(again.candidates_rejected == 0);
}

TEST_CASE("the time budget stops after the workload that passes it", "[sweep]") {
    SweepBench bench({toy_config("good", 50)});
    bench.options.query.axes["length"] = {"64", "96", "128"};
    bench.options.time_budget_s = 1e-6;
    for (int run = 1; run <= 3; ++run) {
        SweepReport report = bench.run();
        CHECK(report.measured == 1);
        CHECK(report.resumed == run - 1);
        CHECK(report.out_of_time == (run < 3));
        CHECK(bench.profile().entries.size() == std::size_t(run));
    }
}

TEST_CASE("shards partition the workloads exactly", "[sweep]") {
    SweepBench bench({toy_config("good", 50)});
    bench.options.query.axes.clear();
    std::vector<std::string> whole, parts;
    for (const PlannedWorkload& planned : plan_sweep(bench.options, {&bench.toy}))
        whole.push_back(planned.workload.to_string());
    REQUIRE(whole.size() == 10);
    for (int shards : {1, 2, 3, 7, 10, 13}) {
        parts.clear();
        for (int shard = 1; shard <= shards; ++shard) {
            bench.options.shard = shard;
            bench.options.shards = shards;
            int index = 0;
            for (const PlannedWorkload& planned : plan_sweep(bench.options, {&bench.toy})) {
                CHECK(planned.workload.to_string() == whole.at(std::size_t(shard - 1 + shards * index++)));
                parts.push_back(planned.workload.to_string());
            }
        }
        CHECK(std::set<std::string>(parts.begin(), parts.end()).size() == parts.size());
        CHECK(parts.size() == whole.size());
    }
    for (auto [shard, shards] : {std::pair{0, 2}, {3, 2}, {1, 0}, {-1, 4}}) {
        bench.options.shard = shard;
        bench.options.shards = shards;
        REQUIRE_THROWS_AS(plan_sweep(bench.options, {&bench.toy}), InvalidArgument);
    }
}

TEST_CASE("two shards that write one profile lose nothing", "[sweep]") {
    SweepBench bench({toy_config("good", 50)});
    bench.options.query.axes["length"] = {"64", "96", "128"};
    bench.options.shards = 2;
    bench.run();
    bench.options.shard = 2;
    bench.run();
    CHECK(bench.profile().entries.size() == 3);
}

TEST_CASE("a profile of another device is refused and stays as it is", "[sweep]") {
    SweepBench bench({toy_config("good", 50)});
    bench.run();
    Profile profile = bench.profile();
    profile.device_class.sm_count += 1;
    save_profile(profile, bench.options.output);
    std::string before = slurp(bench.options.output);
    REQUIRE_THROWS_AS(bench.run(), InvalidArgument);
    CHECK(slurp(bench.options.output) == before);
}

TEST_CASE("a broken profile is refused by path and stays as it is", "[sweep]") {
    SweepBench bench({toy_config("good", 50)});
    for (const char* text : {"", "{", "{\"format\": 99}", "not json"}) {
        spit(bench.options.output, text);
        try {
            bench.run();
            FAIL("accepted: " << text);
        } catch (const InvalidArgument& error) {
            CHECK(std::string(error.what()).find(bench.options.output) != std::string::npos);
            CHECK(std::string(error.what()).find("move the file away") != std::string::npos);
        }
        CHECK(slurp(bench.options.output) == text);
    }
}

TEST_CASE("a profile of another compiler or other templates is moved aside and begun anew", "[sweep]") {
    for (bool compiler : {true, false}) {
        SweepBench bench({toy_config("good", 50)});
        bench.run();
        Profile profile = bench.profile();
        if (compiler)
            profile.compiler = "cc-0.0";
        else
            profile.templates["toy"] = std::string(64, 'a');
        save_profile(profile, bench.options.output);
        std::string before = slurp(bench.options.output);
        SweepReport report = bench.run();
        CHECK(report.measured == 1);
        CHECK(slurp(bench.options.output + ".previous") == before);
        CHECK(bench.events.front().text.find(".previous") != std::string::npos);
        CHECK(bench.profile().compiler == host_compiler().identity());
    }
}

TEST_CASE("a profile set aside never replaces an older one", "[sweep]") {
    SweepBench bench({toy_config("good", 50)});
    bench.run();
    std::vector<std::string> kept;
    for (const char* compiler : {"cc-1", "cc-2"}) {
        Profile profile = bench.profile();
        profile.compiler = compiler;
        save_profile(profile, bench.options.output);
        kept.push_back(slurp(bench.options.output));
        bench.run();
    }
    CHECK(slurp(bench.options.output + ".previous") == kept[0]);
    CHECK(slurp(bench.options.output + ".previous-2") == kept[1]);
}

TEST_CASE("entries without the digest of their operation are set aside", "[sweep]") {
    SweepBench bench({toy_config("good", 50)});
    bench.run();
    Profile profile = bench.profile();
    profile.templates.clear();
    save_profile(profile, bench.options.output);
    SweepReport report = bench.run();
    CHECK(report.resumed == 0);
    CHECK(report.measured == 1);
    CHECK(load_profile(bench.options.output + ".previous").templates.empty());
    CHECK(bench.profile().templates.count("toy") == 1);
}

TEST_CASE("a profile behind a symbolic link is written there and the link stays", "[sweep]") {
    SweepBench bench({toy_config("good", 50)});
    std::filesystem::create_directory(bench.scratch.file("kept"));
    const std::string link = bench.options.output, file = bench.scratch.file("kept/p.json");
    std::filesystem::create_symlink("kept/p.json", link);  // to nothing yet
    for (int run = 1; run <= 2; ++run) {
        SweepReport report = bench.run();
        CHECK(report.measured + report.resumed == 1);
        CHECK(report.resumed == run - 1);
        CHECK(std::filesystem::is_symlink(link));
        CHECK(std::filesystem::is_regular_file(std::filesystem::symlink_status(file)));
        CHECK(load_profile(file).entries.size() == 1);
    }
    CHECK_FALSE(std::filesystem::exists(link + ".journal"));
}

TEST_CASE("entries of other operations and lengths stay when a profile is extended", "[sweep]") {
    SweepBench bench({toy_config("good", 50)});
    bench.run();
    Profile profile = bench.profile();
    ProfileEntry foreign = profile.entries[0];
    foreign.workload.operation = "another";
    profile.put(foreign);
    profile.templates["another"] = std::string(64, 'b');
    save_profile(profile, bench.options.output);
    bench.options.query.axes["length"] = {"96"};
    bench.run();
    CHECK(bench.profile().entries.size() == 3);
    CHECK(bench.profile().templates.at("another") == std::string(64, 'b'));
}

TEST_CASE("what cannot work is refused before anything is measured", "[sweep]") {
    SweepBench bench({toy_config("good", 50)});
    SECTION("an operation that does not exist") {
        bench.options.operations = {"toy", "nonsense"};
        REQUIRE_THROWS_AS(bench.run(), InvalidArgument);
    }
    SECTION("a device that does not exist") {
        bench.options.device = "77";
        REQUIRE_THROWS_AS(bench.run(), DeviceError);
    }
    SECTION("a worker program that cannot be run") {
        bench.options.worker_program = bench.scratch.file("absent");
        REQUIRE_THROWS_AS(bench.run(), InvalidArgument);
    }
    SECTION("a folder that cannot be made") {
        spit(bench.scratch.file("file"), "");
        bench.options.output = bench.scratch.file("file") + "/p.json";
        REQUIRE_THROWS_AS(bench.run(), Error);
    }
    SECTION("a pipe as the output, named itself or by a link") {
        const std::string pipe = bench.scratch.file("pipe"), link = bench.scratch.file("link");
        REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
        std::filesystem::create_symlink(pipe, link);
        for (const std::string& path : {pipe, link, std::string("/dev/null")}) {
            bench.options.output = path;
            try {
                bench.run();
                FAIL("accepted: " << path);
            } catch (const InvalidArgument& error) {
                CHECK(std::string(error.what()).find("is no regular file") != std::string::npos);
            }
            for (const char* suffix : {".journal", ".lock"}) CHECK_FALSE(std::filesystem::exists(path + suffix));
        }
    }
    SECTION("links that go round") {
        std::filesystem::create_symlink("round", bench.scratch.file("round"));
        bench.options.output = bench.scratch.file("round");
        REQUIRE_THROWS_AS(bench.run(), InvalidArgument);
    }
    SECTION("a memory limit that is no number") {
        ScopedVariable limit("TURBOTUNE_MEMORY_LIMIT", "2G");
        REQUIRE_THROWS_AS(bench.run(), InvalidArgument);
        CHECK(bench.events.empty());
        CHECK_FALSE(std::filesystem::exists(bench.options.output + ".journal"));
    }
    SECTION("a directory as the output") {
        bench.options.output = bench.scratch.path();
        REQUIRE_THROWS_AS(bench.run(), InvalidArgument);
    }
    CHECK_FALSE(std::filesystem::exists(bench.scratch.file("profile.json")));
}

TEST_CASE("the default profile lies in the user's folder under the name of the device class", "[sweep]") {
    Scratch scratch;
    ScopedVariable folder("TURBOTUNE_PROFILE_DIR", scratch.path());
    const DeviceInfo& device = open_device("cpu").info();
    CHECK(default_profile_path(device) == scratch.path() + "/" + device.device_class.to_string() + ".json");
}
