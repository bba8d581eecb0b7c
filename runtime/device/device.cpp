#include "turbotune/device/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <mutex>
#include <utility>

#include "cpu_device.h"
#include "cpu_info.h"
#include "cuda_device.h"
#include "turbotune/base/error.h"

namespace turbotune {

namespace {

// The opened devices. Never destroyed, so that memory can still be given back while the process exits.
struct Registry {
    std::mutex mutex;
    std::unique_ptr<Device> cpu;
    std::map<int, std::unique_ptr<Device>> gpus;

    static Registry& get() {
        static Registry* registry = new Registry;
        return *registry;
    }
};

Device& open_cpu() {
    Registry& registry = Registry::get();
    std::lock_guard<std::mutex> hold(registry.mutex);
    if (!registry.cpu) registry.cpu = make_cpu_device();
    return *registry.cpu;
}

std::string too_old(const DeviceInfo& info) {
    return fmt::format("device {} ({}) has compute capability {}.{}, {}.0 is needed", info.ordinal, info.name,
                       info.cc_major, info.cc_minor, kLeastComputeMajor);
}

Device& open_gpu(int ordinal) {
    std::string why;
    const cuda::Driver* driver = cuda::driver(&why);
    if (!driver) throw DeviceError(fmt::format("device {} cannot be used: {}", ordinal, why));
    int count = 0;
    cuda::check(driver->DeviceGetCount(&count), "cuDeviceGetCount");
    if (ordinal >= count) {
        throw DeviceError(fmt::format("there is no device {}: {} CUDA device{} visible", ordinal, count,
                                      count == 1 ? " is" : "s are"));
    }
    const DeviceInfo info = cuda_device_info(*driver, ordinal);
    if (info.cc_major < kLeastComputeMajor) throw DeviceError(too_old(info));
    Registry& registry = Registry::get();
    std::lock_guard<std::mutex> hold(registry.mutex);
    std::unique_ptr<Device>& device = registry.gpus[ordinal];
    if (!device) device = make_cuda_device(*driver, ordinal);
    return *device;
}

// The GPUs that a tier serves.
std::vector<DeviceInfo> list_gpus(std::string& why) {
    std::vector<DeviceInfo> infos;
    const cuda::Driver* driver = cuda::driver(&why);
    if (!driver) return infos;
    int count = 0;
    cuda::check(driver->DeviceGetCount(&count), "cuDeviceGetCount");
    if (count == 0) why = "the driver sees no device";
    for (int ordinal = 0; ordinal < count; ++ordinal) {
        DeviceInfo info = cuda_device_info(*driver, ordinal);
        if (info.cc_major >= kLeastComputeMajor) {
            infos.push_back(std::move(info));
        } else {
            why = too_old(info);
        }
    }
    return infos;
}

}  // namespace

Device& open_device(const std::string& name) {
    if (name == "cpu") return open_cpu();
    if (name == "auto") {
        std::string why;
        const std::vector<DeviceInfo> gpus = list_gpus(why);
        return gpus.empty() ? open_cpu() : open_gpu(gpus.front().ordinal);
    }
    int ordinal = -1;
    const char* end = name.data() + name.size();
    const auto [rest, failed] = std::from_chars(name.data(), end, ordinal);
    if (failed != std::errc() || rest != end || ordinal < 0) {
        throw InvalidArgument("device", "expected auto, cpu or the ordinal of a GPU, got \"" + name + "\"");
    }
    return open_gpu(ordinal);
}

std::vector<DeviceInfo> list_devices(std::string* why_no_cuda) {
    std::vector<DeviceInfo> infos;
    std::string why;
    try {
        infos = list_gpus(why);
    } catch (const DeviceError& problem) {
        infos.clear();
        why = problem.what();
    }
    if (why_no_cuda && infos.empty()) *why_no_cuda = why;
    infos.push_back(cpu_device_info());
    return infos;
}

DeviceBuffer::DeviceBuffer(Device& device, std::size_t bytes)
    : device_(&device), pointer_(device.allocate(bytes)), bytes_(bytes) {}

DeviceBuffer::~DeviceBuffer() {
    if (pointer_) device_->free(pointer_);
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      pointer_(std::exchange(other.pointer_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(pointer_, other.pointer_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

}  // namespace turbotune
