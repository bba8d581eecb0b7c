#include "cpu_device.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "cpu_info.h"
#include "turbotune/base/error.h"

namespace turbotune {

namespace {

constexpr std::size_t kAlignment = 256;

class CpuTimer : public DeviceTimer {
  public:
    void start(StreamHandle) override { start_ = stop_ = Clock::now(); }
    void stop(StreamHandle) override { stop_ = Clock::now(); }
    double elapsed_ms() override { return std::chrono::duration<double, std::milli>(stop_ - start_).count(); }

  private:
    using Clock = std::chrono::steady_clock;
    Clock::time_point start_, stop_;
};

class CpuDevice : public Device {
  public:
    CpuDevice() : info_(cpu_device_info()) {}

    const DeviceInfo& info() const override { return info_; }
    void make_current() override {}

    DevicePointer allocate(std::size_t bytes) override {
        // An overcommitting kernel promises memory that it does not have: more than there is fails here,
        // and not at the first touch.
        void* pointer = nullptr;
        if (bytes <= static_cast<std::uint64_t>(info_.total_memory) &&
            bytes <= std::numeric_limits<std::size_t>::max() - kAlignment) {
            const std::size_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment;
            pointer = std::aligned_alloc(kAlignment, whole == 0 ? kAlignment : whole);
        }
        if (!pointer) {
            constexpr double kMiB = 1 << 20;
            throw DeviceError(
                fmt::format("out of memory on the CPU: {} bytes ({:.1f} MiB) asked for, {:.1f} of {:.1f} "
                            "MiB are free",
                            bytes, static_cast<double>(bytes) / kMiB, static_cast<double>(free_memory()) / kMiB,
                            static_cast<double>(info_.total_memory) / kMiB));
        }
        return pointer;
    }

    void free(DevicePointer pointer) noexcept override { std::free(pointer); }

    void copy_to_device(DevicePointer to, const void* from, std::size_t bytes) override { copy(to, from, bytes); }
    void copy_to_host(void* to, DevicePointer from, std::size_t bytes) override { copy(to, from, bytes); }
    void copy_async(DevicePointer to, DevicePointer from, std::size_t bytes, StreamHandle) override {
        copy(to, from, bytes);
    }
    void fill(DevicePointer pointer, unsigned char value, std::size_t bytes) override {
        if (bytes != 0) std::memset(pointer, value, bytes);
    }
    std::int64_t free_memory() override { return available_memory(); }

    // One for all: the work is done when the call that issued it returns.
    StreamHandle create_stream() override { return this; }
    void destroy_stream(StreamHandle) noexcept override {}
    void synchronize(StreamHandle) override {}
    bool is_capturing(StreamHandle) override { return false; }
    std::unique_ptr<DeviceTimer> create_timer() override { return std::make_unique<CpuTimer>(); }

  private:
    static void copy(void* to, const void* from, std::size_t bytes) {
        if (bytes != 0) std::memmove(to, from, bytes);
    }

    DeviceInfo info_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() {
    return std::make_unique<CpuDevice>();
}

}  // namespace turbotune
