// What is compiled for a device, seen from inside. (The program's side: tests/tools/test_cache_warm.)
#include "turbotune/tuner/warm.h"

#include "catch.h"
#include "scratch.h"
#include "toy_operation.h"
#include "turbotune/base/error.h"
#include "turbotune/tuner/model_device.h"

using namespace turbotune;

namespace {

WarmOptions options_for(const Scratch& scratch, const std::vector<std::string>& lengths) {
    WarmOptions options;
    options.query.axes["length"] = lengths;
    options.devices = {open_device("cpu").info()};
    options.store.directory = scratch.file("store");
    options.jobs = 2;
    return options;
}

}  // namespace

TEST_CASE("workloads that nothing serves on the device are counted, with the reason", "[warm]") {
    const Scratch scratch;
    const ToyOperation toy({toy_config("good", 1)});
    const WarmReport report = warm_store(options_for(scratch, {"13", "64"}), {}, nullptr, {&toy});
    CHECK(report.workloads == 2);
    CHECK(report.kernels == 0);  // the toy has none
    REQUIRE(report.devices.size() == 1);
    CHECK(report.devices[0].unavailable == 1);
    CHECK(report.devices[0].why_unavailable == "length 13 is not served");
    CHECK(report.devices[0].from_heuristic == 1);
}

TEST_CASE("a kernel that does not compile is named, and an interrupt before the first ends the work", "[warm]") {
    const Scratch scratch;
    const ScopedVariable templates("TURBOTUNE_TEMPLATE_DIR", scratch.file("templates"));
    std::filesystem::create_directories(scratch.file("templates/toy"));
    spit(scratch.file("templates/toy/broken.cpp"), "this is no C++\n");
    const ToyOperation toy({toy_config("compile_error", 1)});
    const std::atomic<int> interrupts{1};
    const WarmReport stopped = warm_store(options_for(scratch, {"64"}), {}, &interrupts, {&toy});
    CHECK(stopped.interrupted);
    CHECK(stopped.failures.empty());

    int told = 0;
    const WarmReport report = warm_store(options_for(scratch, {"64"}),
                                         [&](const WarmProgress& progress) {
                                             ++told;
                                             CHECK(progress.count == 1);
                                         },
                                         nullptr, {&toy});
    CHECK(told == 1);
    CHECK_FALSE(report.interrupted);
    REQUIRE(report.failures.size() == 1);
    CHECK(report.failures[0].kernel.find("toy/broken.cpp") == 0);
    CHECK(report.failures[0].config.find("compile_error") != std::string::npos);
}

TEST_CASE("without a folder nothing can be warmed", "[warm]") {
    const Scratch scratch;
    const ToyOperation toy({toy_config("good", 1)});
    WarmOptions options = options_for(scratch, {"64"});
    options.store.memory_only = true;
    REQUIRE_THROWS_AS(warm_store(options, {}, nullptr, {&toy}), StoreError);
}

TEST_CASE("a model device is known by arch, target or class", "[warm]") {
    CHECK(model_device("sm_90").target() == "sm_90a");
    CHECK(model_device("sm_90a").device_class.to_string() == "sm_90-132sm-60MiB-227KiB-6016bit");
    const DeviceInfo slice = model_device("sm_90-60sm-31232KiB-227KiB-3072bit");
    CHECK(slice.device_class.sm_count == 60);
    CHECK(slice.device_class.l2_bytes == 31232 << 10);
    CHECK(slice.target() == "sm_90a");
    for (const char* name : {"sm_90-60sm", "sm_42-60sm-30MiB-227KiB-3072bit", "sm_90-x-30MiB-227KiB-3072bit", "",
                             "sm_90-60sm-30MiB-227KiB-99999999999bit", "sm_90-060sm-30MiB-227KiB-3072bit"}) {
        INFO(name);
        REQUIRE_THROWS_AS(model_device(name), InvalidArgument);
    }
}
