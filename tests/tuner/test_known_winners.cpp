// Sweeps beside profiles that were there before.
#include <algorithm>

#include "catch.h"
#include "sweep_bench.h"

using namespace turbotune;

TEST_CASE("what an entry says of its winner's latency, which may be of a slower day, does not drop the winner",
          "[sweep]") {
    SweepBench before({toy_config("good", 1000, 0)});
    before.run();
    Profile slow = before.profile();
    Latency& latency = slow.entries.front().latency;
    for (double* each : {&latency.min, &latency.p10, &latency.median, &latency.p90}) *each *= 5;
    save_profile(slow, before.options.output);

    SweepBench more({toy_config("good", 1000, 0), toy_config("good", 2000, 1)});
    more.options.output = before.options.output;
    const SweepReport report = more.run();
    CHECK(report.candidates_measured == 1);
    CHECK(more.entry().config == toy_config("good", 1000, 0));
    CHECK(more.entry().latency.median < latency.median / 2);
}

TEST_CASE("a winner known before is measured even where the preset would leave it out, and wins when it is faster",
          "[sweep]") {
    const std::vector<Config> configs = {toy_config("good", 3000, 0), toy_config("good", 3500, 1),
                                         toy_config("good", 3600, 2), toy_config("good", 1000, 3)};
    SweepBench before(configs);
    before.run();
    REQUIRE(before.entry().config == configs[3]);

    SweepBench bench(configs, Preset::quick);
    bench.run();
    CHECK(bench.entry().config == configs[0]);
    SweepBench again(configs, Preset::quick);
    again.options.profiles = {{before.options.output, before.profile()}};
    again.run();
    CHECK(again.entry().config == configs[3]);
    CHECK(again.entry().measured.size() == 2);
    CHECK(plan_sweep(again.options, {&again.toy}).at(0).candidates == 3);
    again.run();
    CHECK(again.count(SweepEvent::Kind::measured) == 0);

    SECTION("of several the one of these templates is the incumbent, and all are measured") {
        SweepBench among(configs, Preset::quick);
        among.options.profiles = {{"stale", before.profile()}, {"own", before.profile()}};
        among.options.profiles[0].profile.templates["toy"] = std::string(64, '0');
        among.options.profiles[0].profile.entries.front().config = configs[2];
        among.run();
        CHECK(among.entry().config == configs[3]);
        CHECK(among.entry().measured.size() == 3);
        const auto finished = std::find_if(among.events.begin(), among.events.end(), [](const SweepEvent& event) {
            return event.kind == SweepEvent::Kind::workload_finished;
        });
        REQUIRE(finished != among.events.end());
        CHECK(finished->text.find("as in the profile known before") != std::string::npos);
    }
    SECTION("that of another device is not") {
        SweepBench elsewhere(configs, Preset::quick);
        elsewhere.options.profiles = again.options.profiles;
        elsewhere.options.profiles.front().profile.device_class.sm_count += 1;
        elsewhere.run();
        CHECK(elsewhere.entry().config == configs[0]);
    }
    SECTION("one that does not fit is not") {
        SweepBench elsewhere({configs[0], configs[1], configs[2]}, Preset::quick);
        elsewhere.options.profiles = again.options.profiles;
        elsewhere.options.profiles.front().profile.entries.front().config = toy_config("filtered", 1000, 3);
        elsewhere.run();
        CHECK(elsewhere.entry().config == configs[0]);
    }
}
