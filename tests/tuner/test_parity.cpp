#include <cmath>

#include "catch.h"
#include "toy_operation.h"
#include "turbotune/base/error.h"
#include "turbotune/tuner/parity.h"

using namespace turbotune;

namespace {

RuntimeOptions cpu_options() {
    RuntimeOptions options;
    options.device = "cpu";
    options.policy = Policy::heuristic;
    options.discover_profiles = false;
    options.store.memory_only = true;
    return options;
}

CaseOutcome outcome_of(const std::string& kind, bool with_expected = true) {
    Runtime runtime(cpu_options());
    ToyOperation toy;
    return check_case(runtime, toy, toy_case(30, 1, with_expected), toy_config(kind, 0));
}

}  // namespace

TEST_CASE("a right candidate passes against float64 and against the reference plan", "[parity]") {
    for (bool with_expected : {true, false}) {
        CaseOutcome outcome = outcome_of("good", with_expected);
        INFO(outcome.detail);
        CHECK(outcome.passed);
        CHECK(outcome.reason.empty());
        REQUIRE(outcome.outputs.size() == 1);
        CHECK(outcome.outputs[0].output == "out");
        CHECK(outcome.outputs[0].error < 1e-6);
        CHECK(outcome.outputs[0].tolerance == 1e-5);
    }
}

TEST_CASE("a wrong element is a mismatch that names where, what and how much", "[parity]") {
    for (bool with_expected : {true, false}) {
        CaseOutcome outcome = outcome_of("wrong", with_expected);
        CHECK_FALSE(outcome.passed);
        CHECK(outcome.reason == "mismatch");
        CHECK(outcome.detail.find("out[10] = ") != std::string::npos);
        CHECK(outcome.outputs.at(0).error > 0.3);
    }
}

TEST_CASE("an output written by half is unwritten from its first missing element", "[parity]") {
    CaseOutcome outcome = outcome_of("partial");
    CHECK_FALSE(outcome.passed);
    CHECK(outcome.reason == "unwritten");
    CHECK(outcome.detail.find("out[15] = ") != std::string::npos);
    CHECK(outcome_of("unwritten").detail.find("out[0] = ") != std::string::npos);
}

TEST_CASE("writes beside a tensor or the workspace are an overrun that names it", "[parity]") {
    CaseOutcome outcome = outcome_of("overrun");
    CHECK(outcome.reason == "overrun");
    CHECK(outcome.detail.find("out: wrote byte 1 behind") != std::string::npos);
    outcome = outcome_of("workspace_overrun");
    CHECK(outcome.reason == "overrun");
    CHECK(outcome.detail.find("workspace: ") != std::string::npos);
}

TEST_CASE("two runs that differ in one bit are not repeatable", "[parity]") {
    CaseOutcome outcome = outcome_of("unrepeatable");
    CHECK_FALSE(outcome.passed);
    CHECK(outcome.reason == "not_repeatable");
    CHECK(outcome.detail.find("out[0] = ") != std::string::npos);
}

TEST_CASE("a candidate that writes half is rejected though another filled the rest before", "[parity]") {
    Runtime runtime(cpu_options());
    ToyOperation toy;
    ParityChecker checker(runtime, toy, toy_case(30, 1, true));
    CHECK(checker.check(toy_config("good", 0)).passed);
    CHECK(checker.check(toy_config("partial", 0)).reason == "unwritten");
    CHECK(checker.check(toy_config("good", 0)).passed);
}

TEST_CASE("a candidate that changes its input is rejected with the index, and the next sees the input restored",
          "[parity]") {
    Runtime runtime(cpu_options());
    ToyOperation toy;
    ParityChecker checker(runtime, toy, toy_case(30, 1, false));
    CaseOutcome outcome = checker.check(toy_config("accumulate", 0));
    CHECK(outcome.reason == "input_changed");
    CHECK(outcome.detail.find("in[1]") != std::string::npos);
    CHECK(checker.check(toy_config("good", 0)).passed);
}

TEST_CASE("the first candidate being wrong rejects it alone", "[parity]") {
    Runtime runtime(cpu_options());
    ToyOperation toy;
    ParityChecker checker(runtime, toy, toy_case(30, 1, false));
    CHECK_FALSE(checker.check(toy_config("wrong", 0)).passed);
    CHECK(checker.check(toy_config("good", 0)).passed);
    CHECK(checker.check(toy_config("good", 5)).passed);
}

TEST_CASE("a candidate that throws leaves the checker usable", "[parity]") {
    Runtime runtime(cpu_options());
    ToyOperation toy;
    ParityChecker checker(runtime, toy, toy_case(30, 1, true));
    REQUIRE_THROWS_AS(checker.check(toy_config("launch_error", 0)), DeviceError);
    CHECK(checker.check(toy_config("good", 0)).passed);
}

TEST_CASE("errors count relative to the largest expected value, and absolutely for a tensor of zeros", "[parity]") {
    Runtime runtime(cpu_options());
    ToyOperation toy;
    TestCase large = toy_case(30, 1, true);
    HostTensor& want = large.expected["out"];
    want.set(5, want.at(5) + 0.01);
    large.tolerance = 0.02;
    CHECK(check_case(runtime, toy, large, toy_config("good", 0)).passed);
    large.tolerance = 0.002;
    CHECK(check_case(runtime, toy, large, toy_config("good", 0)).detail.find("out[5]") != std::string::npos);

    TestCase zeros = toy_case(4, 1, true);
    for (int i = 0; i < 4; ++i) zeros.inputs["in"].set(i, 0), zeros.expected["out"].set(i, 0);
    CHECK(check_case(runtime, toy, zeros, toy_config("good", 0)).passed);
    CHECK_FALSE(check_case(runtime, toy, zeros, toy_config("wrong", 0)).passed);
}

TEST_CASE("expected values that lack an output are refused by name", "[parity]") {
    Runtime runtime(cpu_options());
    ToyOperation toy;
    TestCase test_case = toy_case(30, 1, true);
    test_case.expected["other"] = std::move(test_case.expected["out"]);
    test_case.expected.erase("out");
    REQUIRE_THROWS_AS(check_case(runtime, toy, test_case, toy_config("good", 0)), InvalidArgument);
}
