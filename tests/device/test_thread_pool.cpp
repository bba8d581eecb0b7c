#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <set>
#include <thread>
#include <vector>

#include "catch.h"
#include "run_self.h"
#include "turbotune/base/error.h"
#include "turbotune/device/thread_pool.h"

using namespace turbotune;
using test::run_self;

namespace {

// run() takes a plain function; the tests hand it a lambda.
template <typename Function>
void run(std::size_t count, Function&& function) {
    ThreadPool::shared().run(
        count, [](void* context, std::size_t index, int thread) { (*static_cast<Function*>(context))(index, thread); },
        &function);
}

// The CPUs that the pool may use, by another way.
int affinity_count() {
    cpu_set_t mask;
    return ::sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
}

void exercise() {
    const int threads = ThreadPool::shared().threads();
    for (std::size_t count : {0, 1, 2, 3, 7, 64, 1000, 10'007}) {
        std::vector<std::atomic<int>> visits(count);
        std::atomic<int> wrong{0};
        run(count, [&](std::size_t index, int thread) {
            if (index >= visits.size() || thread < 0 || thread >= threads)
                ++wrong;
            else
                ++visits[index];
        });
        REQUIRE(wrong == 0);
        for (const std::atomic<int>& visit : visits) REQUIRE(visit == 1);
    }
}

}  // namespace

TEST_CASE("Every index is visited once, by a thread of the pool", "[pool]") {
    exercise();
}

TEST_CASE("Child: exercise the pool", "[.child]") {
    if (!test::is_child()) return;
    exercise();
    std::printf("threads=%d\n", ThreadPool::shared().threads());
}

TEST_CASE("TURBOTUNE_CPU_THREADS sets the size, and without it the affinity bounds it", "[pool]") {
    for (const char* threads : {"1", "2", "3", "16"}) {
        const test::Finished finished = run_self("Child: exercise the pool", {{"TURBOTUNE_CPU_THREADS", threads}});
        INFO(finished.output);
        CHECK(finished.passed());
        CHECK(finished.output.find(std::string("threads=") + threads + "\n") != std::string::npos);
    }
    for (const char* wrong : {"0", "-2", "two", "4x", "99999"}) {
        const test::Finished finished = run_self("Child: exercise the pool", {{"TURBOTUNE_CPU_THREADS", wrong}});
        CHECK(finished.exit_code != 0);
        CHECK(finished.output.find("TURBOTUNE_CPU_THREADS: expected an integer in [1, 1024]") != std::string::npos);
    }
    const test::Finished plain = run_self("Child: exercise the pool", {{"TURBOTUNE_CPU_THREADS", ""}});
    const std::size_t at = plain.output.find("threads=");
    REQUIRE(at != std::string::npos);
    const int threads = std::atoi(plain.output.c_str() + at + 8);
    CHECK(threads >= 1);
    CHECK(threads <= affinity_count());
}

TEST_CASE("Threads work at the same time", "[pool]") {
    if (ThreadPool::shared().threads() < 2) return;
    // Both bodies wait until the other one has begun.
    std::atomic<int> begun{0}, met{0};
    run(2, [&](std::size_t, int) {
        ++begun;
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
        while (begun < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
        met += begun == 2;
    });
    CHECK(met == 2);
}

TEST_CASE("No two bodies share a thread index at the same time", "[pool]") {
    std::vector<std::atomic<int>> busy(static_cast<std::size_t>(ThreadPool::shared().threads()));
    std::atomic<int> clashes{0};
    for (int round = 0; round < 50; ++round) {
        run(200, [&](std::size_t, int thread) {
            std::atomic<int>& mine = busy[static_cast<std::size_t>(thread)];
            clashes += mine.fetch_add(1) != 0;
            mine.fetch_sub(1);
        });
    }
    CHECK(clashes == 0);
}

TEST_CASE("A nested call runs in the calling thread and with its index", "[pool]") {
    std::atomic<int> visits{0}, elsewhere{0};
    run(20, [&](std::size_t, int outer) {
        const std::thread::id here = std::this_thread::get_id();
        run(30, [&](std::size_t, int inner) {
            elsewhere += inner != outer || std::this_thread::get_id() != here;
            run(2, [&](std::size_t, int) { ++visits; });
        });
    });
    CHECK(visits == 20 * 30 * 2);
    CHECK(elsewhere == 0);
}

TEST_CASE("Callers from several threads take turns and all finish", "[pool]") {
    std::vector<std::thread> callers;
    std::atomic<int> inside{0}, clashes{0};
    std::atomic<long> total{0};
    for (int caller = 0; caller < 4; ++caller) {
        callers.emplace_back([&, caller] {
            for (int round = 0; round < 100; ++round) {
                run(17, [&](std::size_t index, int) {
                    // Bodies of two callers are never inside at once: the low bits count this caller's.
                    const int before = inside.fetch_add(1 << (8 * caller));
                    clashes += (before & ~(0xff << (8 * caller))) != 0;
                    total += static_cast<long>(index);
                    inside.fetch_sub(1 << (8 * caller));
                });
            }
        });
    }
    for (std::thread& caller : callers) caller.join();
    CHECK(total == 4L * 100 * (17 * 16 / 2));
    CHECK(clashes == 0);
}

TEST_CASE("Many small jobs, with pauses between them, lose no wake-up", "[pool]") {
    std::atomic<long> total{0};
    for (int round = 0; round < 3000; ++round) {
        run(1 + round % 5, [&](std::size_t, int) { ++total; });
        if (round % 100 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    CHECK(total == 3000 / 5 * (1 + 2 + 3 + 4 + 5));
}

TEST_CASE("Writes before a job are seen inside, and those inside after it", "[pool]") {
    std::vector<int> in(5000), out(5000);
    for (int round = 0; round < 50; ++round) {
        for (std::size_t i = 0; i < in.size(); ++i) in[i] = round + static_cast<int>(i);
        run(in.size(), [&](std::size_t index, int) { out[index] = 2 * in[index]; });
        for (std::size_t i = 0; i < in.size(); ++i) REQUIRE(out[i] == 2 * (round + static_cast<int>(i)));
    }
}

TEST_CASE("Scratch is aligned, apart, and grows", "[pool]") {
    ThreadPool& pool = ThreadPool::shared();
    for (std::size_t bytes : {std::size_t{1}, std::size_t{1000}, std::size_t{500}, std::size_t{1'000'000}}) {
        pool.reserve_scratch(bytes);
        std::set<std::byte*> blocks;
        for (int thread = 0; thread < pool.threads(); ++thread) {
            std::byte* block = pool.scratch(thread);
            REQUIRE(block != nullptr);
            CHECK(reinterpret_cast<std::uintptr_t>(block) % 64 == 0);
            CHECK(blocks.insert(block).second);
            std::memset(block, thread, bytes);
        }
        for (int thread = 0; thread < pool.threads(); ++thread) {
            CHECK(pool.scratch(thread)[bytes - 1] == static_cast<std::byte>(thread));
        }
    }
    REQUIRE_THROWS_AS(pool.reserve_scratch(std::size_t{1} << 60), DeviceError);
    pool.reserve_scratch(64);
    CHECK(pool.scratch(0) != nullptr);
}

#if !defined(__SANITIZE_THREAD__)  // which does not know threads that are started after a fork
TEST_CASE("A reservation that fails leaves the scratch that was there, with its content", "[pool]") {
    ThreadPool& pool = ThreadPool::shared();
    pool.reserve_scratch(4096);
    std::vector<std::byte*> before;
    for (int thread = 0; thread < pool.threads(); ++thread) {
        before.push_back(pool.scratch(thread));
        std::memset(before.back(), thread + 1, 4096);
    }
    REQUIRE_THROWS_AS(pool.reserve_scratch(std::size_t{1} << 60), DeviceError);
    for (int thread = 0; thread < pool.threads(); ++thread) {
        REQUIRE(pool.scratch(thread) == before[std::size_t(thread)]);
        REQUIRE(pool.scratch(thread)[4095] == std::byte(thread + 1));
    }
    pool.reserve_scratch(4096);  // still enough
    REQUIRE(pool.scratch(0) == before[0]);
}

TEST_CASE("A forked child works with threads of its own", "[pool]") {
    exercise();
    ThreadPool::shared().reserve_scratch(256);
    // Another thread holds the pool at the fork.
    std::atomic<bool> stop{false}, started{false};
    std::thread other([&] {
        run(2, [&](std::size_t, int) {
            started = true;
            while (!stop) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        });
    });
    while (!started) std::this_thread::yield();
    const pid_t child = ::fork();
    if (child == 0) {
        ::alarm(60);
        std::atomic<int> visits{0};
        for (int round = 0; round < 20; ++round) run(100, [&](std::size_t, int) { ++visits; });
        ThreadPool::shared().reserve_scratch(512);
        ::_exit(visits == 2000 && ThreadPool::shared().scratch(0) ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
    stop = true;
    other.join();
    exercise();
}
#endif

TEST_CASE("Child: leave while the pool works", "[.child]") {
    if (!test::is_child()) return;
    std::thread([] {
        run(1000, [](std::size_t, int) { std::this_thread::sleep_for(std::chrono::milliseconds(5)); });
    }).detach();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::exit(7);
}

TEST_CASE("A process may exit while the pool works or sleeps", "[pool]") {
    CHECK(run_self("Child: leave while the pool works", {}).exit_code == 7);
}
