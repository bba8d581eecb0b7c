#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/temp_directory.h"
#include "catch.h"
#include "turbotune/base/files.h"
#include "turbotune/base/log.h"

using namespace turbotune;
using turbotune::test::TempDirectory;

namespace {

// The default sink and level again, whatever a test set.
struct Restore {
    LogLevel level = log_level();
    ~Restore() {
        set_log_sink({});
        set_log_level(level);
    }
};

// What the function prints to standard error.
template <typename Function>
std::string standard_error_of(Function&& function) {
    TempDirectory directory;
    const std::string path = directory.file("stderr");
    std::fflush(stderr);
    const int saved = ::dup(STDERR_FILENO);
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT, 0600);
    ::dup2(file, STDERR_FILENO);
    function();
    std::fflush(stderr);
    ::dup2(saved, STDERR_FILENO);
    ::close(file);
    ::close(saved);
    return read_file(path).value_or("unreadable");
}

// Runs this program's case "The level from the environment is printed" with TURBOTUNE_LOG set.
std::string level_in_child(const char* value) {
    TempDirectory directory;
    const std::string output = directory.file("out");
    const pid_t child = ::fork();
    if (child == 0) {
        const int file = ::open(output.c_str(), O_WRONLY | O_CREAT, 0600);
        ::dup2(file, STDERR_FILENO);
        ::dup2(file, STDOUT_FILENO);
        ::setenv("TURBOTUNE_LOG", value, 1);
        ::execl("/proc/self/exe", "self", "The level from the environment is printed", nullptr);
        ::_exit(127);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    return read_file(output).value_or("");
}

}  // namespace

TEST_CASE("The default sink prints one line with the level's name to standard error", "[log]") {
    Restore restore;
    set_log_level(LogLevel::warn);
    const std::string text = standard_error_of([] {
        log(LogLevel::warn, "disk is full: {} %s");
        log(LogLevel::error, "it broke");
        log(LogLevel::info, "hidden");
        log(LogLevel::off, "never");
    });
    CHECK(text == "turbotune: warning: disk is full: {} %s\nturbotune: error: it broke\n");
}

TEST_CASE("A sink gets the messages of its level and above, and an empty one restores the default", "[log]") {
    Restore restore;
    std::vector<std::string> seen;
    set_log_sink([&](LogLevel level, const std::string& message) {
        seen.push_back(std::to_string(static_cast<int>(level)) + message);
    });
    set_log_level(LogLevel::info);
    CHECK(log_level() == LogLevel::info);
    log(LogLevel::debug, "a");
    log(LogLevel::info, "b");
    log(LogLevel::error, "c");
    set_log_level(LogLevel::off);
    log(LogLevel::error, "d");
    CHECK(seen == std::vector<std::string>{"1b", "3c"});
    set_log_level(LogLevel::error);
    set_log_sink({});
    CHECK(standard_error_of([] { log(LogLevel::error, "e"); }) == "turbotune: error: e\n");
    CHECK(seen.size() == 2);
}

TEST_CASE("A sink may report, replace itself, and throw", "[log]") {
    Restore restore;
    set_log_level(LogLevel::warn);
    int calls = 0;
    set_log_sink([&](LogLevel, const std::string& message) {
        ++calls;
        if (message == "outer") log(LogLevel::warn, "inner");
        if (message == "replace") set_log_sink([&](LogLevel, const std::string&) { calls += 100; });
        if (message == "throw") throw std::runtime_error("sink");
    });
    log(LogLevel::warn, "outer");
    CHECK(calls == 2);
    REQUIRE_NOTHROW(log(LogLevel::warn, "throw"));
    log(LogLevel::warn, "replace");
    CHECK(calls == 4);
    log(LogLevel::warn, "x");
    CHECK(calls == 104);
}

TEST_CASE("Messages of several threads arrive one at a time and complete", "[log]") {
    Restore restore;
    set_log_level(LogLevel::warn);
    std::vector<std::string> seen;
    set_log_sink([&](LogLevel, const std::string& message) { seen.push_back(message); });
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([] {
            for (int i = 0; i < 500; ++i) log(LogLevel::warn, "message");
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(seen.size() == 2000);
}

TEST_CASE("The level from the environment is printed", "[.child]") {
    std::printf("level=%d\n", static_cast<int>(log_level()));
}

TEST_CASE("TURBOTUNE_LOG sets the level, and a word that is none warns", "[log]") {
    CHECK(level_in_child("debug").find("level=0") != std::string::npos);
    CHECK(level_in_child("off").find("level=4") != std::string::npos);
    CHECK(level_in_child("error").find("level=3") != std::string::npos);
    CHECK(level_in_child("").find("level=2") != std::string::npos);
    const std::string wrong = level_in_child("loud");
    CHECK(wrong.find("level=2") != std::string::npos);
    CHECK(wrong.find("turbotune: warning: TURBOTUNE_LOG: expected off, error, warn, info or debug, got \"loud\"") !=
          std::string::npos);
}
