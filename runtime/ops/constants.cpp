#include "constants.h"

#include <fmt/format.h>

#include "turbotune/base/error.h"
#include "turbotune/device/cuda_driver.h"

namespace turbotune {

namespace {

constexpr int kCaptureModeRelaxed = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED

// The device's context and the relaxed capture mode, for this thread and scope: under the thread's usual mode,
// copying and waiting would invalidate a capture that is going on.
class UploadScope {
  public:
    UploadScope(const cuda::Driver& driver, Device& device) : driver_(driver) {
        TURBOTUNE_CUDA(driver_.CtxGetCurrent(&previous_));
        device.make_current();
        relaxed_ = driver_.ThreadExchangeStreamCaptureMode(&mode_) == 0;
    }
    ~UploadScope() {
        if (relaxed_) driver_.ThreadExchangeStreamCaptureMode(&mode_);
        if (previous_) driver_.CtxSetCurrent(previous_);
    }
    UploadScope(const UploadScope&) = delete;
    UploadScope& operator=(const UploadScope&) = delete;

  private:
    const cuda::Driver& driver_;
    cuda::Context previous_ = nullptr;
    int mode_ = kCaptureModeRelaxed;
    bool relaxed_ = false;
};

// Not through the default stream, which captured streams may depend on.
void upload(const cuda::Driver& driver, Device& device, DevicePointer to, const void* from, std::size_t bytes) {
    const UploadScope scope(driver, device);
    const StreamHandle stream = device.create_stream();
    try {
        TURBOTUNE_CUDA(driver.MemcpyHtoDAsync(reinterpret_cast<std::uintptr_t>(to), from, bytes,
                                              static_cast<cuda::Stream>(stream)));
        TURBOTUNE_CUDA(driver.StreamSynchronize(static_cast<cuda::Stream>(stream)));
    } catch (...) {
        device.destroy_stream(stream);
        throw;
    }
    device.destroy_stream(stream);
}

}  // namespace

DevicePointer ConstantCache::get(Device& device, const void* data, std::size_t bytes) {
    if (!data || bytes == 0) throw InvalidArgument("constant", fmt::format("{} bytes at {}", bytes, data));
    std::string content(static_cast<const char*>(data), bytes);
    const std::lock_guard lock(mutex_);
    if (const auto found = buffers_.find(content); found != buffers_.end()) return found->second.get();

    DeviceBuffer buffer(device, bytes);  // allocates and frees in relaxed mode by itself
    if (device.info().kind == DeviceKind::cuda)
        upload(*cuda::driver(), device, buffer.get(), data, bytes);
    else
        device.copy_to_device(buffer.get(), data, bytes);
    return buffers_.emplace(std::move(content), std::move(buffer)).first->second.get();
}

}  // namespace turbotune
