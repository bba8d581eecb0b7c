// Loading and launching on a CUDA device.
#include <dlfcn.h>

#include "catch.h"
#include "kernel_testing.h"
#include "turbotune/base/error.h"
#include "turbotune/device/cuda_driver.h"
#include "turbotune/device/device.h"
#include "turbotune/kernel/kernel_cache.h"

using namespace turbotune;
using namespace turbotune::testing;

namespace {

std::shared_ptr<LoadedKernel> compile(Device& device, const std::string& source, const std::string& name = "k") {
    device.make_current();
    return load_kernel(device, nvrtc_compiler().compile({source, name, device.info().target(), "test/k.cu"}));
}

std::vector<float> copy_back(Device& device, const DeviceBuffer& buffer) {
    std::vector<float> values(buffer.bytes() / sizeof(float));
    device.copy_to_host(values.data(), buffer.get(), buffer.bytes());
    return values;
}

const char* const kFill = R"(
extern "C" __global__ void k(float* out, float value) { out[blockIdx.x * blockDim.x + threadIdx.x] = value; })";

// The capture calls, which the runtime itself never makes.
using BeginCapture = int (*)(cuda::Stream, int mode);
using EndCapture = int (*)(cuda::Stream, void** graph);

}  // namespace

TEST_CASE("A CUDA kernel from a template computes on the device", "[gpu][cuda]") {
    TempFolder folder;
    ScopedVariable variable("TURBOTUNE_TEMPLATE_DIR", folder / "templates");
    write_templates(folder / "templates");
    Device& device = open_device("0");
    device.make_current();
    KernelOrigin origin{};
    for (const KernelOrigin expected : {KernelOrigin::compiled, KernelOrigin::store}) {
        KernelCache cache(options_at(folder / "store"));
        const auto kernel = cache.get(device, axpy_cuda_spec(device.info().target()), &origin);
        CHECK(origin == expected);
        CHECK(kernel->metadata().registers > 0);
        CHECK(kernel->metadata().local_bytes == 0);
        const std::vector<float> x(1000, 2.0f), y(1000, 1.0f);
        DeviceBuffer dx(device, 4000), dy(device, 4000), out(device, 4000);
        device.copy_to_device(dx.get(), x.data(), 4000);
        device.copy_to_device(dy.get(), y.data(), 4000);
        void *px = dx.get(), *py = dy.get(), *pout = out.get();
        int n = 1000;
        void* parameters[] = {&px, &py, &pout, &n};
        LaunchShape shape;
        shape.grid[0] = 8;
        shape.block[0] = 128;
        CHECK(kernel->blocks_per_sm(shape) >= 4);
        kernel->launch(shape, parameters, nullptr);
        device.synchronize(nullptr);
        CHECK(copy_back(device, out) == std::vector<float>(1000, 7.0f));
    }
}

TEST_CASE("An image of another arch fails when it is loaded", "[gpu][cuda]") {
    Device& device = open_device("0");
    const std::string other = device.info().cc_major == 12 ? "sm_90a" : "sm_120a";
    const Image image = nvrtc_compiler().compile({kFill, "k", other, "test/k.cu"});
    REQUIRE_THROWS_AS(load_kernel(device, image), DeviceError);
    Image torn = nvrtc_compiler().compile({kFill, "k", device.info().target(), "test/k.cu"});
    torn.metadata.kernel_name = "other";
    REQUIRE_THROWS_AS(load_kernel(device, torn), DeviceError);
}

TEST_CASE("Dynamic shared memory beyond the default needs leave, and has an end", "[gpu][cuda]") {
    Device& device = open_device("0");
    const auto kernel = compile(device, R"(
extern "C" __global__ void k(float* out, int floats) {
    extern __shared__ float s[];
    for (int i = threadIdx.x; i < floats; i += blockDim.x) s[i] = float(i);
    __syncthreads();
    if (threadIdx.x == 0) out[0] = s[floats - 1];
})");
    const auto most = static_cast<std::size_t>(device.info().device_class.shared_per_block);
    REQUIRE_THROWS_AS(kernel->allow_shared_memory(most + 16), DeviceError);
    kernel->allow_shared_memory(most);
    kernel->allow_shared_memory(1024);  // no way back
    DeviceBuffer out(device, 4);
    void* pout = out.get();
    int floats = static_cast<int>(most / 4);
    void* parameters[] = {&pout, &floats};
    LaunchShape shape;
    shape.block[0] = 256;
    shape.shared_bytes = static_cast<unsigned>(most);
    CHECK(kernel->blocks_per_sm(shape) == 1);
    kernel->launch(shape, parameters, nullptr);
    device.synchronize(nullptr);
    CHECK(copy_back(device, out)[0] == static_cast<float>(floats - 1));
}

TEST_CASE("Clusters and programmatic launches reach the device", "[gpu][cuda]") {
    Device& device = open_device("0");
    if (device.info().cc_major < 9) return;
    const auto kernel = compile(device, R"(
extern "C" __global__ void k(float* out) {
    unsigned rank, size;
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    if (threadIdx.x == 0) out[blockIdx.x] = out[blockIdx.x] + 100.0f * size + rank;
})");
    DeviceBuffer out(device, 8 * sizeof(float));
    device.fill(out.get(), 0, out.bytes());
    void* pout = out.get();
    void* parameters[] = {&pout};
    LaunchShape shape;
    shape.grid[0] = 8;
    shape.block[0] = 32;
    shape.cluster[0] = 4;
    shape.programmatic_launch = true;
    const StreamHandle stream = device.create_stream();
    for (int i = 0; i < 3; ++i) kernel->launch(shape, parameters, stream);
    device.synchronize(stream);
    device.destroy_stream(stream);
    const std::vector<float> values = copy_back(device, out);
    for (std::size_t i = 0; i < 8; ++i) CHECK(values[i] == 3 * (400.0f + static_cast<float>(i % 4)));
}

TEST_CASE("A launch that the device refuses names the kernel and the shape", "[gpu][cuda]") {
    Device& device = open_device("0");
    const auto kernel = compile(device, kFill);
    DeviceBuffer out(device, 4096);
    void* pout = out.get();
    float value = 1;
    void* parameters[] = {&pout, &value};
    LaunchShape shape;
    shape.block[0] = 2048;
    try {
        kernel->launch(shape, parameters, nullptr);
        FAIL("launched 2048 threads");
    } catch (const DeviceError& error) {
        CHECK(std::string(error.what()).find("block 2048x1x1") != std::string::npos);
        CHECK(error.driver_code() != 0);
    }
    shape.block[0] = 32;
    kernel->launch(shape, parameters, nullptr);
    device.synchronize(nullptr);
}

TEST_CASE("Dropping and loading kernels leaves a capture valid", "[gpu][cuda]") {
    Device& device = open_device("0");
    const auto kernel = compile(device, kFill);
    const Image image = nvrtc_compiler().compile({kFill, "k", device.info().target(), "test/k.cu"});
    void* handle = ::dlopen("libcuda.so.1", RTLD_NOW);
    REQUIRE(handle != nullptr);
    const auto begin = reinterpret_cast<BeginCapture>(::dlsym(handle, "cuStreamBeginCapture_v2"));
    const auto end = reinterpret_cast<EndCapture>(::dlsym(handle, "cuStreamEndCapture"));
    REQUIRE(begin != nullptr);
    DeviceBuffer out(device, 256 * sizeof(float));
    void* pout = out.get();
    float value = 2;
    void* parameters[] = {&pout, &value};
    LaunchShape shape;
    shape.block[0] = 256;
    const auto stream = static_cast<cuda::Stream>(device.create_stream());
    for (const int mode : {0, 1}) {  // global, thread local
        for (int i = 0; i < 80; ++i) load_kernel(device, image);
        REQUIRE(begin(stream, mode) == 0);
        for (int i = 0; i < 200; ++i) load_kernel(device, image);  // past every bound on what waits
        kernel->launch(shape, parameters, stream);
        void* graph = nullptr;
        CHECK(end(stream, &graph) == 0);
        CHECK(graph != nullptr);
    }
    device.destroy_stream(stream);
}
