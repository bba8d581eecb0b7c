#include "catch.h"
#include "toy_operation.h"
#include "turbotune/base/error.h"
#include "turbotune/tuner/bench.h"
#include "turbotune/tuner/peaks.h"

using namespace turbotune;

namespace {

RuntimeOptions cpu_options() {
    RuntimeOptions options;
    options.device = "cpu";
    options.discover_profiles = false;
    return options;
}

DeviceInfo h200() {
    DeviceInfo info;
    info.kind = DeviceKind::cuda;
    info.device_class = {"sm_90", 132, std::int64_t{60} << 20, 227 * 1024, 6016};
    return info;
}

}  // namespace

TEST_CASE("A benched problem tells its time, its work and where its config came from", "[bench]") {
    Runtime runtime(cpu_options());
    const ToyOperation toy({toy_config("good", 300), toy_config("good", 50, 1)});
    BenchOptions options;
    options.samples = 9;
    int announced = 0;
    options.before_sample = [&](int) { ++announced; };
    const BenchResult result = bench(runtime, toy, Fields{}.set("length", 64), options);
    CHECK(result.selection.origin == "heuristic");
    CHECK(result.latency.samples == 9);
    CHECK(result.latency.min >= 0.3);
    CHECK(result.flops == 64);
    CHECK(result.tflops() == Approx(64 / result.latency.median * 1e-9));
    CHECK(result.workspace_bytes == 16);
    CHECK(announced >= 9);
    CHECK_FALSE(result.host_us.has_value());

    options.config = Config{}.set("id", 1);
    const BenchResult other = bench(runtime, toy, Fields{}.set("length", 64), options);
    CHECK(other.selection.origin == "fixed");
    CHECK(other.latency.min < result.latency.min);
    CHECK_THROWS_AS(bench(runtime, toy, Fields{}.set("length", 13), options), Unsupported);
}

TEST_CASE("Fields complete to the first candidate that has them and fits", "[bench]") {
    const ToyOperation toy({toy_config("filtered", 1), toy_config("good", 1, 7), toy_config("good", 2, 7)});
    const Workload workload = toy.workload_of(Fields{}.set("length", 64));
    const auto complete = [&](const Config& given) { return complete_config(toy, workload, {}, given); };
    const auto refusal = [&](const Config& given) -> std::string {
        try {
            return complete(given).to_string();
        } catch (const InvalidArgument& error) {
            return error.argument() == "config" ? error.what() : "another argument";
        }
    };
    CHECK(complete(Config{}.set("id", 7)) == toy_config("good", 1, 7));
    CHECK(complete(Config{}.set("us", 1)) == toy_config("good", 1, 7));
    CHECK(refusal(Config{}.set("id", 8)).find("no candidate has id=8; there are: 0, 7") != std::string::npos);
    CHECK(refusal(Config{}.set("width", 8)).find("no candidate has a field width") != std::string::npos);
    CHECK(refusal(Config{}.set("id", 0)).find("999999 bytes") != std::string::npos);
    CHECK(refusal(Config{}.set("id", 0).set("us", 2)).find("together") != std::string::npos);
}

TEST_CASE("The floor is the longer of the two times", "[bench]") {
    const Peaks peaks{2e12, 1e12, ""};
    CHECK(peaks.floor_ms(4e9, 1e9) == Approx(2));
    CHECK(peaks.floor_ms(1e9, 3e9) == Approx(3));
}

TEST_CASE("Peaks are known by device class and element type, and for no other device", "[bench]") {
    const auto flops = [](const char* dtype, const char* math) {
        const auto peaks = known_peaks(h200(), Fields{}.set("dtype", dtype).set("math", math));
        REQUIRE(peaks.has_value());
        CHECK(peaks->bytes_per_s == Approx(4.25e12));
        return peaks->flops_per_s * 1e-12;
    };
    CHECK(flops("bf16", "strict") == Approx(989.5));
    CHECK(flops("f16", "strict") == Approx(989.5));
    CHECK(flops("f32", "fast") == Approx(494.7));
    CHECK(flops("f32", "strict") == Approx(67));
    DeviceInfo slice = h200();
    slice.device_class.sm_count = 60;
    CHECK_FALSE(known_peaks(slice, {}).has_value());
    CHECK_FALSE(known_peaks(open_device("cpu").info(), {}).has_value());
}
