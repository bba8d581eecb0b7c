// libcuda.so.1, opened with dlopen on first use. The types are our own declarations of the driver's
// stable C ABI, so that nothing of the toolkit is needed to build.
// https://docs.nvidia.com/cuda/cuda-driver-api/ : function signatures, enumerators, structure layouts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace turbotune::cuda {

using Result = int;
using DeviceOrdinal = int;
using Context = struct ContextTag*;
using Library = struct LibraryTag*;
using Kernel = struct KernelTag*;
using Function = struct FunctionTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using Pointer = unsigned long long;

// CUlaunchAttribute: id, padding, 64-byte value.
struct LaunchAttribute {
    int id;
    char pad[4];
    union {
        char bytes[64];
        struct { unsigned x, y, z; } cluster;
        int integer;
    } value;
};
inline constexpr int kAttributeClusterDimension = 4;
inline constexpr int kAttributeProgrammaticStreamSerialization = 6;

// CUlaunchConfig.
struct LaunchConfig {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    Stream stream;
    LaunchAttribute* attributes;
    unsigned attribute_count;
};

// CUtensorMap: opaque, 128 bytes, 64-byte aligned.
struct alignas(64) TensorMap {
    std::uint64_t opaque[16];
};

// The functions that the runtime calls, one member each, resolved once through cuGetProcAddress-free dlsym of the
// versioned names (cuMemAlloc_v2, ...). Members of newer drivers may be null; the loader says which are required.
struct Driver {
    Result (*Init)(unsigned);
    Result (*DriverGetVersion)(int*);
    Result (*GetErrorName)(Result, const char**);
    Result (*GetErrorString)(Result, const char**);
    Result (*DeviceGet)(DeviceOrdinal*, int);
    Result (*DeviceGetCount)(int*);
    Result (*DeviceGetName)(char*, int, DeviceOrdinal);
    Result (*DeviceGetUuid)(void* sixteen_bytes, DeviceOrdinal);   // cuDeviceGetUuid_v2 when present
    Result (*DeviceTotalMem)(std::size_t*, DeviceOrdinal);
    Result (*DeviceGetAttribute)(int*, int attribute, DeviceOrdinal);
    Result (*DevicePrimaryCtxRetain)(Context*, DeviceOrdinal);
    Result (*CtxSetCurrent)(Context);
    Result (*CtxGetCurrent)(Context*);
    Result (*CtxSynchronize)();
    Result (*MemAlloc)(Pointer*, std::size_t);
    Result (*MemFree)(Pointer);
    Result (*MemGetInfo)(std::size_t* free_bytes, std::size_t* total_bytes);
    Result (*MemcpyHtoD)(Pointer, const void*, std::size_t);
    Result (*MemcpyDtoH)(void*, Pointer, std::size_t);
    Result (*MemcpyHtoDAsync)(Pointer, const void*, std::size_t, Stream);
    Result (*MemcpyDtoDAsync)(Pointer, Pointer, std::size_t, Stream);
    Result (*MemsetD8)(Pointer, unsigned char, std::size_t);
    Result (*StreamCreate)(Stream*, unsigned flags);
    Result (*StreamDestroy)(Stream);
    Result (*StreamSynchronize)(Stream);
    Result (*StreamIsCapturing)(Stream, int* status);
    Result (*ThreadExchangeStreamCaptureMode)(int* mode);
    Result (*EventCreate)(Event*, unsigned flags);
    Result (*EventDestroy)(Event);
    Result (*EventRecord)(Event, Stream);
    Result (*EventSynchronize)(Event);
    Result (*EventElapsedTime)(float* ms, Event start, Event stop);
    Result (*LibraryLoadData)(Library*, const void* code, int* jit_options, void** jit_values, unsigned jit_count,
                              int* options, void** values, unsigned count);
    Result (*LibraryUnload)(Library);
    Result (*LibraryGetKernel)(Kernel*, Library, const char* name);
    Result (*KernelGetFunction)(Function*, Kernel);
    Result (*FuncGetAttribute)(int*, int attribute, Function);
    Result (*FuncSetAttribute)(Function, int attribute, int value);
    Result (*LaunchKernelEx)(const LaunchConfig*, Function, void** parameters, void** extra);
    Result (*OccupancyMaxActiveBlocksPerMultiprocessor)(int*, Function, int block_size, std::size_t shared_bytes);
    Result (*TensorMapEncodeTiled)(TensorMap*, int data_type, unsigned rank, void* address, const std::uint64_t* sizes,
                                   const std::uint64_t* strides, const unsigned* box, const unsigned* element_strides,
                                   int interleave, int swizzle, int l2_promotion, int oob_fill);
    Result (*TensorMapReplaceAddress)(TensorMap*, void* address);
};

// The loaded and initialised driver; nullptr where there is none, with the reason in `why`. Safe from any
// thread; the first call decides. After a fork from a process that had initialised it: throws DeviceError.
const Driver* driver(std::string* why = nullptr);

// Throws DeviceError "CALL failed: CUDA_ERROR_X (text)" unless result is 0.
void check(Result result, const char* call);
#define TURBOTUNE_CUDA(call) ::turbotune::cuda::check((call), #call)

}  // namespace turbotune::cuda
