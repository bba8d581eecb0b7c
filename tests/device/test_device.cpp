#include <chrono>
#include <cstring>
#include <limits>
#include <set>
#include <thread>

#include "../../runtime/device/cpu_info.h"
#include "catch.h"
#include "turbotune/base/error.h"
#include "turbotune/device/cuda_driver.h"
#include "turbotune/device/device.h"
#include "turbotune/device/thread_pool.h"

using namespace turbotune;

namespace {

DeviceInfo gpu(int major, int minor) {
    DeviceInfo info;
    info.kind = DeviceKind::cuda;
    info.cc_major = major;
    info.cc_minor = minor;
    return info;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("A device class is written safely and apart", "[device]") {
    const DeviceClass h200{"sm_90", 132, 60 << 20, 227 << 10, 6016};
    CHECK(h200.to_string() == "sm_90-132sm-60MiB-227KiB-6016bit");
    std::set<std::string> texts{h200.to_string()};
    for (int field = 0; field < 5; ++field) {
        DeviceClass other = h200;
        if (field == 0) other.arch = "sm_80";
        if (field == 1) other.sm_count = 114;
        if (field == 2) other.l2_bytes -= 1024;
        if (field == 3) other.shared_per_block -= 1;
        if (field == 4) other.bus_width = 5120;
        CHECK(other != h200);
        CHECK(texts.insert(other.to_string()).second);
    }
    CHECK(DeviceClass{"sm_90", 1, (60 << 20) + 1024, 1000, 1}.to_string() == "sm_90-1sm-61441KiB-1000B-1bit");
    CHECK(DeviceClass{"x86_64-avx512", 2, 32 << 20, 1 << 20, 0}.to_string() == "x86_64-avx512-2sm-32MiB-1024KiB-0bit");
    CHECK(DeviceClass{"../a b", 1, 0, 0, 0}.to_string() == "___a_b-1sm-0B-0B-0bit");
}

TEST_CASE("Targets and tiers follow the compute capability", "[device]") {
    CHECK(gpu(7, 5).target() == "sm_75");
    CHECK(gpu(8, 0).target() == "sm_80");
    CHECK(gpu(8, 9).target() == "sm_89");
    CHECK(gpu(9, 0).target() == "sm_90a");
    CHECK(gpu(10, 0).target() == "sm_100a");
    CHECK(gpu(10, 3).target() == "sm_103");
    CHECK(gpu(12, 0).target() == "sm_120a");
    CHECK(gpu(6, 1).tiers() == Names{});
    CHECK(gpu(7, 5).tiers().empty());
    CHECK(gpu(8, 0).tiers() == Names{"mma", "simt"});
    CHECK(gpu(8, 6).tiers() == Names{"mma", "simt"});
    CHECK(gpu(9, 0).tiers() == Names{"sm90", "mma", "simt"});
    CHECK(gpu(10, 0).tiers() == Names{"mma", "simt"});
    CHECK(gpu(12, 0).tiers() == Names{"mma", "simt"});
}

TEST_CASE("The CPU's target tells instruction sets apart, whatever the order of the flags", "[device]") {
    const DeviceInfo info = open_device("cpu").info();
    CHECK(info.kind == DeviceKind::cpu);
    CHECK(info.tiers() == Names{"host"});
    CHECK_FALSE(info.name.empty());
    CHECK(info.device_class.arch == cpu_arch());
    CHECK(info.device_class.sm_count == ThreadPool::shared().threads());
    CHECK(info.device_class.l2_bytes >= 64 << 10);
    CHECK(info.device_class.shared_per_block >= 64 << 10);
    CHECK(info.total_memory > 1 << 20);
    CHECK(info.uuid.empty());
    const std::string target = info.target();
    REQUIRE(target.size() == info.device_class.arch.size() + 9);
    CHECK(target.rfind(info.device_class.arch + "-", 0) == 0);
    CHECK(target.find_first_not_of("0123456789abcdef", target.size() - 8) == std::string::npos);
    CHECK(feature_digest("avx2 fma sse") == feature_digest(" sse  avx2\tfma fma "));
    CHECK(feature_digest("avx2 fma") != feature_digest("avx2 fma sse"));
    CHECK(feature_digest("ab c") != feature_digest("a bc"));
}

TEST_CASE("Devices are opened by name, once, and listed with the CPU last", "[device]") {
    CHECK(&open_device("cpu") == &open_device("cpu"));
    std::string why;
    const std::vector<DeviceInfo> devices = list_devices(&why);
    REQUIRE_FALSE(devices.empty());
    CHECK(devices.back().kind == DeviceKind::cpu);
    CHECK(why.empty() == (devices.size() > 1));
    CHECK(&open_device() ==
          &open_device(devices.front().kind == DeviceKind::cpu ? "cpu" : std::to_string(devices.front().ordinal)));
    for (const char* wrong : {"", "gpu", "-1", "1x", " 0", "cuda:0", "99999999999", "CPU"}) {
        INFO(wrong);
        REQUIRE_THROWS_AS(open_device(wrong), InvalidArgument);
    }
    REQUIRE_THROWS_AS(open_device("4096"), DeviceError);
}

TEST_CASE("CPU memory is aligned, copied and filled", "[device]") {
    Device& cpu = open_device("cpu");
    for (std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, std::size_t{255}, std::size_t{257}, std::size_t{100'000}}) {
        DeviceBuffer buffer(cpu, bytes);
        REQUIRE(buffer);
        CHECK(buffer.bytes() == bytes);
        CHECK(reinterpret_cast<std::uintptr_t>(buffer.get()) % 256 == 0);
        cpu.fill(buffer.get(), 0xa5, bytes);
        std::string back(bytes, '\0');
        cpu.copy_to_host(back.data(), buffer.get(), bytes);
        CHECK(back == std::string(bytes, '\xa5'));
    }
    DeviceBuffer a(cpu, 64), b(cpu, 64);
    const std::string text(64, 'q');
    std::string back(64, '\0');
    StreamHandle stream = cpu.create_stream();
    CHECK(stream != nullptr);
    cpu.copy_to_device(a.get(), text.data(), 64);
    cpu.copy_async(b.get(), a.get(), 64, stream);
    cpu.synchronize(stream);
    cpu.copy_to_host(back.data(), b.get(), 64);
    CHECK(back == text);
    CHECK_FALSE(cpu.is_capturing(stream));
    cpu.copy_to_device(nullptr, nullptr, 0);
    cpu.fill(nullptr, 0, 0);
    cpu.free(nullptr);
    cpu.destroy_stream(stream);
    cpu.make_current();
    CHECK(cpu.free_memory() > 0);
    CHECK(cpu.free_memory() <= cpu.info().total_memory);
}

TEST_CASE("More memory than there is is a device error that names the size", "[device]") {
    Device& cpu = open_device("cpu");
    const auto total = static_cast<std::size_t>(cpu.info().total_memory);
    for (std::size_t bytes : {total + 1, std::size_t{1} << 50, std::numeric_limits<std::size_t>::max()}) {
        REQUIRE_THROWS_AS(cpu.allocate(bytes), DeviceError);
        try {
            cpu.allocate(bytes);
        } catch (const DeviceError& error) {
            CHECK(std::string(error.what()).find("out of memory on the CPU: " + std::to_string(bytes)) == 0);
        }
    }
    REQUIRE_THROWS_AS(DeviceBuffer(cpu, total + 1), DeviceError);
}

TEST_CASE("A buffer gives its memory on and back", "[device]") {
    Device& cpu = open_device("cpu");
    DeviceBuffer a(cpu, 10);
    const DevicePointer pointer = a.get();
    DeviceBuffer b(std::move(a));
    CHECK(b.get() == pointer);
    CHECK_FALSE(a);
    CHECK(a.bytes() == 0);
    DeviceBuffer c;
    CHECK_FALSE(c);
    c = std::move(b);
    CHECK(c.get() == pointer);
    CHECK_FALSE(b);
    c = DeviceBuffer(cpu, 20);
    CHECK(c.bytes() == 20);
}

TEST_CASE("The CPU's timer measures what lies between its stamps", "[device]") {
    Device& cpu = open_device("cpu");
    auto timer = cpu.create_timer();
    timer->start(nullptr);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    timer->stop(nullptr);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    const double first = timer->elapsed_ms();
    CHECK(first >= 30);
    CHECK(timer->elapsed_ms() == first);
    timer->start(nullptr);
    timer->stop(nullptr);
    CHECK(timer->elapsed_ms() < 10'000);
    CHECK(timer->elapsed_ms() >= 0);
}

TEST_CASE("A failed driver call is named by code even before a driver is there", "[device]") {
    REQUIRE_NOTHROW(cuda::check(0, "cuInit"));
    try {
        cuda::check(700, "cuStreamSynchronize");
        FAIL("no error");
    } catch (const DeviceError& error) {
        CHECK(error.driver_code() == 700);
        CHECK(error.name() == "CUDA_ERROR_ILLEGAL_ADDRESS");
        CHECK(std::string(error.what()).find("cuStreamSynchronize failed: CUDA_ERROR_ILLEGAL_ADDRESS (") == 0);
    }
    REQUIRE_THROWS_AS(TURBOTUNE_CUDA(12345), DeviceError);
}
