#include "catch.h"
#include "program.h"
#include "turbotune/base/json.h"

using namespace turbotune;
using namespace turbotune::test;

TEST_CASE("devices --json lists the CPU last, with class, target, tiers and compiler", "[cli]") {
    const TempDir home;
    const Outcome outcome = run_turbotune(home, {"devices", "--json"});
    REQUIRE(outcome.exit_code == 0);
    const Json listed = parse_json(outcome.out, "standard output");
    REQUIRE(listed["devices"].size() == 1);  // CUDA_VISIBLE_DEVICES hides every GPU
    const Json& cpu = listed["devices"].back();
    CHECK(cpu["id"] == "cpu");
    CHECK(cpu["kind"] == "cpu");
    CHECK(cpu["tiers"] == Json::array({"host"}));
    CHECK_FALSE(cpu["class"].get<std::string>().empty());
    CHECK_FALSE(cpu["target"].get<std::string>().empty());
    CHECK_FALSE(cpu["compiler"].get<std::string>().empty());
    CHECK(cpu["profile"].get<std::string>().rfind(home / "profiles", 0) == 0);
    CHECK_FALSE(listed["no_cuda"].get<std::string>().empty());
}

TEST_CASE("devices says why there is no GPU and no compiler", "[cli]") {
    const TempDir home;
    const Outcome outcome = run_turbotune(home, {"devices"}, {{"PATH", "/nonexistent"}, {"CXX", ""}});
    CHECK(outcome.exit_code == 0);
    CHECK(outcome.out.find("no GPU: ") != std::string::npos);
    CHECK(outcome.out.find("compiler  none: ") != std::string::npos);
}
