#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "catch.h"
#include "scratch.h"
#include "turbotune/base/error.h"
#include "turbotune/tuner/worker_process.h"

using namespace turbotune;

namespace {

using Clock = std::chrono::steady_clock;

std::string script(const Scratch& scratch, const std::string& body) {
    std::string path = scratch.file("worker.sh");
    spit(path, "#!/bin/sh\n" + body);
    ::chmod(path.c_str(), 0755);
    return path;
}

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

TEST_CASE("a worker answers line by line and is told its device", "[worker]") {
    Scratch scratch;
    WorkerProcess worker(script(scratch, "while read line; do echo \"{\\\"$1 $2 $3\\\":$line}\"; done\n"), "cpu");
    CHECK(worker.exchange("1", 10, nullptr).answer == "{\"worker --device cpu\":1}");
    CHECK(worker.exchange("2", 10, nullptr).answer == "{\"worker --device cpu\":2}");
    CHECK(worker.starts() == 1);
}

TEST_CASE("requests and answers larger than any pipe pass whole", "[worker]") {
    Scratch scratch;
    WorkerProcess worker(script(scratch, "exec cat\n"), "cpu");
    std::string large = "{" + std::string(3000000, 'x');
    CHECK(worker.exchange(large, 30, nullptr).answer == large);
}

TEST_CASE("announcements name what is in flight and hold off the watchdog", "[worker]") {
    Scratch scratch;
    WorkerProcess worker(
        script(scratch, "read line; for i in 1 2 3 4 5 6; do echo \"@ $i\"; sleep 0.3; done; echo '{}'; read x\n"),
        "cpu");
    Exchange exchange = worker.exchange("go", 1.0, nullptr);
    CHECK(exchange.answer == "{}");
    CHECK(exchange.in_flight == 6);
}

TEST_CASE("a silent worker is killed as a timeout, and the next request starts another", "[worker]") {
    Scratch scratch;
    WorkerProcess worker(
        script(scratch, "read line; echo '@ 4'; [ \"$line\" = hang ] && sleep 1000; echo '{}'; read x\n"), "cpu");
    auto start = Clock::now();
    Exchange exchange = worker.exchange("hang", 0.5, nullptr);
    CHECK(exchange.died());
    CHECK(exchange.reason == "timeout");
    CHECK(exchange.in_flight == 4);
    CHECK(seconds_since(start) < 5);
    CHECK_FALSE(worker.running());
    CHECK(worker.exchange("work", 10, nullptr).answer == "{}");
    CHECK(worker.starts() == 2);
}

TEST_CASE("a job that was suspended for longer than the watchdog waits goes on", "[worker]") {
    Scratch scratch;
    const std::string path =
        script(scratch, "read line; for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.1; done; echo '{}'; read x\n");
    int begun[2];
    REQUIRE(::pipe(begun) == 0);
    const pid_t job = ::fork();
    if (job == 0) {
        ::setpgid(0, 0);
        WorkerProcess worker(path, "cpu");
        [[maybe_unused]] const ssize_t told = ::write(begun[1], "x", 1);
        ::_exit(worker.exchange("go", 2.0, nullptr).answer == "{}" ? 0 : 1);
    }
    ::setpgid(job, job);
    char byte = 0;
    CHECK(::read(begun[0], &byte, 1) == 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    CHECK(::kill(-job, SIGSTOP) == 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(3000));
    CHECK(::kill(-job, SIGCONT) == 0);
    int status = -1;
    CHECK(::waitpid(job, &status, 0) == job);
    CHECK(status == 0);
    for (int end : begun) ::close(end);
}

TEST_CASE("a crash is a fault with its signal and last words", "[worker]") {
    Scratch scratch;
    WorkerProcess worker(script(scratch, "read line; echo '@ 2'; echo 'something broke' >&2; kill -SEGV $$\n"), "cpu");
    Exchange exchange = worker.exchange("go", 10, nullptr);
    CHECK(exchange.reason == "fault");
    CHECK(exchange.detail.find("signal 11") != std::string::npos);
    CHECK(exchange.detail.find("something broke") != std::string::npos);
    CHECK(exchange.in_flight == 2);
}

TEST_CASE("a worker that exits or babbles is a fault", "[worker]") {
    Scratch scratch;
    {
        WorkerProcess worker(script(scratch, "exit 3\n"), "cpu");
        Exchange exchange = worker.exchange("go", 10, nullptr);
        CHECK(exchange.reason == "fault");
        CHECK(exchange.detail.find("exited with code 3") != std::string::npos);
    }
    WorkerProcess worker(script(scratch, "read line; echo 'hello there'; sleep 100\n"), "cpu");
    CHECK(worker.exchange("go", 10, nullptr).reason == "fault");
    CHECK_FALSE(worker.running());
}

TEST_CASE("the second interrupt ends a wait at once, the first does not", "[worker]") {
    Scratch scratch;
    WorkerProcess worker(script(scratch, "read line; sleep 1; echo '{}'; read line; sleep 1000\n"), "cpu");
    std::atomic<int> interrupts{1};
    CHECK(worker.exchange("go", 10, &interrupts).answer == "{}");
    std::thread later([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        interrupts = 2;
    });
    auto start = Clock::now();
    Exchange exchange = worker.exchange("go", 100, &interrupts);
    later.join();
    CHECK(exchange.reason == "interrupted");
    CHECK(seconds_since(start) < 3);
    CHECK_FALSE(worker.running());
}

TEST_CASE("a program that cannot be run is refused by name", "[worker]") {
    Scratch scratch;
    WorkerProcess worker(scratch.file("absent"), "cpu");
    REQUIRE_THROWS_AS(worker.exchange("go", 1, nullptr), InvalidArgument);
    try {
        worker.start();
    } catch (const InvalidArgument& error) {
        CHECK(std::string(error.what()).find("absent") != std::string::npos);
    }
}

TEST_CASE("destroying the parent's side ends the worker", "[worker]") {
    Scratch scratch;
    pid_t pid = 0;
    {
        WorkerProcess worker(script(scratch, "exec sleep 1000\n"), "cpu");
        worker.start();
        pid = worker.pid();
        REQUIRE(::kill(pid, 0) == 0);
    }
    CHECK(::kill(pid, 0) != 0);
}
