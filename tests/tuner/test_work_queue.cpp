// Which device gets which workload. (No device is needed to see that.)
#include "../../tuner/work_queue.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "catch.h"

using namespace turbotune;

TEST_CASE("one device gets the workloads in order", "[queue]") {
    WorkQueue queue(3);
    for (std::size_t want = 0; want < 3; ++want) {
        CHECK(queue.anything_left());
        CHECK(queue.next() == want);
        CHECK(queue.take(0) == want);
        queue.done();
    }
    CHECK_FALSE(queue.anything_left());
    CHECK_FALSE(queue.take(0).has_value());
}

TEST_CASE("many devices get every workload exactly once", "[queue]") {
    WorkQueue queue(2000);
    std::mutex mutex;
    std::vector<std::size_t> seen;
    std::vector<std::thread> threads;
    for (int device = 0; device < 8; ++device)
        threads.emplace_back([&, device] {
            while (const auto item = queue.take(device)) {
                {
                    const std::lock_guard lock(mutex);
                    seen.push_back(*item);
                }
                queue.done();
            }
        });
    for (std::thread& thread : threads) thread.join();
    std::sort(seen.begin(), seen.end());
    REQUIRE(seen.size() == 2000);
    for (std::size_t i = 0; i < seen.size(); ++i) CHECK(seen[i] == i);
}

TEST_CASE("what one device hands over goes to another, once", "[queue]") {
    WorkQueue queue(1);
    CHECK(queue.take(0) == 0u);
    CHECK(queue.hand_over(0, 0));
    CHECK(queue.anything_left());
    CHECK_FALSE(queue.take(0).has_value());  // not to the same one again
    CHECK(queue.take(1) == 0u);
    CHECK_FALSE(queue.hand_over(0, 1));
    CHECK_FALSE(queue.hand_over(0, 1));  // asked again, as for each workload of a group
    queue.done();
    CHECK_FALSE(queue.take(0).has_value());
}

TEST_CASE("an idle device waits for what a busy one may hand over", "[queue]") {
    WorkQueue queue(1);
    REQUIRE(queue.take(0) == 0u);
    std::atomic<int> got{-1};
    std::thread idle([&] {
        const auto item = queue.take(1);
        got = item ? int(*item) : -2;
        if (item) queue.done();
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    CHECK(got == -1);
    CHECK(queue.hand_over(0, 0));
    idle.join();
    CHECK(got == 0);
}

TEST_CASE("a stopped queue lets everybody go", "[queue]") {
    WorkQueue queue(5);
    REQUIRE(queue.take(0) == 0u);
    queue.stop();
    CHECK_FALSE(queue.take(1).has_value());
    CHECK_FALSE(queue.take(0).has_value());
    CHECK(queue.anything_left());
}
