// A device that kernels run on: a CUDA GPU through libcuda, or the CPU through a thread pool.
// Both are seen through one interface, so that the tuner and the operations know no difference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "turbotune/device/device_info.h"

namespace turbotune {

// A CUstream (nullptr: the default stream). The CPU device runs everything in order, at once, and
// ignores it.
using StreamHandle = void*;
// Memory of the device: a CUdeviceptr on a GPU, an ordinary pointer on the CPU.
using DevicePointer = void*;

// A pair of time stamps around work on a stream.
class DeviceTimer {
  public:
    virtual ~DeviceTimer() = default;
    virtual void start(StreamHandle stream) = 0;
    virtual void stop(StreamHandle stream) = 0;
    // Waits for stop; milliseconds between the two.
    virtual double elapsed_ms() = 0;
};

class Device {
  public:
    virtual ~Device() = default;
    virtual const DeviceInfo& info() const = 0;

    // Makes the device's context current for this thread (a no-op on the CPU). Throws DeviceError in
    // a process that was forked after the driver was initialised.
    virtual void make_current() = 0;

    // 256-byte aligned. Throws DeviceError (out of memory names the size asked for).
    virtual DevicePointer allocate(std::size_t bytes) = 0;
    virtual void free(DevicePointer pointer) noexcept = 0;
    // Synchronous copies and fill.
    virtual void copy_to_device(DevicePointer to, const void* from, std::size_t bytes) = 0;
    virtual void copy_to_host(void* to, DevicePointer from, std::size_t bytes) = 0;
    virtual void fill(DevicePointer pointer, unsigned char value, std::size_t bytes) = 0;
    // In stream order, device to device.
    virtual void copy_async(DevicePointer to, DevicePointer from, std::size_t bytes, StreamHandle stream) = 0;
    virtual std::int64_t free_memory() = 0;   // bytes

    virtual StreamHandle create_stream() = 0;
    virtual void destroy_stream(StreamHandle stream) noexcept = 0;
    // Throws DeviceError with the driver's name of the fault when work on the stream failed.
    virtual void synchronize(StreamHandle stream) = 0;
    virtual bool is_capturing(StreamHandle stream) = 0;
    virtual std::unique_ptr<DeviceTimer> create_timer() = 0;
};

// A device by name: "auto" (first CUDA device, else the CPU), "cpu", or an ordinal "0", "1", ...
// Devices are process-wide and live for ever: the same reference for the same device. Throws
// DeviceError when the one named cannot be used, with the reason (no libcuda.so.1, no such ordinal, ...).
Device& open_device(const std::string& name = "auto");

// Every device that can be opened, GPUs first; the CPU is always last. `why_no_cuda` receives the
// reason when no GPU is listed.
std::vector<DeviceInfo> list_devices(std::string* why_no_cuda = nullptr);

// RAII for device memory.
class DeviceBuffer {
  public:
    DeviceBuffer() = default;
    DeviceBuffer(Device& device, std::size_t bytes);
    ~DeviceBuffer();
    DeviceBuffer(DeviceBuffer&& other) noexcept;
    DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
    DevicePointer get() const { return pointer_; }
    std::size_t bytes() const { return bytes_; }
    explicit operator bool() const { return pointer_ != nullptr; }

  private:
    Device* device_ = nullptr;
    DevicePointer pointer_ = nullptr;
    std::size_t bytes_ = 0;
};

}  // namespace turbotune
