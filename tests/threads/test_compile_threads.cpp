// Compile-ahead while its owner asks, prefetches, and leaves.
#include <atomic>
#include <thread>

#include "../../tuner/compile_ahead.h"
#include "../kernel/kernel_testing.h"
#include "catch.h"
#include "turbotune/device/device.h"

using namespace turbotune;
using namespace turbotune::testing;

namespace {

std::vector<std::vector<KernelSpec>> candidates(int first, int count) {
    std::vector<std::vector<KernelSpec>> all;
    for (int i = first; i < first + count; ++i) all.push_back({axpy_host_spec(open_device("cpu").info().target(), i)});
    return all;
}

}  // namespace

TEST_CASE("compile-ahead serves what is asked for while it prefetches, and stops when told", "[threads]") {
    const TempFolder folder;
    write_templates(folder / "templates");
    const ScopedVariable templates("TURBOTUNE_TEMPLATE_DIR", folder / "templates");
    const ScopedVariable temp("TMPDIR", folder.path());
    std::atomic<int> made{0};
    {
        CompileAhead ahead(options_at(folder / "store"), 4);
        ahead.prefetch([&] {
            ++made;
            std::vector<KernelSpec> specs;
            for (const auto& each : candidates(2, 6)) specs.push_back(each.front());
            return specs;
        });
        int done = 0, failed = 0;
        ahead.compile(
            candidates(2, 3),
            [&](int, const CompileResult& result) {
                ++done;
                failed += !result.reason.empty();
            },
            [] { return false; });
        CHECK(done == 3);
        CHECK(failed == 0);
        // What stops early leaves tasks behind, whose results nobody wants.
        int seen = 0;
        ahead.compile(
            candidates(20, 6), [&](int, const CompileResult&) { ++seen; }, [&] { return seen > 0; });
        CHECK(seen >= 1);
        ahead.prefetch([]() -> std::vector<KernelSpec> { throw std::runtime_error("no list"); });
    }  // leaves while compiles go on
    Store store(options_at(folder / "store"));
    const auto entries = store.list(true);
    CHECK(entries.size() >= 4);
    for (const StoreEntryInfo& entry : entries) CHECK(entry.problem == "");
    CHECK(made <= 1);
}
