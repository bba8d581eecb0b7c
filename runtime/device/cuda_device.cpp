#include "cuda_device.h"

#include <fmt/format.h>

#include <algorithm>

#include "turbotune/base/error.h"

namespace turbotune {

namespace {

// CUdevice_attribute.
constexpr int kMultiprocessorCount = 16, kBusWidth = 37, kL2CacheSize = 38, kThreadsPerMultiprocessor = 39,
              kComputeMajor = 75, kComputeMinor = 76, kSharedPerMultiprocessor = 81, kRegistersPerMultiprocessor = 82,
              kSharedPerBlockOptIn = 97;
constexpr unsigned kStreamNonBlocking = 1;
constexpr cuda::Result kOutOfMemory = 2;
// The default stream was asked for while a stream that it waits for is being captured.
constexpr cuda::Result kCaptureImplicit = 906;
constexpr int kCaptureModeRelaxed = 2;

const cuda::Driver& usable_driver() {
    std::string why;
    const cuda::Driver* driver = cuda::driver(&why);
    if (!driver) throw DeviceError(why);
    return *driver;
}

// The context for one call, and then the caller's own again, if it had another.
class ContextScope {
  public:
    ContextScope(const cuda::Driver& driver, cuda::Context context) : driver_(driver) {
        cuda::check(driver_.CtxGetCurrent(&previous_), "cuCtxGetCurrent");
        if (previous_ == context) {
            previous_ = nullptr;
        } else {
            cuda::check(driver_.CtxSetCurrent(context), "cuCtxSetCurrent");
        }
    }
    ~ContextScope() {
        if (previous_) driver_.CtxSetCurrent(previous_);
    }
    ContextScope(const ContextScope&) = delete;
    ContextScope& operator=(const ContextScope&) = delete;

  private:
    const cuda::Driver& driver_;
    cuda::Context previous_ = nullptr;
};

// Lets this thread allocate while some stream is being captured, without spoiling the capture.
class RelaxedCapture {
  public:
    explicit RelaxedCapture(const cuda::Driver& driver) : driver_(driver) {
        exchanged_ = driver_.ThreadExchangeStreamCaptureMode(&mode_) == 0;
    }
    ~RelaxedCapture() {
        if (exchanged_) driver_.ThreadExchangeStreamCaptureMode(&mode_);
    }
    RelaxedCapture(const RelaxedCapture&) = delete;
    RelaxedCapture& operator=(const RelaxedCapture&) = delete;

  private:
    const cuda::Driver& driver_;
    int mode_ = kCaptureModeRelaxed;
    bool exchanged_ = false;
};

cuda::Pointer address(DevicePointer pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer);
}

std::string mebibytes(std::size_t bytes) {
    return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

class CudaTimer : public DeviceTimer {
  public:
    CudaTimer(const cuda::Driver& driver, cuda::Context context) : driver_(driver), context_(context) {
        ContextScope scope(driver_, context_);
        cuda::check(driver_.EventCreate(&start_, 0), "cuEventCreate");
        if (const cuda::Result failed = driver_.EventCreate(&stop_, 0)) {
            driver_.EventDestroy(start_);
            cuda::check(failed, "cuEventCreate");
        }
    }
    ~CudaTimer() override {
        try {
            usable_driver();
            ContextScope scope(driver_, context_);
            driver_.EventDestroy(start_);
            driver_.EventDestroy(stop_);
        } catch (const DeviceError&) {  // the driver is gone, and the events with it
        }
    }
    void start(StreamHandle stream) override { record(start_, stream); }
    void stop(StreamHandle stream) override { record(stop_, stream); }
    double elapsed_ms() override {
        ContextScope scope(usable_driver(), context_);
        cuda::check(driver_.EventSynchronize(stop_), "cuEventSynchronize");
        float ms = 0;
        cuda::check(driver_.EventElapsedTime(&ms, start_, stop_), "cuEventElapsedTime");
        return ms;
    }

  private:
    void record(cuda::Event event, StreamHandle stream) {
        ContextScope scope(usable_driver(), context_);
        cuda::check(driver_.EventRecord(event, static_cast<cuda::Stream>(stream)), "cuEventRecord");
    }

    const cuda::Driver& driver_;
    cuda::Context context_;
    cuda::Event start_ = nullptr, stop_ = nullptr;
};

class CudaDevice : public Device {
  public:
    CudaDevice(const cuda::Driver& driver, int ordinal) : info_(cuda_device_info(driver, ordinal)) {
        cuda::DeviceOrdinal device = 0;
        cuda::check(driver.DeviceGet(&device, ordinal), "cuDeviceGet");
        cuda::check(driver.DevicePrimaryCtxRetain(&context_, device), "cuDevicePrimaryCtxRetain");
    }

    const DeviceInfo& info() const override { return info_; }

    void make_current() override {
        // Asked every time: the thread's context is the application's to change.
        const cuda::Driver& driver = usable_driver();
        cuda::Context current = nullptr;
        if (driver.CtxGetCurrent(&current) == 0 && current == context_) return;
        cuda::check(driver.CtxSetCurrent(context_), "cuCtxSetCurrent");
    }

    DevicePointer allocate(std::size_t bytes) override {
        const cuda::Driver& driver = usable_driver();
        ContextScope scope(driver, context_);
        cuda::Pointer pointer = 0;
        cuda::Result failed;
        {
            RelaxedCapture relaxed(driver);
            failed = driver.MemAlloc(&pointer, std::max<std::size_t>(bytes, 1));
        }
        if (failed == kOutOfMemory) throw out_of_memory(driver, bytes);
        cuda::check(failed, "cuMemAlloc");
        return reinterpret_cast<DevicePointer>(static_cast<std::uintptr_t>(pointer));
    }

    void free(DevicePointer pointer) noexcept override {
        if (!pointer) return;
        try {
            const cuda::Driver& driver = usable_driver();
            ContextScope scope(driver, context_);
            RelaxedCapture relaxed(driver);
            driver.MemFree(address(pointer));
        } catch (const DeviceError&) {  // the driver is gone, and the memory with it
        }
    }

    void copy_to_device(DevicePointer to, const void* from, std::size_t bytes) override {
        if (bytes == 0) return;
        const cuda::Driver& driver = usable_driver();
        ContextScope scope(driver, context_);
        cuda::check(driver.MemcpyHtoD(address(to), from, bytes), "cuMemcpyHtoD");
        // From pageable memory it may return once the bytes are staged, before they have arrived, and
        // streams that do not wait for the default stream would not see them.
        cuda::check(driver.StreamSynchronize(nullptr), "cuStreamSynchronize");
    }

    void copy_to_host(void* to, DevicePointer from, std::size_t bytes) override {
        if (bytes == 0) return;
        const cuda::Driver& driver = usable_driver();
        ContextScope scope(driver, context_);
        cuda::check(driver.MemcpyDtoH(to, address(from), bytes), "cuMemcpyDtoH");
    }

    void fill(DevicePointer pointer, unsigned char value, std::size_t bytes) override {
        if (bytes == 0) return;
        const cuda::Driver& driver = usable_driver();
        ContextScope scope(driver, context_);
        cuda::check(driver.MemsetD8(address(pointer), value, bytes), "cuMemsetD8");
        cuda::check(driver.StreamSynchronize(nullptr), "cuStreamSynchronize");
    }

    void copy_async(DevicePointer to, DevicePointer from, std::size_t bytes, StreamHandle stream) override {
        if (bytes == 0) return;
        const cuda::Driver& driver = usable_driver();
        ContextScope scope(driver, context_);
        cuda::check(driver.MemcpyDtoDAsync(address(to), address(from), bytes, static_cast<cuda::Stream>(stream)),
                    "cuMemcpyDtoDAsync");
    }

    std::int64_t free_memory() override {
        const cuda::Driver& driver = usable_driver();
        ContextScope scope(driver, context_);
        std::size_t free_bytes = 0, total_bytes = 0;
        cuda::check(driver.MemGetInfo(&free_bytes, &total_bytes), "cuMemGetInfo");
        return static_cast<std::int64_t>(free_bytes);
    }

    StreamHandle create_stream() override {
        const cuda::Driver& driver = usable_driver();
        ContextScope scope(driver, context_);
        cuda::Stream stream = nullptr;
        cuda::check(driver.StreamCreate(&stream, kStreamNonBlocking), "cuStreamCreate");
        return stream;
    }

    void destroy_stream(StreamHandle stream) noexcept override {
        if (!stream) return;
        try {
            const cuda::Driver& driver = usable_driver();
            ContextScope scope(driver, context_);
            driver.StreamDestroy(static_cast<cuda::Stream>(stream));
        } catch (const DeviceError&) {  // the driver is gone, and the stream with it
        }
    }

    void synchronize(StreamHandle stream) override {
        const cuda::Driver& driver = usable_driver();
        ContextScope scope(driver, context_);
        cuda::check(driver.StreamSynchronize(static_cast<cuda::Stream>(stream)), "cuStreamSynchronize");
    }

    bool is_capturing(StreamHandle stream) override {
        const cuda::Driver& driver = usable_driver();
        ContextScope scope(driver, context_);
        int status = 0;
        const cuda::Result result = driver.StreamIsCapturing(static_cast<cuda::Stream>(stream), &status);
        if (result == kCaptureImplicit) return true;
        cuda::check(result, "cuStreamIsCapturing");
        return status != 0;
    }

    std::unique_ptr<DeviceTimer> create_timer() override {
        return std::make_unique<CudaTimer>(usable_driver(), context_);
    }

  private:
    DeviceError out_of_memory(const cuda::Driver& driver, std::size_t bytes) const {
        std::size_t free_bytes = 0, total_bytes = 0;
        std::string left;
        if (driver.MemGetInfo(&free_bytes, &total_bytes) == 0) {
            left = fmt::format(", {} of {} are free", mebibytes(free_bytes), mebibytes(total_bytes));
        }
        return DeviceError(fmt::format("out of memory on device {} ({}): {} bytes ({}) asked for{}", info_.ordinal,
                                       info_.name, bytes, mebibytes(bytes), left),
                           kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY");
    }

    DeviceInfo info_;
    cuda::Context context_ = nullptr;
};

std::string format_uuid(const unsigned char (&bytes)[16]) {
    std::string text = "GPU-";
    for (int i = 0; i < 16; ++i) {
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += fmt::format("{:02x}", bytes[i]);
    }
    return text;
}

}  // namespace

DeviceInfo cuda_device_info(const cuda::Driver& driver, int ordinal) {
    cuda::DeviceOrdinal device = 0;
    cuda::check(driver.DeviceGet(&device, ordinal), "cuDeviceGet");
    auto attribute = [&](int which) {
        int value = 0;
        cuda::check(driver.DeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute");
        return value;
    };
    DeviceInfo info;
    info.kind = DeviceKind::cuda;
    info.ordinal = ordinal;
    char name[256] = {};
    cuda::check(driver.DeviceGetName(name, sizeof name - 1, device), "cuDeviceGetName");
    info.name = name;
    info.cc_major = attribute(kComputeMajor);
    info.cc_minor = attribute(kComputeMinor);
    info.device_class.arch = fmt::format("sm_{}{}", info.cc_major, info.cc_minor);
    info.device_class.sm_count = attribute(kMultiprocessorCount);
    info.device_class.l2_bytes = attribute(kL2CacheSize);
    info.device_class.shared_per_block = attribute(kSharedPerBlockOptIn);
    info.device_class.bus_width = attribute(kBusWidth);
    info.registers_per_sm = attribute(kRegistersPerMultiprocessor);
    info.shared_per_sm = attribute(kSharedPerMultiprocessor);
    info.max_threads_per_sm = attribute(kThreadsPerMultiprocessor);
    std::size_t total = 0;
    cuda::check(driver.DeviceTotalMem(&total, device), "cuDeviceTotalMem");
    info.total_memory = static_cast<std::int64_t>(total);
    unsigned char uuid[16] = {};
    if (driver.DeviceGetUuid(uuid, device) == 0) info.uuid = format_uuid(uuid);
    driver.DriverGetVersion(&info.driver_version);
    return info;
}

std::unique_ptr<Device> make_cuda_device(const cuda::Driver& driver, int ordinal) {
    return std::make_unique<CudaDevice>(driver, ordinal);
}

}  // namespace turbotune
