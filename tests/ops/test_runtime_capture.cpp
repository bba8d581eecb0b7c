// What the runtime does while a stream is being captured.
#include <dlfcn.h>

#include <numeric>

#include "catch.h"
#include "fake_operation.h"
#include "profile/fixtures.h"
#include "turbotune/device/cuda_driver.h"

using namespace turbotune;
using namespace turbotune::test;

namespace {

using Graph = struct GraphTag*;

// The capture functions, which the library itself has no use for.
template <typename Function>
Function driver_function(const char* name) {
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW);
    REQUIRE(library);
    auto function = reinterpret_cast<Function>(::dlsym(library, name));
    REQUIRE(function);
    return function;
}

class Capture {
  public:
    Capture(Device& device, int mode) : device_(device) {
        device.make_current();
        stream_ = static_cast<cuda::Stream>(device.create_stream());
        TURBOTUNE_CUDA(driver_function<cuda::Result (*)(cuda::Stream, int)>("cuStreamBeginCapture_v2")(stream_, mode));
    }
    // 0 when the capture is still valid.
    cuda::Result end() {
        Graph graph = nullptr;
        const cuda::Result result =
            driver_function<cuda::Result (*)(cuda::Stream, Graph*)>("cuStreamEndCapture")(stream_, &graph);
        if (graph) driver_function<cuda::Result (*)(Graph)>("cuGraphDestroy")(graph);
        device_.destroy_stream(stream_);
        return result;
    }
    StreamHandle stream() const { return stream_; }

  private:
    Device& device_;
    cuda::Stream stream_ = nullptr;
};

RuntimeOptions options_for(Policy policy) {
    RuntimeOptions options;
    options.device = "0";
    options.policy = policy;
    options.discover_profiles = false;
    options.store.memory_only = true;
    return options;
}

}  // namespace

TEST_CASE("Autotune does not tune during a capture: heuristic, one warning, capture valid", "[runtime][gpu]") {
    Runtime runtime(options_for(Policy::autotune));
    FakeOperation operation;
    operation.blocks = {8, 16};
    ScopedLog log;
    for (const int mode : {0, 1, 2}) {  // global, thread local, relaxed
        Capture capture(runtime.device(), mode);
        for (const std::int64_t size : {64, 128}) {
            const Selection selection = runtime.select(operation, FakeOperation::workload_for(size),
                                                       FakeOperation::problem_of(size), capture.stream());
            CHECK(selection.origin == "heuristic");
        }
        CHECK(capture.end() == 0);
    }
    REQUIRE(operation.timing_cases == 0);
    REQUIRE(log.warnings().size() == 1);
    REQUIRE_THAT(log.warnings()[0], ContainsSubstring("is being captured"));
}

TEST_CASE("Constants are made during a capture and leave it valid", "[runtime][gpu]") {
    Device& device = open_device("0");
    std::vector<int> table(5000);
    for (const int mode : {0, 1, 2}) {
        std::iota(table.begin(), table.end(), mode);
        Capture capture(device, mode);
        DevicePointer pointer = nullptr;
        std::vector<int> back(table.size());
        cuda::Result ended = 1;
        {
            Runtime runtime(options_for(Policy::heuristic));
            pointer = runtime.constant(table.data(), table.size() * sizeof(int));
            CHECK(runtime.constant(table.data(), table.size() * sizeof(int)) == pointer);
            ended = capture.end();
            device.copy_to_host(back.data(), pointer, back.size() * sizeof(int));
        }
        CHECK(ended == 0);
        CHECK(back == table);
    }
}

TEST_CASE("A runtime that ends during a capture leaves it valid", "[runtime][gpu]") {
    Device& device = open_device("0");
    auto runtime = std::make_unique<Runtime>(options_for(Policy::heuristic));
    const int table[] = {1, 2, 3};
    runtime->constant(table, sizeof table);
    Capture capture(device, 0);
    runtime.reset();
    REQUIRE(capture.end() == 0);
}
