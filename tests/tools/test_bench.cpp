#include <algorithm>

#include "catch.h"
#include "program.h"
#include "turbotune/base/json.h"

using namespace turbotune;
using namespace turbotune::test;

namespace {

std::vector<std::string> small(std::vector<std::string> more) {
    std::vector<std::string> all = {"bench", "--device",  "cpu", "--batch",  "1",        "--heads",
                                    "2",     "--repeats", "5",   "--policy", "heuristic"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
}

Outcome bench(const TempDir& home, const std::vector<std::string>& arguments) {
    return run_turbotune(home, arguments, shared_store());
}

Json measured(const TempDir& home, const std::vector<std::string>& arguments, int exit_code = 0) {
    auto all = small(arguments);
    all.push_back("--json");
    const Outcome outcome = bench(home, all);
    INFO(outcome.out << outcome.err);
    REQUIRE(outcome.exit_code == exit_code);
    return parse_json(outcome.out, "standard output");
}

}  // namespace

TEST_CASE("bench refuses numbers that mean nothing, by name", "[bench]") {
    const TempDir home;
    const std::vector<std::vector<std::string>> wrong = {{"--tokens", "0"},
                                                         {"--tokens", "100", "--length", "64"},
                                                         {"--peak-tflops", "nan", "--peak-gbs", "1"},
                                                         {"--peak-tflops", "1", "--peak-gbs", "inf"}};
    for (const std::vector<std::string>& each : wrong) {
        std::vector<std::string> arguments = {"bench", "--device", "cpu"};
        arguments.insert(arguments.end(), each.begin(), each.end());
        const Outcome outcome = bench(home, arguments);
        INFO(each.front() << " " << outcome.err);
        CHECK(outcome.exit_code == 2);
        CHECK(outcome.err.find("turbotune: error: ") != std::string::npos);
    }
}

TEST_CASE("bench names a problem that does not fit into memory and measures the others", "[bench]") {
    const TempDir home;
    const Outcome outcome = bench(home, {"bench", "--device", "cpu", "--length", "16,4000000", "--batch", "4",
                                         "--heads", "64", "--head-dim", "128", "--repeats", "2", "--json"});
    CHECK(outcome.exit_code == 1);
    const Json report = parse_json(outcome.out, "standard output");
    REQUIRE(report["rows"].size() == 2);
    CHECK(report["rows"][1]["failure"].get<std::string>().find("out of memory") != std::string::npos);
    CHECK(report["rows"][1]["latency"].is_null());
}

TEST_CASE("bench measures every combination of the lists and counts what the definition needs", "[bench]") {
    const TempDir home;
    const Json report = measured(home, {"--length", "32,64", "--dtype", "f32,bf16", "--head-dim", "32"});
    CHECK(report["device"]["id"] == "cpu");
    CHECK(report["operation"] == "disentangled_attention");
    CHECK(report["peaks"] == "");
    REQUIRE(report["rows"].size() == 4);
    for (const Json& row : report["rows"]) {
        CHECK(row["failure"] == "");
        CHECK(row["origin"] == "heuristic");
        CHECK(row["config"]["tier"] == "host");
        const Json& latency = row["latency"];
        CHECK(latency["min"].get<double>() > 0);
        CHECK(latency["min"] <= latency["p10"]);
        CHECK(latency["p10"] <= latency["median"]);
        CHECK(latency["median"] <= latency["p90"]);
        CHECK(latency["samples"] == 5);
        CHECK(row["host_us"].is_null());
        CHECK(row["floor_ms"].is_null());
        const double length = row["problem"]["length"].get<double>();
        // 2 heads of 32: 4 L^2 D and, over 2L - 1 slots, 2 L R D for each of the two tables.
        CHECK(row["flops"] == 2 * 32 * length * (4 * length + 4 * (2 * length - 1)));
        CHECK(row["tflops"].get<double>() ==
              Approx(row["flops"].get<double>() / latency["median"].get<double>() * 1e-9));
        CHECK(row["kernels"].size() >= 1);
    }
    const Json& first = report["rows"][0]["problem"];
    CHECK(first["dtype"] == "f32");
    CHECK(first["length"] == 32);
    CHECK(report["rows"][1]["problem"]["length"] == 64);
}

TEST_CASE("bench prints a table with the floor when the peaks are given", "[bench]") {
    const TempDir home;
    const Outcome outcome =
        bench(home, small({"--length", "32", "--peak-tflops", "0.5", "--peak-gbs", "20", "--mask"}));
    INFO(outcome.out << outcome.err);
    REQUIRE(outcome.exit_code == 0);
    CHECK(outcome.out.find("of floor") != std::string::npos);
    CHECK(outcome.out.find(" %") != std::string::npos);
    CHECK(outcome.out.find("floor: given on the command line") != std::string::npos);
    CHECK(outcome.out.find("tier=host") != std::string::npos);
    CHECK(bench(home, small({"--length", "32", "--peak-tflops", "0.5"})).exit_code == 2);
}

TEST_CASE("bench takes the first candidate with the fields of --config, and says which there are", "[bench]") {
    const TempDir home;
    const Json report = measured(home, {"--length", "64", "--config", "block_m=64 block_n=32"});
    CHECK(report["rows"][0]["origin"] == "fixed");
    CHECK(report["rows"][0]["config"]["block_m"] == 64);
    CHECK(report["rows"][0]["config"]["block_n"] == 32);
    const Outcome wrong = bench(home, small({"--config", "block_m=63"}));
    CHECK(wrong.exit_code == 2);
    CHECK(wrong.err.find("--config: no candidate has block_m=63; there are: ") != std::string::npos);
    const Outcome unknown = bench(home, small({"--config", "speed=3"}));
    CHECK(unknown.exit_code == 2);
    CHECK(unknown.err.find("no candidate has a field speed") != std::string::npos);
}

TEST_CASE("bench spreads the tokens of a packed batch over its sequences", "[bench]") {
    const TempDir home;
    const Json even = measured(home, {"--layout", "packed", "--length", "48"});
    CHECK(even["rows"][0]["problem"]["tokens"] == 48);
    auto arguments = small({"--layout", "packed", "--length", "64", "--set", "tokens=100", "--json"});
    *std::find(arguments.begin(), arguments.end(), "1") = "3";  // --batch
    const Outcome outcome = bench(home, arguments);
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    CHECK(parse_json(outcome.out, "standard output")["rows"][0]["problem"]["tokens"] == 100);
}

TEST_CASE("bench names mistakes with the flag that made them", "[bench]") {
    const TempDir home;
    const auto refused = [&](const std::vector<std::string>& arguments, const std::string& part) {
        const Outcome outcome = bench(home, small(arguments));
        INFO(outcome.err);
        CHECK(outcome.exit_code == 2);
        CHECK(outcome.err.find(part) != std::string::npos);
        CHECK(outcome.out.empty());
    };
    refused({"--length", "long"}, "--length: 'long' is no whole number");
    refused({"--length", "64,"}, "--length: an empty value");
    refused({"--set", "colour=red"}, "--set: the operation has no field colour; it has: pass, ");
    refused({"--set", "mask=maybe"}, "--set: 'maybe' is neither true nor false");
    refused({"--set", "mask"}, "is not of the form name=value");
    refused({"--pass", "sideways"}, "sideways");
    refused({"--length", "0"}, "length");
    refused({"--tokens", "64"}, "--tokens: and --batch exclude each other");
    refused({"--set", "batch=2"}, "--set: batch=2 and --batch exclude each other");
    refused({"--repeats", "0"}, "--repeats");
    refused({"--op", "addition"}, "addition");
    refused({"--profile", home / "absent.json"}, "absent.json");
    const Outcome fixed = bench(home, {"bench", "--device", "cpu", "--policy", "fixed"});
    CHECK(fixed.exit_code == 2);
    CHECK(fixed.err.find("--policy: for a fixed config give --config") != std::string::npos);
}

TEST_CASE("bench measures what can run, names what cannot, and exits with 1", "[bench]") {
    const TempDir home;
    const Json report = measured(home, {"--head-dim", "32,40", "--length", "32"}, 1);
    REQUIRE(report["rows"].size() == 2);
    CHECK(report["rows"][0]["failure"] == "");
    CHECK(report["rows"][1]["failure"].get<std::string>().find("40") != std::string::npos);
}

TEST_CASE("bench measures a training step with dropout", "[bench]") {
    const TempDir home;
    const Json report = measured(
        home, {"--pass", "training_forward,backward", "--length", "48", "--head-dim", "32", "--dropout", "0.1"});
    REQUIRE(report["rows"].size() == 2);
    const Json &forward = report["rows"][0], &backward = report["rows"][1];
    CHECK(backward["problem"]["pass"] == "backward");
    CHECK(backward["problem"]["dropout"] == "0.1");
    CHECK(backward["latency"]["min"].get<double>() > 0);
    // 10 L^2 D and 12 L R D against 4 L^2 D and 4 L R D, R = 95 slots.
    CHECK(backward["flops"].get<double>() / forward["flops"].get<double>() ==
          Approx((10.0 * 48 + 12 * 95) / (4.0 * 48 + 4 * 95)));
    CHECK(bench(home, small({"--length", "48", "--dropout", "0.1"})).exit_code == 2);  // inference drops nothing
}
