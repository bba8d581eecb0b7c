#include "turbotune/device/cuda_driver.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <initializer_list>

#include "turbotune/base/error.h"

namespace turbotune::cuda {

namespace {

constexpr const char* kLibrary = "libcuda.so.1";

struct KnownError {
    Result code;
    const char* name;
    const char* text;
};
// For the time before the driver is there to name them, and for what a user can do about a failed start.
constexpr KnownError kKnownErrors[] = {
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "the library is the toolkit's stub"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "the driver library and the kernel module differ in version"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const KnownError* find_known(Result code) {
    for (const KnownError& known : kKnownErrors) {
        if (known.code == code) return &known;
    }
    return nullptr;
}

// What the user can do about a failed cuInit; empty where nothing is known.
std::string advice(Result code) {
    switch (code) {
        case 3:
            return "; was this process forked from one that had initialised CUDA?";
        case 34:
            return "; remove the toolkit's stubs folder from LD_LIBRARY_PATH";
        case 100:
            return std::getenv("CUDA_VISIBLE_DEVICES") ? "; CUDA_VISIBLE_DEVICES is set" : "";
        case 803:
            return "; reboot, or load the kernel module of the installed driver";
        case 999:
            return "; the kernel module may not be loaded";
        default:
            return "";
    }
}

template <typename Function>
bool resolve(void* library, Function& member, std::initializer_list<const char*> names) {
    for (const char* name : names) {
        member = reinterpret_cast<Function>(::dlsym(library, name));
        if (member) return true;
    }
    return false;
}

// Fills every member; returns the first required function that the library lacks, or nullptr.
const char* resolve_all(void* library, Driver& d) {
    const char* missing = nullptr;
    auto need = [&](auto& member, std::initializer_list<const char*> names) {
        if (!resolve(library, member, names) && !missing) missing = *names.begin();
    };
    need(d.Init, {"cuInit"});
    need(d.DriverGetVersion, {"cuDriverGetVersion"});
    need(d.GetErrorName, {"cuGetErrorName"});
    need(d.GetErrorString, {"cuGetErrorString"});
    need(d.DeviceGet, {"cuDeviceGet"});
    need(d.DeviceGetCount, {"cuDeviceGetCount"});
    need(d.DeviceGetName, {"cuDeviceGetName"});
    // The second version tells the instances of a partitioned GPU apart.
    need(d.DeviceGetUuid, {"cuDeviceGetUuid_v2", "cuDeviceGetUuid"});
    need(d.DeviceTotalMem, {"cuDeviceTotalMem_v2"});
    need(d.DeviceGetAttribute, {"cuDeviceGetAttribute"});
    need(d.DevicePrimaryCtxRetain, {"cuDevicePrimaryCtxRetain"});
    need(d.CtxSetCurrent, {"cuCtxSetCurrent"});
    need(d.CtxGetCurrent, {"cuCtxGetCurrent"});
    need(d.CtxSynchronize, {"cuCtxSynchronize"});
    need(d.MemAlloc, {"cuMemAlloc_v2"});
    need(d.MemFree, {"cuMemFree_v2"});
    need(d.MemGetInfo, {"cuMemGetInfo_v2"});
    need(d.MemcpyHtoD, {"cuMemcpyHtoD_v2"});
    need(d.MemcpyDtoH, {"cuMemcpyDtoH_v2"});
    need(d.MemcpyHtoDAsync, {"cuMemcpyHtoDAsync_v2"});
    need(d.MemcpyDtoDAsync, {"cuMemcpyDtoDAsync_v2"});
    need(d.MemsetD8, {"cuMemsetD8_v2"});
    need(d.StreamCreate, {"cuStreamCreate"});
    need(d.StreamDestroy, {"cuStreamDestroy_v2"});
    need(d.StreamSynchronize, {"cuStreamSynchronize"});
    need(d.StreamIsCapturing, {"cuStreamIsCapturing"});
    need(d.ThreadExchangeStreamCaptureMode, {"cuThreadExchangeStreamCaptureMode"});
    need(d.EventCreate, {"cuEventCreate"});
    need(d.EventDestroy, {"cuEventDestroy_v2"});
    need(d.EventRecord, {"cuEventRecord"});
    need(d.EventSynchronize, {"cuEventSynchronize"});
    need(d.EventElapsedTime, {"cuEventElapsedTime", "cuEventElapsedTime_v2"});
    need(d.LibraryLoadData, {"cuLibraryLoadData"});
    need(d.LibraryUnload, {"cuLibraryUnload"});
    need(d.LibraryGetKernel, {"cuLibraryGetKernel"});
    need(d.KernelGetFunction, {"cuKernelGetFunction"});
    need(d.FuncGetAttribute, {"cuFuncGetAttribute"});
    need(d.FuncSetAttribute, {"cuFuncSetAttribute"});
    need(d.LaunchKernelEx, {"cuLaunchKernelEx"});
    need(d.OccupancyMaxActiveBlocksPerMultiprocessor, {"cuOccupancyMaxActiveBlocksPerMultiprocessor"});
    need(d.TensorMapEncodeTiled, {"cuTensorMapEncodeTiled"});
    need(d.TensorMapReplaceAddress, {"cuTensorMapReplaceAddress"});
    return missing;
}

std::string version_text(const Driver& d) {
    int version = 0;
    if (!d.DriverGetVersion || d.DriverGetVersion(&version) != 0) return "unknown";
    return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::atomic<bool> forked{false};

struct Loaded {
    Driver functions{};
    bool usable = false;
    std::string why;

    Loaded() {
        void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            const char* problem = ::dlerror();
            why = fmt::format("no NVIDIA driver: {}", problem ? problem : kLibrary);
            return;
        }
        // The library stays open for good: it starts threads of its own.
        if (const char* missing = resolve_all(library, functions)) {
            why = fmt::format("{} lacks {}: the driver ({}) is too old, 12.0 or newer is needed", kLibrary, missing,
                              version_text(functions));
            return;
        }
        if (const Result result = functions.Init(0)) {
            why = fmt::format("cuInit failed: {}{}", describe(result), advice(result));
            return;
        }
        ::pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
        usable = true;
    }

    // "CUDA_ERROR_X"; from the driver, else from the table, else by number.
    std::string name(Result code) const {
        const char* text = nullptr;
        if (functions.GetErrorName && functions.GetErrorName(code, &text) == 0 && text) return text;
        const KnownError* known = find_known(code);
        return known ? known->name : fmt::format("CUDA error {}", code);
    }

    // "CUDA_ERROR_X (text)"
    std::string describe(Result code) const {
        const char* text = nullptr;
        const bool told = functions.GetErrorString && functions.GetErrorString(code, &text) == 0 && text;
        const KnownError* known = find_known(code);
        if (!told && !known) return name(code);
        return fmt::format("{} ({})", name(code), told ? text : known->text);
    }
};

// Never destroyed: device memory may be given back by destructors of other static objects.
const Loaded& loaded() {
    static const Loaded* instance = new Loaded;
    return *instance;
}

}  // namespace

const Driver* driver(std::string* why) {
    const Loaded& instance = loaded();
    if (!instance.usable) {
        if (why) *why = instance.why;
        return nullptr;
    }
    if (forked.load(std::memory_order_relaxed)) {
        throw DeviceError(
            "this process was forked after CUDA was initialised, and the driver does not work in it; start workers "
            "with exec or spawn, or fork before the first device is opened");
    }
    return &instance.functions;
}

void check(Result result, const char* call) {
    if (result == 0) return;
    const Loaded& instance = loaded();
    throw DeviceError(fmt::format("{} failed: {}", call, instance.describe(result)), result, instance.name(result));
}

}  // namespace turbotune::cuda
