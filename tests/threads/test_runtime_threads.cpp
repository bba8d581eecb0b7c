// What several threads share, under load. These run under ThreadSanitizer, too (preset tsan).
#include <atomic>
#include <barrier>
#include <cstring>
#include <thread>

#include "../kernel/kernel_testing.h"
#include "../ops/attention_testing.h"
#include "catch.h"
#include "turbotune/base/log.h"
#include "turbotune/device/thread_pool.h"
#include "turbotune/ops/operation.h"

using namespace turbotune;
using namespace turbotune::testing;

namespace {

constexpr int kThreads = 16;

// Runs `body(thread)` in all threads at once. The bodies check nothing themselves: Catch's checks are for one thread.
template <typename Body>
void in_threads(Body&& body) {
    std::barrier start(kThreads);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
            start.arrive_and_wait();
            body(t);
        });
    for (std::thread& thread : threads) thread.join();
}

RuntimeOptions cpu_at(const std::string& store) {
    RuntimeOptions options;
    options.device = "cpu";
    options.discover_profiles = false;
    options.store.directory = store;
    return options;
}

std::vector<TestCase> small_cases(const Operation& operation) {
    std::vector<TestCase> cases;
    for (const char* name : {"da_both_l1", "da_both_l33_d32", "da_none_l50_d64"}) {
        const SafetensorsFile file = read_safetensors(std::string(TURBOTUNE_TEST_DATA "/") + name + ".safetensors");
        cases.push_back(operation.golden_cases(file, nullptr).front());
    }
    return cases;
}

}  // namespace

TEST_CASE("sixteen threads share one runtime: each kernel is compiled once and every result is the same, bit for bit",
          "[threads]") {
    const TempFolder folder;
    const Operation& operation = find_operation("disentangled_attention");
    const std::vector<TestCase> cases = small_cases(operation);
    Runtime alone(cpu_at(folder / "alone"));
    std::vector<HostTensor> expected;
    for (const TestCase& each : cases) {
        expected.push_back(run_case(alone, operation, each).at("out"));
        CHECK(largest_error(expected.back(), each.expected.at("out")) <= each.tolerance);
    }

    Runtime shared(cpu_at(folder / "shared"));
    std::atomic<int> wrong{0}, runs{0};
    in_threads([&](int thread) {
        for (std::size_t i = 0; i < 2 * cases.size(); ++i) {
            const std::size_t which = (i + std::size_t(thread)) % cases.size();
            try {
                const NamedTensors outputs = run_case(shared, operation, cases[which]);
                if (outputs.at("out").data != expected[which].data) ++wrong;
                ++runs;
            } catch (const std::exception&) {
                ++wrong;
            }
        }
    });
    CHECK(wrong == 0);
    CHECK(runs == 2 * kThreads * int(cases.size()));
    CHECK(shared.statistics().kernels.compiles == alone.statistics().kernels.compiles);
    CHECK(shared.statistics().selections.size() == alone.statistics().selections.size());
}

TEST_CASE("the first use of everything may be by sixteen threads at once", "[threads]") {
    const TempFolder folder;
    std::atomic<int> failures{0};
    std::vector<std::string> seen(kThreads);
    Runtime runtime(cpu_at(folder / "store"));
    in_threads([&](int thread) {
        try {
            std::string& all = seen[std::size_t(thread)];
            all = open_device("cpu").info().device_class.to_string();
            all += host_compiler().identity();
            all += to_hex(template_digest("disentangled_attention"));
            all += std::to_string(runtime.profiles().size());
            all += runtime.kernels().store().directory();
            all += std::to_string(list_devices().size());
            all += std::to_string(int(log_level()));
        } catch (const std::exception&) {
            ++failures;
        }
    });
    CHECK(failures == 0);
    for (const std::string& each : seen) CHECK(each == seen[0]);
}

TEST_CASE("sixteen threads use one store: no image is ever mixed up", "[threads]") {
    const TempFolder folder;
    Store store({.directory = folder / "store", .max_bytes = 400000});  // evicts all the time
    std::atomic<int> wrong{0}, hits{0};
    in_threads([&](int thread) {
        for (unsigned i = 0; i < 60; ++i) {
            const unsigned seed = (i * 7 + unsigned(thread)) % 24;
            if (const auto image = store.find(make_key(seed))) {
                ++hits;
                if (image->bytes != make_image(seed, 20000).bytes) ++wrong;
            } else {
                const FileLock lock = store.lock_for_compile(make_key(seed));
                store.put(make_key(seed), make_image(seed, 20000));
            }
            if (i % 20 == 0) store.list(true);
        }
    });
    CHECK(wrong == 0);
    CHECK(hits > 0);
    CHECK(store.statistics().evictions > 0);
    CHECK(store.statistics().bad == 0);
}

TEST_CASE("a message may be logged while the sink is replaced", "[threads]") {
    static std::atomic<int> messages{0};
    in_threads([&](int thread) {
        for (int i = 0; i < 50; ++i) {
            if (thread == 0) set_log_sink([](LogLevel, const std::string&) { ++messages; });
            log(LogLevel::debug, "not shown");
        }
    });
    set_log_sink({});
    CHECK(messages >= 0);
}

TEST_CASE("callers of the thread pool see what its bodies wrote", "[threads]") {
    std::atomic<int> wrong{0};
    in_threads([&](int thread) {
        std::vector<int> cells(500, 0);
        for (int round = 1; round <= 20; ++round) {
            const auto add_one = [](void* context, std::size_t index, int) {
                ++(*static_cast<std::vector<int>*>(context))[index];
            };
            ThreadPool::shared().run(cells.size() - std::size_t(thread), add_one, &cells);
            if (cells.front() != round || cells[cells.size() - std::size_t(thread) - 1] != round) ++wrong;
        }
    });
    CHECK(wrong == 0);
}
