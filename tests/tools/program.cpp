#include "program.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>

#include "catch.h"

extern char** environ;

namespace turbotune::test {
namespace {

std::map<std::string, std::string> inherited() {
    std::map<std::string, std::string> out;
    for (char** each = environ; *each != nullptr; ++each) {
        const std::string entry = *each;
        const std::size_t equals = entry.find('=');
        if (entry.rfind("TURBOTUNE_", 0) != 0) out[entry.substr(0, equals)] = entry.substr(equals + 1);
    }
    return out;
}

std::string slurp(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

}  // namespace

TempDir::TempDir() {
    path_ = (std::filesystem::temp_directory_path() / "turbotune té XXXXXX").string();
    REQUIRE(mkdtemp(path_.data()) != nullptr);
}

TempDir::~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

Running::Running(const TempDir& home, std::vector<std::string> command,
                 std::map<std::string, std::string> environment) {
    static std::atomic<int> runs{0};
    base_ = home / ("run" + std::to_string(++runs));
    auto variables = inherited();
    variables["HOME"] = home.path();
    variables["CUDA_VISIBLE_DEVICES"] = "";
    variables["TURBOTUNE_CACHE_DIR"] = home / "cache";
    variables["TURBOTUNE_PROFILE_DIR"] = home / "profiles";
    variables["TURBOTUNE_SHIPPED_PROFILES"] = home / "no profiles";
    for (const auto& [name, value] : environment) variables[name] = value;

    std::vector<std::string> lines;
    for (const auto& [name, value] : variables) lines.push_back(name + '=' + value);
    std::vector<char*> argv, envp;
    for (std::string& each : command) argv.push_back(each.data());
    for (std::string& each : lines) envp.push_back(each.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);

    std::string out = base_ + ".out", err = base_ + ".err";
    std::cout.flush();  // the child must not write what waits in this process's buffers
    std::fflush(nullptr);
    pid_ = fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
        if (std::freopen("/dev/null", "r", stdin) == nullptr || std::freopen(out.c_str(), "w", stdout) == nullptr ||
            std::freopen(err.c_str(), "w", stderr) == nullptr)
            _exit(126);
        execvpe(argv[0], argv.data(), envp.data());
        _exit(127);
    }
}

Running::~Running() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
}

void Running::send(int signal_number) const {
    kill(pid_, signal_number);
}

std::string Running::out() const {
    return slurp(base_ + ".out");
}

bool Running::wait_for(const std::string& text, double seconds) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (std::chrono::steady_clock::now() < end) {
        if (out().find(text) != std::string::npos) return true;
        siginfo_t info{};
        if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0)
            return out().find(text) != std::string::npos;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
}

Outcome Running::wait(double seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    int status = 0;
    while (waitpid(pid_, &status, WNOHANG) == 0) {
        if (std::chrono::steady_clock::now() > end) kill(pid_, SIGKILL);
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    pid_ = -1;
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status), slurp(base_ + ".out"),
            slurp(base_ + ".err")};
}

std::map<std::string, std::string> shared_store() {
    return {{"TURBOTUNE_CACHE_DIR", TURBOTUNE_TEST_STORE}};
}

std::string turbotune_program() {
    return TURBOTUNE_BUILD_DIR "/turbotune";
}

Outcome run_turbotune(const TempDir& home, std::vector<std::string> arguments,
                      std::map<std::string, std::string> environment) {
    arguments.insert(arguments.begin(), turbotune_program());
    return Running(home, std::move(arguments), std::move(environment)).wait(900);
}

Outcome run_program(const TempDir& home, std::vector<std::string> command, double seconds) {
    return Running(home, std::move(command)).wait(seconds);
}

std::string read_text(const std::string& path) {
    INFO(path);
    REQUIRE(std::filesystem::is_regular_file(path));
    return slurp(path);
}

void write_text(const std::string& path, const std::string& text) {
    std::ofstream file(path, std::ios::binary);
    file << text;
    file.close();
    REQUIRE(file.good());
}

}  // namespace turbotune::test
