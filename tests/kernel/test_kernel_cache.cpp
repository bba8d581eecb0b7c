#include <thread>

#include "catch.h"
#include "kernel_testing.h"
#include "turbotune/base/error.h"
#include "turbotune/device/device.h"
#include "turbotune/kernel/kernel_cache.h"

using namespace turbotune;
using namespace turbotune::testing;

namespace {

struct Setup {
    TempFolder folder;
    ScopedVariable variable{"TURBOTUNE_TEMPLATE_DIR", folder / "templates"};
    ScopedVariable temp{"TMPDIR", folder.path()};  // sources that fail are kept there
    Device& device = open_device("cpu");
    std::string target = device.info().target();
    Setup() { write_templates(folder / "templates"); }
};

float run_axpy(LoadedKernel& kernel) {
    std::vector<float> x(64, 2.0f), y(64, 1.0f), out(64, -1.0f);
    const float *px = x.data(), *py = y.data();
    float* pout = out.data();
    int n = 64;
    void* parameters[] = {&px, &py, &pout, &n};
    kernel.launch({}, parameters, nullptr);
    return out[63];
}

}  // namespace

TEST_CASE("A kernel comes from the compiler, then memory, then another cache's store", "[cache]") {
    Setup setup;
    KernelOrigin origin{};
    KernelCache cache(options_at(setup.folder / "store"));
    const auto first = cache.get(setup.device, axpy_host_spec(setup.target), &origin);
    CHECK(origin == KernelOrigin::compiled);
    const auto second = cache.get(setup.device, axpy_host_spec(setup.target), &origin);
    CHECK(origin == KernelOrigin::memory);
    CHECK(first == second);
    KernelCache next(options_at(setup.folder / "store"));
    const auto third = next.get(setup.device, axpy_host_spec(setup.target), &origin);
    CHECK(origin == KernelOrigin::store);
    CHECK(run_axpy(*first) == 7.0f);
    CHECK(run_axpy(*third) == 7.0f);
    CHECK(cache.statistics().compiles == 1);
    CHECK(cache.statistics().memory_hits == 1);
    CHECK(cache.statistics().compile_ms > 0);
    CHECK(next.statistics().store_hits == 1);
    CHECK(cache.store().statistics().misses == 1);  // the second look under the lock is no miss of its own
    CHECK(third->metadata().compile_ms > 0);
}

TEST_CASE("Specs that differ in one parameter are other kernels", "[cache]") {
    Setup setup;
    KernelCache cache(options_at(setup.folder / "store"));
    CHECK(run_axpy(*cache.get(setup.device, axpy_host_spec(setup.target, 3))) == 7.0f);
    CHECK(run_axpy(*cache.get(setup.device, axpy_host_spec(setup.target, 4))) == 9.0f);
    CHECK(cache.statistics().compiles == 2);
}

TEST_CASE("A prepared kernel is found in the store", "[cache]") {
    Setup setup;
    KernelCache cache(options_at(setup.folder / "store"));
    KernelOrigin origin{};
    CHECK(cache.prepare(axpy_host_spec(setup.target), &origin).kernel_name == "axpy");
    CHECK(origin == KernelOrigin::compiled);
    cache.prepare(axpy_host_spec(setup.target), &origin);
    CHECK(origin == KernelOrigin::store);
    CHECK(run_axpy(*cache.get(setup.device, axpy_host_spec(setup.target), &origin)) == 7.0f);
    CHECK(origin == KernelOrigin::store);
}

TEST_CASE("Threads that ask for one kernel at once compile it once", "[cache]") {
    Setup setup;
    KernelCache cache(Store::Options{"", 1 << 24, true});  // no lock file to help
    std::vector<std::shared_ptr<LoadedKernel>> kernels(16);
    std::vector<std::thread> threads;
    for (auto& kernel : kernels)
        threads.emplace_back([&] { kernel = cache.get(setup.device, axpy_host_spec(setup.target)); });
    for (std::thread& thread : threads) thread.join();
    CHECK(cache.statistics().compiles == 1);
    CHECK(cache.statistics().memory_hits == 15);
    for (const auto& kernel : kernels) CHECK(kernel == kernels[0]);
}

TEST_CASE("A failed compile is no kernel, and the next one may succeed", "[cache]") {
    Setup setup;
    KernelCache cache(options_at(setup.folder / "store"));
    const KernelSpec spec{"test/broken.cpp", "k", {}, setup.target};
    write_text(setup.folder / "templates/test/broken.cpp", "broken\n");
    REQUIRE_THROWS_AS(cache.get(setup.device, spec), CompileError);
    REQUIRE_THROWS_AS(cache.get(setup.device, spec), CompileError);
    write_text(setup.folder / "templates/test/broken.cpp",
               "struct HostBlock;\nextern \"C\" void k(const HostBlock*, void**) {}\n");
    CHECK(cache.get(setup.device, spec));
    REQUIRE_THROWS_AS(cache.get(setup.device, {"test/none.cpp", "k", {}, setup.target}), InvalidArgument);
}
