#include <cmath>
#include <random>

#include "catch.h"
#include "scratch.h"
#include "toy_operation.h"
#include "turbotune/base/error.h"
#include "turbotune/tuner/measure.h"

using namespace turbotune;

namespace {

constexpr std::int64_t kMiB = 1 << 20;

DeviceInfo device_with_l2(std::int64_t bytes) {
    DeviceInfo device;
    device.device_class.l2_bytes = bytes;
    return device;
}

// 2 MiB: one of input, one of output.
TestCase two_mebibytes() {
    TestCase test_case;
    test_case.inputs["in"] = HostTensor(DType::f32, {256, 1024});
    test_case.outputs = {{"out", DType::f32, {256, 1024}}};
    return test_case;
}

RuntimeOptions cpu_options() {
    RuntimeOptions options;
    options.device = "cpu";
    options.policy = Policy::heuristic;
    options.discover_profiles = false;
    options.store.memory_only = true;
    return options;
}

}  // namespace

TEST_CASE("a summary gives the quantiles of its samples", "[measure]") {
    std::vector<double> samples;
    for (int i = 100; i >= 0; --i) samples.push_back(i);
    Latency latency = summarize(samples);
    CHECK(latency.min == 0);
    CHECK(latency.p10 == Approx(10));
    CHECK(latency.median == Approx(50));
    CHECK(latency.p90 == Approx(90));
    CHECK(latency.samples == 101);
    CHECK(summarize({3}).p90 == 3);
    CHECK(summarize({}).samples == 0);
    CHECK(median_of({1, 2}) == 1.5);
    // In order to the last bit, also where interpolation rounds.
    std::mt19937 random(3);
    for (int trial = 0; trial < 1000; ++trial) {
        std::vector<double> nearly_equal(2 + trial % 9, 0.1);
        for (double& sample : nearly_equal)
            if (random() % 2) sample = std::nextafter(sample, 1);
        Latency order = summarize(nearly_equal);
        REQUIRE(order.min <= order.p10);
        REQUIRE(order.p10 <= order.median);
        REQUIRE(order.median <= order.p90);
    }
}

TEST_CASE("a sample holds as many launches as fill 200 us, and at least one", "[measure]") {
    CHECK(launches_per_sample(0.001) == 200);
    CHECK(launches_per_sample(0.15) == 2);
    CHECK(launches_per_sample(0.2) == 1);
    CHECK(launches_per_sample(700) == 1);
    CHECK(launches_per_sample(0) == 1000);
    CHECK(launches_per_sample(1e-9) == 1000);
}

TEST_CASE("the copies pass more than twice the L2 before one comes round again", "[measure]") {
    MemoryPlan plan = plan_memory(two_mebibytes(), device_with_l2(50 * kMiB), 1000 * kMiB);
    CHECK(plan.set_bytes == 2 * kMiB);
    CHECK(plan.sets == 51);
    CHECK(plan.cold());
    CHECK(plan.to_string() == "51 copies of 2.0 MiB: 102.0 MiB rotated against 50.0 MiB of L2");
    CHECK(plan_memory(two_mebibytes(), device_with_l2(0), 1000 * kMiB).sets == 1);
    CHECK(plan_memory(two_mebibytes(), device_with_l2(kMiB / 2), 1000 * kMiB).sets == 1);
}

TEST_CASE("under a cap there are fewer copies, never less than one, and the plan says so", "[measure]") {
    MemoryPlan plan = plan_memory(two_mebibytes(), device_with_l2(50 * kMiB), 21 * kMiB);
    CHECK(plan.sets == 10);
    CHECK_FALSE(plan.cold());
    CHECK(plan.to_string().find("51 wanted; memory is limited to 21.0 MiB") != std::string::npos);
    CHECK(plan_memory(two_mebibytes(), device_with_l2(50 * kMiB), 1).sets == 1);
    CHECK(plan_memory(two_mebibytes(), device_with_l2(50 * kMiB), -5).sets == 1);
    CHECK(plan_memory(two_mebibytes(), device_with_l2(50 * kMiB), -5).limit_bytes == 0);
    const std::string text = plan_memory(two_mebibytes(), device_with_l2(50 * kMiB), kMiB).to_string();
    CHECK(text.find("more than the 1.0 MiB that memory is limited to") != std::string::npos);
}

TEST_CASE("TURBOTUNE_MEMORY_LIMIT bounds the memory and must be a number of bytes", "[measure]") {
    Device& device = open_device("cpu");
    CHECK(memory_limit(device) > 0);
    {
        ScopedVariable limit("TURBOTUNE_MEMORY_LIMIT", "1000000");
        CHECK(memory_limit(device) == 1000000);
        CHECK(memory_limit(device, 400000) == 600000);
        CHECK(memory_limit(device, 2000000) == 0);
    }
    for (const char* bad : {"1G", "-3", "0", "many", " 5", "99999999999999999999"}) {
        ScopedVariable limit("TURBOTUNE_MEMORY_LIMIT", bad);
        REQUIRE_THROWS_AS(memory_limit(device), InvalidArgument);
    }
}

TEST_CASE("samples far above the median are taken again, at most one in four", "[measure]") {
    std::vector<double> samples = {1.0, 1.01, 0.99, 1.3, 1.0, 1.02, 1.4, 1.0};
    int asked = 0;
    CHECK(retake_outliers(samples, [&] { return ++asked, 1.005; }) == 2);
    CHECK(asked == 2);
    CHECK(*std::max_element(samples.begin(), samples.end()) < 1.03);

    std::vector<double> wild = {1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0};
    CHECK(retake_outliers(wild, [] { return 2.0; }) == 2);
    std::vector<double> few = {1.0, 1.0, 9.0};
    CHECK(retake_outliers(few, [] { return 1.0; }) == 0);

    // Plain noise is not touched.
    std::mt19937 random(1);
    std::normal_distribution<double> normal(1, 0.02);
    int touched = 0;
    for (int trial = 0; trial < 100; ++trial) {
        std::vector<double> noise;
        for (int i = 0; i < 40; ++i) noise.push_back(normal(random));
        touched += retake_outliers(noise, [&] { return normal(random); });
    }
    CHECK(touched < 10);
}

TEST_CASE("the bench returns the time that an execution takes, in turns", "[measure]") {
    Runtime runtime(cpu_options());
    ToyOperation toy;
    TimingBench bench(runtime, toy, toy_case(64, 1, false), kMiB);
    Config fast = toy_config("good", 50), slow = toy_config("good", 400);
    std::vector<int> announced;
    auto samples = bench.round({fast, slow}, 9, [&](int i) { announced.push_back(i); });
    REQUIRE(samples.size() == 2);
    REQUIRE(samples[0].size() == 9);
    // Never less than the execution itself; how much more is up to what else the machine does.
    CHECK(summarize(samples[0]).min >= 0.050);
    CHECK(summarize(samples[0]).min < 0.200);
    CHECK(summarize(samples[1]).min >= 0.400);
    CHECK(summarize(samples[1]).min < 1.200);
    CHECK(announced.at(2) == 0);
    CHECK(announced.at(3) == 1);
    CHECK(announced.at(4) == 0);
    CHECK(bench.execution_ms(slow) >= 0.4);
    CHECK(bench.memory().sets >= 1);
}

TEST_CASE("a config that was not added cannot be sampled", "[measure]") {
    Runtime runtime(cpu_options());
    ToyOperation toy;
    TimingBench bench(runtime, toy, toy_case(64, 1, false), kMiB);
    REQUIRE_THROWS_AS(bench.sample(toy_config("good", 1)), InvalidArgument);
    REQUIRE_THROWS_AS(bench.add(toy_config("launch_error", 1)), DeviceError);
}
