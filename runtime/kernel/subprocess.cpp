#include "subprocess.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

extern char** environ;

namespace turbotune {
namespace {

constexpr std::size_t kMostOutput = std::size_t{1} << 20;

std::vector<std::string> merged_environment(const std::vector<std::string>& replacing) {
    std::vector<std::string> merged = replacing;
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string text = *entry;
        const std::string name = text.substr(0, text.find('=') + 1);
        const bool replaced =
            std::any_of(replacing.begin(), replacing.end(), [&](const std::string& r) { return r.starts_with(name); });
        if (!replaced) merged.push_back(text);
    }
    return merged;
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
    std::vector<char*> result;
    for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
    result.push_back(nullptr);
    return result;
}

int spawn(const std::vector<std::string>& arguments, const std::vector<std::string>& environment, int output,
          pid_t* pid) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    ::sigemptyset(&none);
    ::sigfillset(&all);
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions, output, 1);
    ::posix_spawn_file_actions_adddup2(&actions, output, 2);
    ::posix_spawnattr_init(&attributes);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    ::posix_spawnattr_setpgroup(&attributes, 0);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setsigdefault(&attributes, &all);
    const std::vector<std::string> merged = merged_environment(environment);
    const int error = ::posix_spawn(pid, arguments.front().c_str(), &actions, &attributes, pointers(arguments).data(),
                                    pointers(merged).data());
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&actions);
    return error;
}

void drain(int descriptor, std::string* output) {
    char buffer[16384];
    for (;;) {
        const ssize_t got = ::read(descriptor, buffer, sizeof buffer);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return;
        output->append(buffer, std::min(static_cast<std::size_t>(got), kMostOutput - output->size()));
    }
}

}  // namespace

ProgramResult run_program(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
    ProgramResult result;
    int pipe_ends[2];
    if (::pipe2(pipe_ends, O_CLOEXEC) != 0) {
        result.problem = std::strerror(errno);
        return result;
    }
    pid_t pid = 0;
    const int error = spawn(arguments, environment, pipe_ends[1], &pid);
    ::close(pipe_ends[1]);
    if (error != 0) {
        result.problem = std::strerror(error);
    } else {
        drain(pipe_ends[0], &result.output);
        int status = 0;
        while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
        }
        if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
        if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
    }
    ::close(pipe_ends[0]);
    return result;
}

}  // namespace turbotune
