// A driver library without a GPU: memory is the host's, streams run at once. Tests compile it as
// libcuda.so.1 and set FAKE_* variables to make it fail in the ways that a real one does.
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace {

using Ordinal = int;
constexpr std::size_t kTotal = std::size_t{1} << 30;

int setting(const char* name, int otherwise) {
    const char* text = std::getenv(name);
    return text ? std::atoi(text) : otherwise;
}

std::mutex mutex;
std::map<unsigned long long, std::size_t> blocks;
std::size_t used = 0;
thread_local void* current = nullptr;
thread_local int capture_mode = 0;
char contexts[8];

struct Event {
    std::chrono::steady_clock::time_point at;
    bool recorded = false;
};

bool has_context() {
    return current != nullptr;
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
    return setting("FAKE_INIT", 0);
}
int cuDriverGetVersion(int* version) {
    *version = setting("FAKE_VERSION", 13000);
    return 0;
}
int cuGetErrorName(int code, const char** text) {
    *text = code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : code == 901 ? "CUDA_ERROR_FAKE" : nullptr;
    return *text ? 0 : 1;
}
int cuGetErrorString(int code, const char** text) {
    *text = code == 901 ? "made up" : nullptr;
    return *text ? 0 : 1;
}
int cuDeviceGetCount(int* count) {
    *count = setting("FAKE_DEVICES", 2);
    return 0;
}
int cuDeviceGet(Ordinal* device, int ordinal) {
    // Handles need not be ordinals.
    *device = 100 + ordinal;
    return ordinal < setting("FAKE_DEVICES", 2) ? 0 : 101;
}
int cuDeviceGetName(char* name, int size, Ordinal) {
    std::strncpy(name, "Fake H200", static_cast<std::size_t>(size));
    return 0;
}
int cuDeviceGetUuid_v2(void* bytes, Ordinal device) {
    for (int i = 0; i < 16; ++i)
        static_cast<unsigned char*>(bytes)[i] = static_cast<unsigned char>(16 * i + device - 100);
    return 0;
}
int cuDeviceTotalMem_v2(std::size_t* bytes, Ordinal) {
    *bytes = kTotal;
    return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, Ordinal device) {
    // The second device may be of another compute capability.
    const int capability = device == 100 ? setting("FAKE_CC", 90) : setting("FAKE_CC_1", 80);
    switch (attribute) {
        case 16:
            *value = 132;
            return 0;
        case 37:
            *value = 6016;
            return 0;
        case 38:
            *value = 60 << 20;
            return 0;
        case 39:
            *value = 2048;
            return 0;
        case 75:
            *value = capability / 10;
            return 0;
        case 76:
            *value = capability % 10;
            return 0;
        case 81:
            *value = 228 << 10;
            return 0;
        case 82:
            *value = 65536;
            return 0;
        case 97:
            *value = 227 << 10;
            return 0;
        default:
            return 1;
    }
}
int cuDevicePrimaryCtxRetain(void** context, Ordinal device) {
    *context = &contexts[device - 100];
    return setting("FAKE_RETAIN", 0);
}
int cuCtxSetCurrent(void* context) {
    current = context;
    return 0;
}
int cuCtxGetCurrent(void** context) {
    *context = current;
    return 0;
}
int cuCtxSynchronize() {
    return 0;
}
int cuMemAlloc_v2(unsigned long long* pointer, std::size_t bytes) {
    if (!has_context()) return 201;
    if (bytes == 0) return 1;
    std::lock_guard<std::mutex> hold(mutex);
    if (bytes > kTotal - used) return 2;
    void* block = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
    *pointer = reinterpret_cast<unsigned long long>(block);
    blocks[*pointer] = bytes;
    used += bytes;
    return 0;
}
int cuMemFree_v2(unsigned long long pointer) {
    if (!has_context()) return 201;
    std::lock_guard<std::mutex> hold(mutex);
    const auto found = blocks.find(pointer);
    if (found == blocks.end()) return 1;
    used -= found->second;
    std::free(reinterpret_cast<void*>(pointer));
    blocks.erase(found);
    return 0;
}
int cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) {
    std::lock_guard<std::mutex> hold(mutex);
    *free_bytes = kTotal - used;
    *total_bytes = kTotal;
    return has_context() ? 0 : 201;
}
int cuMemcpyHtoD_v2(unsigned long long to, const void* from, std::size_t bytes) {
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return has_context() ? 0 : 201;
}
int cuMemcpyDtoH_v2(void* to, unsigned long long from, std::size_t bytes) {
    std::memcpy(to, reinterpret_cast<void*>(from), bytes);
    return has_context() ? 0 : 201;
}
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, std::size_t bytes, void*) {
    return cuMemcpyHtoD_v2(to, from, bytes);
}
int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, std::size_t bytes, void*) {
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
    return has_context() ? 0 : 201;
}
int cuMemsetD8_v2(unsigned long long to, unsigned char value, std::size_t bytes) {
    std::memset(reinterpret_cast<void*>(to), value, bytes);
    return has_context() ? 0 : 201;
}
int cuStreamCreate(void** stream, unsigned flags) {
    *stream = new unsigned(flags);
    return has_context() ? 0 : 201;
}
int cuStreamDestroy_v2(void* stream) {
    delete static_cast<unsigned*>(stream);
    return 0;
}
int cuStreamSynchronize(void*) {
    return has_context() ? setting("FAKE_FAULT", 0) : 201;
}
int cuStreamIsCapturing(void*, int* status) {
    const int wanted = setting("FAKE_CAPTURE", 0);
    *status = wanted == 906 ? 0 : wanted;
    return wanted == 906 ? 906 : 0;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
    const int old = capture_mode;
    capture_mode = *mode;
    *mode = old;
    return 0;
}
int cuEventCreate(void** event, unsigned) {
    *event = new Event;
    return has_context() ? 0 : 201;
}
int cuEventDestroy_v2(void* event) {
    delete static_cast<Event*>(event);
    return 0;
}
int cuEventRecord(void* event, void*) {
    *static_cast<Event*>(event) = {std::chrono::steady_clock::now(), true};
    return has_context() ? 0 : 201;
}
int cuEventSynchronize(void*) {
    return setting("FAKE_FAULT", 0);
}
int cuEventElapsedTime(float* ms, void* start, void* stop) {
    const Event &from = *static_cast<Event*>(start), &to = *static_cast<Event*>(stop);
    if (!from.recorded || !to.recorded) return 400;
    *ms = std::chrono::duration<float, std::milli>(to.at - from.at).count();
    return 0;
}
// With FAKE_LOADS=1 every image loads, and nothing is ever launched.
int cuLibraryLoadData(void** library, const void*, void*, void*, unsigned, void*, void*, unsigned) {
    *library = contexts;
    return setting("FAKE_LOADS", 0) ? 0 : 801;
}
int cuLibraryUnload(void*) {
    return setting("FAKE_LOADS", 0) ? 0 : 801;
}
int cuLibraryGetKernel(void** kernel, void* library, const char*) {
    *kernel = library;
    return setting("FAKE_LOADS", 0) ? 0 : 801;
}
int cuKernelGetFunction(void** function, void* kernel) {
    *function = kernel;
    return setting("FAKE_LOADS", 0) ? 0 : 801;
}
int cuFuncGetAttribute(int* value, int, void*) {
    *value = 0;
    return setting("FAKE_LOADS", 0) ? 0 : 801;
}
int cuFuncSetAttribute(void*, int, int) {
    return setting("FAKE_LOADS", 0) ? 0 : 801;
}
#ifndef FAKE_OLD_DRIVER
int cuLaunchKernelEx() {
    return 801;
}
#endif
int cuOccupancyMaxActiveBlocksPerMultiprocessor() {
    return 801;
}
int cuTensorMapEncodeTiled() {
    return setting("FAKE_LOADS", 0) ? 0 : 801;
}
int cuTensorMapReplaceAddress() {
    return 801;
}
}
