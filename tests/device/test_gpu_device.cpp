// What the fake driver cannot show: run on a real GPU.
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "catch.h"
#include "run_self.h"
#include "turbotune/base/error.h"
#include "turbotune/device/cuda_driver.h"
#include "turbotune/device/device.h"

using namespace turbotune;

TEST_CASE("The GPU's class and facts are plausible", "[gpu]") {
    const DeviceInfo& info = open_device("0").info();
    INFO(info.name << " " << info.device_class.to_string());
    CHECK(info.kind == DeviceKind::cuda);
    CHECK(info.cc_major >= 7);
    CHECK(info.device_class.arch == "sm_" + std::to_string(info.cc_major) + std::to_string(info.cc_minor));
    CHECK(info.device_class.sm_count > 0);
    CHECK(info.device_class.l2_bytes >= 1 << 20);
    CHECK(info.device_class.shared_per_block >= 64 << 10);
    CHECK(info.shared_per_sm >= info.device_class.shared_per_block);
    CHECK(info.device_class.bus_width >= 64);
    CHECK(info.registers_per_sm == 65536);
    CHECK(info.max_threads_per_sm >= 1024);
    CHECK(info.total_memory > std::int64_t{1} << 30);
    CHECK(info.driver_version >= 12000);
    CHECK(info.uuid.size() == 40);
    CHECK(list_devices().front().uuid == info.uuid);
    if (info.name.find("H200") != std::string::npos) CHECK(info.tiers().front() == "sm90");
}

TEST_CASE("GPU memory holds what is copied, in stream order", "[gpu]") {
    Device& device = open_device("0");
    const std::size_t bytes = 10'000'001;
    DeviceBuffer a(device, bytes), b(device, bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(a.get()) % 256 == 0);
    std::string text(bytes, '\0'), back(bytes, '\0');
    for (std::size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 31 + i / 255);
    StreamHandle stream = device.create_stream();
    device.copy_to_device(a.get(), text.data(), bytes);
    device.copy_async(b.get(), a.get(), bytes, stream);
    device.synchronize(stream);
    device.copy_to_host(back.data(), b.get(), bytes);
    CHECK(back == text);
    device.fill(b.get(), 0x5a, bytes - 1);
    device.copy_async(a.get(), b.get(), bytes, stream);
    device.synchronize(stream);
    device.copy_to_host(back.data(), a.get(), bytes);
    CHECK(back == std::string(bytes - 1, '\x5a') + text.back());
    CHECK_FALSE(device.is_capturing(stream));
    CHECK_FALSE(device.is_capturing(nullptr));
    device.destroy_stream(stream);
}

TEST_CASE("GPU memory comes back when its buffer ends, also in another thread", "[gpu]") {
    Device& device = open_device("0");
    { DeviceBuffer warm(device, 1 << 20); }
    const std::int64_t before = device.free_memory();
    std::thread([&] {
        DeviceBuffer buffer(device, std::size_t{256} << 20);
        CHECK(device.free_memory() <= before - (std::int64_t{200} << 20));
    }).join();
    CHECK(device.free_memory() >= before - (std::int64_t{64} << 20));
}

TEST_CASE("More than the GPU has is out of memory by name, and the device goes on", "[gpu]") {
    Device& device = open_device("0");
    try {
        device.allocate(static_cast<std::size_t>(device.info().total_memory) * 2);
        FAIL("allocated twice the memory");
    } catch (const DeviceError& error) {
        CHECK(error.name() == "CUDA_ERROR_OUT_OF_MEMORY");
        CHECK(error.driver_code() == 2);
        CHECK(std::string(error.what()).find("asked for") != std::string::npos);
    }
    DeviceBuffer buffer(device, 1024);
    CHECK(buffer);
}

TEST_CASE("GPU timers measure work on their stream", "[gpu]") {
    Device& device = open_device("0");
    const std::size_t bytes = std::size_t{256} << 20;
    DeviceBuffer a(device, bytes), b(device, bytes);
    StreamHandle stream = device.create_stream();
    auto timer = device.create_timer();
    const auto measure = [&](int copies) {
        timer->start(stream);
        for (int i = 0; i < copies; ++i) device.copy_async(b.get(), a.get(), bytes, stream);
        timer->stop(stream);
        return timer->elapsed_ms();
    };
    measure(4);
    const double few = measure(4), many = measure(40);
    CHECK(few > 0);
    CHECK(many > 4 * few);
    device.destroy_stream(stream);
    REQUIRE_THROWS_AS(device.create_timer()->elapsed_ms(), DeviceError);
}

TEST_CASE("The driver names its own errors", "[gpu]") {
    const cuda::Driver* driver = cuda::driver();
    REQUIRE(driver != nullptr);
    Device& device = open_device("0");
    device.make_current();
    try {
        TURBOTUNE_CUDA(driver->MemFree(1));
        FAIL("a wild pointer was freed");
    } catch (const DeviceError& error) {
        CHECK(error.name() == "CUDA_ERROR_INVALID_VALUE");
        CHECK(std::string(error.what()).find("driver->MemFree(1) failed: CUDA_ERROR_INVALID_VALUE (") == 0);
    }
    CHECK(driver->TensorMapEncodeTiled != nullptr);
}

TEST_CASE("The caller's context is current again after each call", "[gpu]") {
    const cuda::Driver* driver = cuda::driver();
    REQUIRE(driver != nullptr);
    Device& device = open_device("0");
    device.make_current();
    cuda::Context first = nullptr, second = nullptr;
    driver->CtxGetCurrent(&first);
    { DeviceBuffer buffer(device, 64); }
    driver->CtxGetCurrent(&second);
    CHECK(first != nullptr);
    CHECK(first == second);
    if (list_devices().size() > 2) {
        open_device("1").make_current();
        driver->CtxGetCurrent(&second);
        CHECK(first != second);
        { DeviceBuffer buffer(device, 64); }
        driver->CtxGetCurrent(&first);
        CHECK(first == second);
    }
}

TEST_CASE("Child: fork on the GPU", "[.child]") {
    if (!test::is_child()) return;
    Device& device = open_device("0");
    DeviceBuffer buffer(device, 1024);
    const pid_t child = ::fork();
    if (child == 0) {
        try {
            device.make_current();
        } catch (const DeviceError& error) {
            ::_exit(std::strstr(error.what(), "forked after CUDA was initialised") ? 0 : 2);
        }
        ::_exit(1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
    device.fill(buffer.get(), 1, 1024);
    std::vector<unsigned char> back(1024);
    device.copy_to_host(back.data(), buffer.get(), 1024);
    CHECK(back == std::vector<unsigned char>(1024, 1));
}

TEST_CASE("A child forked from a process that uses the GPU gets a clear error", "[gpu]") {
    const test::Finished finished = test::run_self("Child: fork on the GPU", {});
    INFO(finished.output);
    CHECK(finished.passed());
}
