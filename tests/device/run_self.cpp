#include "run_self.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/temp_directory.h"
#include "turbotune/base/files.h"

extern char** environ;

namespace turbotune::test {

namespace {

constexpr const char* kChildVariable = "TURBOTUNE_TEST_CHILD";

// What this process has, with `variables` in place of those of the same name.
std::vector<std::string> merged_environment(const std::map<std::string, std::string>& variables) {
    std::vector<std::string> result;
    for (char** entry = environ; *entry; ++entry) {
        const std::string text = *entry;
        if (!variables.count(text.substr(0, text.find('=')))) result.push_back(text);
    }
    for (const auto& [name, value] : variables) result.push_back(name + "=" + value);
    return result;
}

int wait_bounded(pid_t child) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    int status = 0;
    while (::waitpid(child, &status, WNOHANG) == 0) {
        if (std::chrono::steady_clock::now() > deadline) {
            ::kill(child, SIGKILL);
            ::waitpid(child, &status, 0);
            return 124;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

Finished run_self(const std::string& test_case, const std::map<std::string, std::string>& variables) {
    TempDirectory directory;
    const std::string output = directory.file("output");
    std::map<std::string, std::string> all = variables;
    all[kChildVariable] = "1";
    std::vector<std::string> texts = merged_environment(all);
    std::vector<char*> pointers;
    for (std::string& text : texts) pointers.push_back(text.data());
    pointers.push_back(nullptr);
    std::string program = "self", argument = test_case;
    char* arguments[] = {program.data(), argument.data(), nullptr};
    const pid_t child = ::fork();
    if (child == 0) {
        const int file = ::open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
        ::dup2(file, STDOUT_FILENO);
        ::dup2(file, STDERR_FILENO);
        ::execve("/proc/self/exe", arguments, pointers.data());
        ::_exit(127);
    }
    Finished finished;
    finished.exit_code = child < 0 ? 126 : wait_bounded(child);
    finished.output = read_file(output).value_or("");
    return finished;
}

bool is_child() {
    return environment(kChildVariable).has_value();
}

std::string build_fake_driver(const std::string& directory, const std::string& options) {
    const char* chosen = std::getenv("CXX");
    const std::string compiler = chosen && *chosen ? chosen : "c++";
    const std::string log = directory + "/log";
    const std::string command = compiler + " -std=c++17 -O1 -shared -fPIC " + options + " -o " + directory +
                                "/libcuda.so.1 " + TURBOTUNE_SOURCE_DIR +
                                "/tests/device/fake_driver/fake_libcuda.cpp -pthread > " + log + " 2>&1";
    if (std::system(command.c_str()) == 0) return "";
    return command + "\n" + read_file(log).value_or("");
}

}  // namespace turbotune::test
