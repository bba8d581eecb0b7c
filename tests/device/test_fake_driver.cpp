// The whole path through the driver, on a fake one: what a machine without a GPU can test of it.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <thread>

#include "base/temp_directory.h"
#include "catch.h"
#include "run_self.h"
#include "turbotune/base/error.h"
#include "turbotune/device/cuda_driver.h"
#include "turbotune/device/device.h"

using namespace turbotune;
using test::Finished;
using test::run_self;
using test::TempDirectory;

namespace {

// Runs a case of this file with the fake driver in front of any real one.
class FakeDriver {
  public:
    explicit FakeDriver(const std::string& options = "") {
        const std::string problem = test::build_fake_driver(directory_.path(), options);
        INFO(problem);
        REQUIRE(problem.empty());
    }
    Finished run(const std::string& test_case, std::map<std::string, std::string> variables = {}) const {
        variables["LD_LIBRARY_PATH"] = directory_.path();
        return run_self(test_case, variables);
    }

  private:
    TempDirectory directory_;
};

bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

template <typename Call>
DeviceError error_of(Call&& call) {
    try {
        call();
    } catch (const DeviceError& error) {
        return error;
    }
    return DeviceError("no error");
}

}  // namespace

TEST_CASE("Child: print devices", "[.child]") {
    if (!test::is_child()) return;
    std::string why;
    for (const DeviceInfo& info : list_devices(&why)) {
        std::printf("device %d %s class=%s target=%s uuid=%s tiers=", info.ordinal, info.name.c_str(),
                    info.device_class.to_string().c_str(), info.target().c_str(), info.uuid.c_str());
        for (const std::string& tier : info.tiers()) std::printf("%s,", tier.c_str());
        std::printf("\n");
    }
    std::printf("why=[%s]\nauto=%s\n", why.c_str(), open_device("auto").info().target().c_str());
}

TEST_CASE("The devices of a driver are listed with their class, and why others are not", "[device]") {
    const FakeDriver fake;
    const Finished two = fake.run("Child: print devices");
    INFO(two.output);
    CHECK(two.exit_code == 0);
    CHECK(has(two.output,
              "device 0 Fake H200 class=sm_90-132sm-60MiB-227KiB-6016bit target=sm_90a "
              "uuid=GPU-00102030-4050-6070-8090-a0b0c0d0e0f0 tiers=sm90,mma,simt,\n"));
    CHECK(has(two.output,
              "device 1 Fake H200 class=sm_80-132sm-60MiB-227KiB-6016bit target=sm_80 "
              "uuid=GPU-01112131-4151-6171-8191-a1b1c1d1e1f1 tiers=mma,simt,\n"));
    CHECK(has(two.output, "why=[]\nauto=sm_90a\n"));

    const Finished old = fake.run("Child: print devices", {{"FAKE_CC", "61"}});
    CHECK(has(old.output, "auto=sm_80\n"));
    CHECK_FALSE(has(old.output, "sm_61-"));
    const Finished all_old = fake.run("Child: print devices", {{"FAKE_CC", "61"}, {"FAKE_DEVICES", "1"}});
    CHECK(has(all_old.output, "why=[device 0 (Fake H200) has compute capability 6.1, 8.0 is needed]"));
    const Finished none = fake.run("Child: print devices", {{"FAKE_DEVICES", "0"}});
    CHECK(has(none.output, "why=[the driver sees no device]"));
}

TEST_CASE("A driver that cannot start is a reason, and the CPU is taken", "[device]") {
    const FakeDriver fake;
    const std::pair<const char*, const char*> reasons[] = {
        {"100", "cuInit failed: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)"},
        {"901", "cuInit failed: CUDA_ERROR_FAKE (made up)"},
        {"777", "cuInit failed: CUDA error 777"},
        {"34", "remove the toolkit's stubs folder"},
    };
    for (const auto& [code, reason] : reasons) {
        const Finished finished = fake.run("Child: print devices", {{"FAKE_INIT", code}});
        INFO(finished.output);
        CHECK(finished.exit_code == 0);
        CHECK(has(finished.output, reason));
        CHECK_FALSE(has(finished.output, "auto=sm_"));
    }
    const FakeDriver old("-DFAKE_OLD_DRIVER");
    const Finished finished = old.run("Child: print devices", {{"FAKE_VERSION", "11040"}});
    INFO(finished.output);
    CHECK(has(finished.output, "libcuda.so.1 lacks cuLaunchKernelEx: the driver (11.4) is too old, 12.0 or newer"));
}

TEST_CASE("Child: use a device", "[.child]") {
    if (!test::is_child()) return;
    Device& device = open_device("0");
    REQUIRE(&device == &open_device("0"));
    REQUIRE(&device == &open_device("auto"));
    REQUIRE(&device != &open_device("1"));
    const cuda::Driver& driver = *cuda::driver();

    const std::int64_t free_before = device.free_memory();
    {
        DeviceBuffer a(device, 1000), b(device, 1000), none(device, 0);
        CHECK(reinterpret_cast<std::uintptr_t>(a.get()) % 256 == 0);
        CHECK(none);
        CHECK(device.free_memory() == free_before - 2001);
        std::string text(1000, 'x'), back(1000, '\0');
        device.copy_to_device(a.get(), text.data(), 1000);
        StreamHandle stream = device.create_stream();
        REQUIRE(stream != nullptr);
        device.copy_async(b.get(), a.get(), 1000, stream);
        device.synchronize(stream);
        device.copy_to_host(back.data(), b.get(), 1000);
        CHECK(back == text);
        device.fill(b.get(), 7, 500);
        device.copy_to_host(back.data(), b.get(), 1000);
        CHECK(back == std::string(500, 7) + std::string(500, 'x'));
        CHECK_FALSE(device.is_capturing(stream));
        auto timer = device.create_timer();
        CHECK(error_of([&] { timer->elapsed_ms(); }).name() == "CUDA_ERROR_INVALID_HANDLE");
        timer->start(stream);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        timer->stop(stream);
        CHECK(timer->elapsed_ms() >= 19);
        device.destroy_stream(stream);
        DeviceBuffer moved(std::move(a));
        CHECK_FALSE(a);
        b = std::move(moved);
        CHECK(b.bytes() == 1000);
    }
    CHECK(device.free_memory() == free_before);

    const DeviceError full = error_of([&] { device.allocate(std::size_t{3} << 30); });
    CHECK(full.driver_code() == 2);
    CHECK(full.name() == "CUDA_ERROR_OUT_OF_MEMORY");
    CHECK(std::string(full.what()) ==
          "out of memory on device 0 (Fake H200): 3221225472 bytes (3072.0 MiB) asked for, "
          "1024.0 MiB of 1024.0 MiB are free");

    // Another context of the caller's is current again after each call, and made current on request.
    cuda::Context context_0 = nullptr, context_1 = nullptr, now = nullptr;
    device.make_current();
    driver.CtxGetCurrent(&context_0);
    open_device("1").make_current();
    driver.CtxGetCurrent(&context_1);
    CHECK(context_0 != context_1);
    { DeviceBuffer buffer(device, 8); }
    driver.CtxGetCurrent(&now);
    CHECK(now == context_1);
    device.make_current();
    driver.CtxGetCurrent(&now);
    CHECK(now == context_0);
    std::thread([&] { DeviceBuffer buffer(device, 8); }).join();
}

TEST_CASE("Memory, copies, streams and timers of a GPU work through the driver", "[device]") {
    const Finished finished = FakeDriver().run("Child: use a device");
    INFO(finished.output);
    CHECK(finished.passed());
}

TEST_CASE("Child: fail on a device", "[.child]") {
    if (!test::is_child()) return;
    Device& device = open_device("0");
    StreamHandle stream = device.create_stream();
    const DeviceError fault = error_of([&] { device.synchronize(stream); });
    std::printf("%s|%s|%d|capturing=%d\n", fault.what(), fault.name().c_str(), fault.driver_code(),
                device.is_capturing(stream));
}

TEST_CASE("Faults carry the driver's name, and captures are seen", "[device]") {
    const FakeDriver fake;
    const Finished fault = fake.run("Child: fail on a device", {{"FAKE_FAULT", "700"}, {"FAKE_CAPTURE", "1"}});
    INFO(fault.output);
    CHECK(has(fault.output,
              "cuStreamSynchronize failed: CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was "
              "encountered)|CUDA_ERROR_ILLEGAL_ADDRESS|700|capturing=1\n"));
    CHECK(has(fake.run("Child: fail on a device", {{"FAKE_CAPTURE", "906"}}).output, "capturing=1"));
    CHECK(has(fake.run("Child: fail on a device", {{"FAKE_CAPTURE", "2"}}).output, "capturing=1"));
    CHECK(has(fake.run("Child: fail on a device").output, "no error||0|capturing=0"));
}

TEST_CASE("Child: open wrong devices", "[.child]") {
    if (!test::is_child()) return;
    CHECK(std::string(error_of([] { open_device("2"); }).what()) == "there is no device 2: 2 CUDA devices are visible");
    CHECK(std::string(error_of([] { open_device("1"); }).what()) ==
          "device 1 (Fake H200) has compute capability 6.0, 8.0 is needed");
    const DeviceError busy = error_of([] { open_device("0"); });
    CHECK(std::string(busy.what()) == "cuDevicePrimaryCtxRetain failed: CUDA_ERROR_FAKE (made up)");
    CHECK(error_of([] { open_device("auto"); }).driver_code() == 901);
}

TEST_CASE("A device that cannot be opened is an error that says why", "[device]") {
    const Finished finished =
        FakeDriver().run("Child: open wrong devices", {{"FAKE_CC_1", "60"}, {"FAKE_RETAIN", "901"}});
    INFO(finished.output);
    CHECK(finished.passed());
}

TEST_CASE("Child: fork", "[.child]") {
    if (!test::is_child()) return;
    Device& device = open_device("0");
    DeviceBuffer buffer(device, 64);
    std::fflush(stdout);
    const pid_t child = ::fork();
    if (child == 0) {
        const auto refused = [](auto&& call) { return has(error_of(call).what(), "forked after CUDA"); };
        const bool all = refused([&] { device.make_current(); }) && refused([&] { cuda::driver(); }) &&
                         refused([&] { device.allocate(8); }) && refused([&] { open_device("auto"); }) &&
                         refused([&] { open_device("0"); });
        std::string why;
        const bool listed = list_devices(&why).size() == 1 && has(why, "forked");
        device.free(buffer.get());
        ::_exit(all && listed && open_device("cpu").info().kind == DeviceKind::cpu ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
    REQUIRE_NOTHROW(device.make_current());
}

TEST_CASE("A forked child is told that its driver is lost, and the parent goes on", "[device]") {
    const Finished finished = FakeDriver().run("Child: fork");
    INFO(finished.output);
    CHECK(finished.passed());
}
