#include <fmt/format.h>

#include <atomic>
#include <deque>
#include <mutex>

#include "loaded_kernel_parts.h"
#include "turbotune/base/error.h"
#include "turbotune/base/log.h"
#include "turbotune/device/cuda_driver.h"

namespace turbotune {
namespace {

// CUfunction_attribute.
constexpr int kStaticSharedBytes = 1;
constexpr int kLocalBytes = 3;
constexpr int kRegisters = 4;
constexpr int kMaxDynamicSharedBytes = 8;
constexpr int kNonPortableClusterSize = 14;
// CUstreamCaptureMode.
constexpr int kCaptureModeRelaxed = 2;

const cuda::Driver& driver() {
    std::string why;
    const cuda::Driver* loaded = cuda::driver(&why);
    if (loaded == nullptr) throw DeviceError(why);
    return *loaded;
}

// Libraries whose last owner went away. cuLibraryUnload invalidates a capture that any thread has under way, and no
// call tells whether one is. So a library waits until kWaiting younger ones wait as well: a program that captures
// graphs loads a bounded set of kernels and never gets there, the tuner drops thousands and captures nothing. The
// unload itself then runs in relaxed mode, and not while the default stream knows of a capture.
class Retired {
  public:
    void add(cuda::Library library) {
        const std::lock_guard lock(mutex_);
        waiting_.push_back(library);
    }

    void release_some() {
        const std::lock_guard lock(mutex_);
        if (waiting_.size() <= kWaiting || default_stream_is_captured()) return;
        int mode = kCaptureModeRelaxed;
        const bool exchanged = driver().ThreadExchangeStreamCaptureMode(&mode) == 0;
        while (waiting_.size() > kWaiting / 2) {
            driver().LibraryUnload(waiting_.front());
            waiting_.pop_front();
        }
        if (exchanged) driver().ThreadExchangeStreamCaptureMode(&mode);
    }

  private:
    static constexpr std::size_t kWaiting = 64;

    // An error here is "a blocking stream of this context is being captured".
    static bool default_stream_is_captured() {
        int status = 0;
        return driver().StreamIsCapturing(nullptr, &status) != 0 || status != 0;
    }

    std::mutex mutex_;
    std::deque<cuda::Library> waiting_;
};

// Never destroyed: kernels in static storage outlive every order of destruction.
Retired& retired() {
    static auto* list = new Retired;
    return *list;
}

class CudaKernel final : public LoadedKernel {
  public:
    CudaKernel(Device& device, const Image& image) : device_(device), driver_(driver()), metadata_(image.metadata) {
        TURBOTUNE_CUDA(
            driver_.LibraryLoadData(&library_, image.bytes.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
        try {
            resolve();
        } catch (...) {
            retired().add(library_);
            throw;
        }
    }
    ~CudaKernel() override { retired().add(library_); }

    const KernelMetadata& metadata() const override { return metadata_; }
    Device& device() const override { return device_; }

    void allow_shared_memory(std::size_t bytes) override {
        const std::lock_guard lock(mutex_);
        if (bytes <= allowed_bytes_) return;
        const std::int64_t most = device_.info().device_class.shared_per_block - metadata_.static_shared_bytes;
        if (static_cast<std::int64_t>(bytes) > most) {
            throw DeviceError(
                fmt::format("{} needs {} bytes of dynamic shared memory; a block of {} has {} beside {} static ones",
                            metadata_.kernel_name, bytes, device_.info().name, most, metadata_.static_shared_bytes));
        }
        device_.make_current();
        TURBOTUNE_CUDA(driver_.FuncSetAttribute(function_, kMaxDynamicSharedBytes, static_cast<int>(bytes)));
        allowed_bytes_ = bytes;
    }

    int blocks_per_sm(const LaunchShape& shape) override {
        device_.make_current();
        int blocks = 0;
        const int threads = static_cast<int>(shape.block[0] * shape.block[1] * shape.block[2]);
        TURBOTUNE_CUDA(
            driver_.OccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function_, threads, shape.shared_bytes));
        return blocks;
    }

    void launch(const LaunchShape& shape, void** parameters, StreamHandle stream) override {
        cuda::LaunchAttribute attributes[2];
        unsigned count = 0;
        if (shape.cluster[0] * shape.cluster[1] * shape.cluster[2] > 1) {
            attributes[count].id = cuda::kAttributeClusterDimension;
            attributes[count].value.cluster = {shape.cluster[0], shape.cluster[1], shape.cluster[2]};
            ++count;
        }
        if (shape.programmatic_launch) {
            attributes[count].id = cuda::kAttributeProgrammaticStreamSerialization;
            attributes[count].value.integer = 1;
            ++count;
        }
        const cuda::LaunchConfig config{
            shape.grid[0],  shape.grid[1],  shape.grid[2],      shape.block[0],
            shape.block[1], shape.block[2], shape.shared_bytes, static_cast<cuda::Stream>(stream),
            attributes,     count};
        const cuda::Result result = driver_.LaunchKernelEx(&config, function_, parameters, nullptr);
        if (result != 0) explain(result, shape);
    }

  private:
    // The library is only read when the kernel is asked for: a wrong arch fails here, not in LibraryLoadData.
    void resolve() {
        cuda::Kernel kernel = nullptr;
        const char* name = metadata_.kernel_name.c_str();
        if (const cuda::Result result = driver_.LibraryGetKernel(&kernel, library_, name); result != 0)
            cuda::check(result, fmt::format("cuLibraryGetKernel({}) on {}", name, device_.info().name).c_str());
        TURBOTUNE_CUDA(driver_.KernelGetFunction(&function_, kernel));
        TURBOTUNE_CUDA(driver_.FuncGetAttribute(&metadata_.registers, kRegisters, function_));
        TURBOTUNE_CUDA(driver_.FuncGetAttribute(&metadata_.local_bytes, kLocalBytes, function_));
        TURBOTUNE_CUDA(driver_.FuncGetAttribute(&metadata_.static_shared_bytes, kStaticSharedBytes, function_));
        // Clusters of more than 8 blocks ask for it; a device without them refuses, which is no fault here.
        if (device_.info().cc_major >= 9) driver_.FuncSetAttribute(function_, kNonPortableClusterSize, 1);
    }

    [[noreturn]] void explain(cuda::Result result, const LaunchShape& s) const {
        cuda::check(
            result,
            fmt::format(
                "cuLaunchKernelEx({}, grid {}x{}x{}, block {}x{}x{}, cluster {}x{}x{}, {} bytes of shared memory)",
                metadata_.kernel_name, s.grid[0], s.grid[1], s.grid[2], s.block[0], s.block[1], s.block[2],
                s.cluster[0], s.cluster[1], s.cluster[2], s.shared_bytes)
                .c_str());
        throw DeviceError("cuLaunchKernelEx failed", result);  // not reached: check throws
    }

    Device& device_;
    const cuda::Driver& driver_;
    KernelMetadata metadata_;
    cuda::Library library_ = nullptr;
    cuda::Function function_ = nullptr;
    std::mutex mutex_;  // of allow_shared_memory
    std::size_t allowed_bytes_ = 0;
};

}  // namespace

std::shared_ptr<LoadedKernel> load_cuda_kernel(Device& device, const Image& image) {
    device.make_current();
    retired().release_some();
    return std::make_shared<CudaKernel>(device, image);
}

}  // namespace turbotune
