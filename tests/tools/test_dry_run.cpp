#include <set>

#include "catch.h"
#include "program.h"
#include "turbotune/base/json.h"

using namespace turbotune;
using namespace turbotune::test;

namespace {

Json dry_run(std::vector<std::string> arguments) {
    const TempDir home;
    for (const char* each : {"--ops", "disentangled_attention", "--dry-run", "--json"}) arguments.push_back(each);
    const Outcome outcome = run_turbotune(home, arguments);
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    return parse_json(outcome.out, "standard output");
}

}  // namespace

TEST_CASE("The flag --dry-run lists every preset's workloads without a GPU", "[cli]") {
    const std::pair<const char*, std::size_t> presets[] = {{"quick", 12}, {"standard", 84}, {"exhaustive", 1134}};
    for (const auto& [preset, count] : presets) {
        const Json listed = dry_run({"--preset", preset});
        INFO(preset);
        CHECK(listed["preset"] == preset);
        CHECK(listed["device"]["id"] == "cpu");
        CHECK(listed["count"] == count);
        REQUIRE(listed["workloads"].size() == count);
        std::set<std::string> distinct;
        for (const Json& row : listed["workloads"]) {
            CHECK(row["operation"] == "disentangled_attention");
            CHECK(row["workload"].is_object());
            // Either it can be tuned or it says why not.
            CHECK((row["candidates"].get<int>() > 0) == row["unavailable"].is_null());
            CHECK(row["filtered"].get<int>() >= 0);
            distinct.insert(row["workload"].dump());
        }
        CHECK(distinct.size() == count);
    }
}

TEST_CASE("The flag --dry-run without a preset lists the standard one", "[cli]") {
    CHECK(dry_run({})["count"] == 84);
}

TEST_CASE("Flags replace axes of the preset", "[cli]") {
    const Json listed = dry_run({"--preset", "standard", "--lengths", "512,2048", "--passes", "inference", "--layouts",
                                 "padded", "--dtypes", "half,fp32_strict", "--head-dims", "32", "--batch-heads", "8",
                                 "--relative-modes", "c2p", "--dropout", "off"});
    CHECK(listed["count"] == 4);
    std::set<std::pair<int, std::string>> keys;
    for (const Json& row : listed["workloads"]) {
        const Json& workload = row["workload"];
        CHECK(workload["head_dim"] == 32);
        CHECK(workload["batch_heads"] == 8);
        CHECK(workload["relative"] == "c2p");
        CHECK(workload["pass"] == "inference");
        keys.insert({workload["length"].get<int>(), workload["precision"].get<std::string>()});
    }
    CHECK(keys == std::set<std::pair<int, std::string>>{
                      {512, "half"}, {512, "fp32_strict"}, {2048, "half"}, {2048, "fp32_strict"}});
}

TEST_CASE("Shards share the workloads out without overlap", "[cli]") {
    std::set<std::string> seen;
    std::size_t total = 0;
    for (const char* shard : {"1/5", "2/5", "3/5", "4/5", "5/5"}) {
        const Json listed = dry_run({"--preset", "quick", "--shard", shard});
        total += listed["workloads"].size();
        for (const Json& row : listed["workloads"]) seen.insert(row["workload"].dump());
    }
    CHECK(total == 12);
    CHECK(seen.size() == 12);
}

TEST_CASE("The flag --dry-run as text ends with the count and writes no profile", "[cli]") {
    const TempDir home;
    const Outcome outcome = run_turbotune(home, {"--preset", "quick", "--dry-run"});
    INFO(outcome.out << outcome.err);
    CHECK(outcome.exit_code == 0);
    CHECK(outcome.out.find("candidates") != std::string::npos);
    CHECK(outcome.out.find("\n12 workloads, ") != std::string::npos);
    CHECK(run_program(home, {"ls", home / "profiles"}).exit_code != 0);
}
