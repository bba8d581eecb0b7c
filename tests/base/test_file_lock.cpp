#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/temp_directory.h"
#include "catch.h"
#include "turbotune/base/files.h"

using namespace turbotune;
using namespace std::chrono_literals;
using turbotune::test::TempDirectory;
using Clock = std::chrono::steady_clock;

TEST_CASE("A held lock is refused to others within the wait, and had after its release", "[lock]") {
    TempDirectory directory;
    const std::string path = directory.file("x.lock");
    FileLock first = FileLock::acquire(path, 0ms);
    REQUIRE(first.held());
    CHECK(read_file(path) == std::to_string(::getpid()) + "\n");
    const auto began = Clock::now();
    CHECK_FALSE(FileLock::acquire(path, 0ms).held());
    CHECK_FALSE(FileLock::acquire(path, 60ms).held());
    CHECK(Clock::now() - began >= 60ms);
    CHECK(Clock::now() - began < 4s);
    first.release();
    CHECK_FALSE(first.held());
    CHECK(file_exists(path));
    CHECK(FileLock::acquire(path, 0ms).held());
}

TEST_CASE("A lock moves with its owner", "[lock]") {
    TempDirectory directory;
    const std::string path = directory.file("x.lock");
    FileLock second;
    {
        FileLock first = FileLock::acquire(path, 0ms);
        second = std::move(first);
        CHECK_FALSE(first.held());
    }
    CHECK(second.held());
    CHECK_FALSE(FileLock::acquire(path, 0ms).held());
    second = FileLock::acquire(directory.file("y.lock"), 0ms);
    CHECK(FileLock::acquire(path, 0ms).held());
    FileLock third(std::move(second));
    CHECK(third.held());
    CHECK_FALSE(FileLock::acquire(directory.file("y.lock"), 0ms).held());
}

TEST_CASE("A waiter gets the lock soon after the holder lets go", "[lock]") {
    TempDirectory directory;
    const std::string path = directory.file("x.lock");
    FileLock first = FileLock::acquire(path, 0ms);
    std::thread holder([&] {
        std::this_thread::sleep_for(150ms);
        first.release();
    });
    const auto began = Clock::now();
    const FileLock second = FileLock::acquire(path, 10s);
    CHECK(second.held());
    CHECK(Clock::now() - began >= 100ms);
    CHECK(Clock::now() - began < 5s);
    holder.join();
}

TEST_CASE("The lock excludes: no two threads are inside at once", "[lock]") {
    TempDirectory directory;
    const std::string path = directory.file("x.lock");
    std::atomic<int> inside{0}, clashes{0}, entered{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < 10; ++i) {
                const FileLock lock = FileLock::acquire(path, 20s);
                if (!lock.held()) continue;
                clashes += ++inside != 1;
                ++entered;
                std::this_thread::sleep_for(1ms);
                --inside;
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(clashes == 0);
    CHECK(entered == 40);
}

TEST_CASE("A killed holder leaves the lock free", "[lock]") {
    TempDirectory directory;
    const std::string path = directory.file("x.lock");
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        const FileLock lock = FileLock::acquire(path, 0ms);
        const char held = lock.held() ? '1' : '0';
        [[maybe_unused]] const ssize_t written = ::write(ready[1], &held, 1);
        for (;;) ::pause();
    }
    char held = '0';
    REQUIRE(::read(ready[0], &held, 1) == 1);
    CHECK(held == '1');
    CHECK_FALSE(FileLock::acquire(path, 0ms).held());
    CHECK(read_file(path) == std::to_string(child) + "\n");
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(FileLock::acquire(path, 5s).held());
    ::close(ready[0]);
    ::close(ready[1]);
}

TEST_CASE("A child forked by the holder does not keep the lock", "[lock]") {
    TempDirectory directory;
    const std::string path = directory.file("x.lock");
    FileLock lock = FileLock::acquire(path, 0ms);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        for (;;) ::pause();
    }
    lock.release();
    CHECK(FileLock::acquire(path, 0ms).held());
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
}

TEST_CASE("A lock file that was removed and made anew is locked anew", "[lock]") {
    TempDirectory directory;
    const std::string path = directory.file("x.lock");
    FileLock old = FileLock::acquire(path, 0ms);
    std::filesystem::remove(path);
    const FileLock fresh = FileLock::acquire(path, 0ms);
    CHECK(fresh.held());
    old.release();
    CHECK_FALSE(FileLock::acquire(path, 0ms).held());
}

TEST_CASE("A lock in a directory that does not exist is not held, at once", "[lock]") {
    TempDirectory directory;
    const auto began = Clock::now();
    CHECK_FALSE(FileLock::acquire(directory.file("no/x.lock"), 10s).held());
    CHECK(Clock::now() - began < 5s);
}

namespace {

std::atomic<int> slow_calls{0}, slow_pid{0};

}  // namespace

TEST_CASE("After five seconds the waiter is told once who holds the lock", "[lock]") {
    TempDirectory directory;
    const std::string path = directory.file("x.lock");
    const FileLock holder = FileLock::acquire(path, 0ms);
    const FileLock waiter = FileLock::acquire(path, 8s, [](const std::string&, int pid) {
        ++slow_calls;
        slow_pid = pid;
    });
    CHECK_FALSE(waiter.held());
    CHECK(slow_calls == 1);
    CHECK(slow_pid == ::getpid());
}
