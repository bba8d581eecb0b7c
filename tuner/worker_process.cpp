#include "turbotune/tuner/worker_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "turbotune/base/error.h"
#include "turbotune/base/log.h"

extern char** environ;

namespace turbotune {

namespace {

using Clock = std::chrono::steady_clock;

int wait_for(pid_t pid) {
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
}

std::string describe_status(int status) {
    if (WIFSIGNALED(status))
        return fmt::format("killed by signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
    return fmt::format("exited with code {}", WEXITSTATUS(status));
}

// By a signal that no kernel raises: the system when memory ran out, a scheduler, somebody.
bool was_killed(int status) {
    if (!WIFSIGNALED(status)) return false;
    const int signal = WTERMSIG(status);
    return signal == SIGKILL || signal == SIGTERM || signal == SIGINT || signal == SIGHUP;
}

// Frees what posix_spawn was told, whatever happens in between.
struct SpawnSettings {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    SpawnSettings() {
        ::posix_spawn_file_actions_init(&actions);
        ::posix_spawnattr_init(&attributes);
    }
    ~SpawnSettings() {
        ::posix_spawn_file_actions_destroy(&actions);
        ::posix_spawnattr_destroy(&attributes);
    }
};

}  // namespace

WorkerProcess::WorkerProcess(std::string program, std::string device)
    : program_(std::move(program)), device_(std::move(device)) {}

WorkerProcess::~WorkerProcess() {
    stop();
}

void WorkerProcess::start() {
    if (running()) return;
    int ends[2];
    // A socket, not two pipes: sending to a dead worker then gives an error instead of SIGPIPE.
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        throw InvalidArgument("worker_program", fmt::format("no socket for {}: {}", program_, std::strerror(errno)));
    errors_ = log_level() == LogLevel::debug ? -1 : ::memfd_create("turbotune-worker-errors", MFD_CLOEXEC);

    SpawnSettings spawn;
    ::posix_spawn_file_actions_adddup2(&spawn.actions, ends[1], 0);
    ::posix_spawn_file_actions_adddup2(&spawn.actions, ends[1], 1);
    if (errors_ >= 0) ::posix_spawn_file_actions_adddup2(&spawn.actions, errors_, 2);
    // A group of its own: Ctrl-C at the terminal reaches the parent alone, which decides.
    ::posix_spawnattr_setflags(&spawn.attributes, POSIX_SPAWN_SETPGROUP);
    ::posix_spawnattr_setpgroup(&spawn.attributes, 0);
    std::string words[] = {program_, "worker", "--device", device_};
    char* argv[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(), nullptr};
    int code = ::posix_spawn(&pid_, program_.c_str(), &spawn.actions, &spawn.attributes, argv, environ);
    ::close(ends[1]);
    socket_ = ends[0];
    if (code != 0) {
        pid_ = -1;
        forget();
        throw InvalidArgument("worker_program", fmt::format("cannot run \"{}\": {}", program_, std::strerror(code)));
    }
    ++starts_;
}

void WorkerProcess::forget() {
    if (socket_ >= 0) ::close(socket_);
    if (errors_ >= 0) ::close(errors_);
    pid_ = -1;
    socket_ = errors_ = -1;
    received_.clear();
}

void WorkerProcess::stop() {
    if (running()) {
        ::kill(pid_, SIGKILL);
        wait_for(pid_);
    }
    forget();
}

void WorkerProcess::reap() {
    if (!running()) return;
    // It closes its end when it leaves; a worker that hangs in its exit is not waited for.
    pollfd closing{socket_, POLLIN, 0};
    ::poll(&closing, 1, 2000);
    stop();
}

std::string WorkerProcess::complaints() const {
    if (errors_ < 0) return "";
    struct stat info {};
    if (::fstat(errors_, &info) != 0) return "";
    constexpr off_t kMost = 300;
    off_t from = std::max<off_t>(0, info.st_size - kMost);
    std::string text(std::size_t(info.st_size - from), '\0');
    ssize_t got = ::pread(errors_, text.data(), text.size(), from);
    text.resize(std::size_t(std::max<ssize_t>(0, got)));
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
}

Exchange WorkerProcess::death(const char* reason, const std::string& detail, int in_flight) {
    Exchange exchange;
    exchange.reason = reason;
    exchange.detail = detail;
    exchange.in_flight = in_flight;
    if (std::string last = complaints(); !last.empty() && exchange.reason == "fault") exchange.detail += ": " + last;
    stop();
    return exchange;
}

Exchange WorkerProcess::exchange(const std::string& request, double silence_s, const std::atomic<int>* interrupts) {
    start();
    std::string line = request + "\n";
    int in_flight = -1;
    // Only what passes from tick to tick counts: a job that was suspended for an hour was not silent for one.
    constexpr double kMostOfTick = 0.2;
    auto last_tick = Clock::now();
    double silent = 0;
    auto interrupted = [&] { return interrupts && interrupts->load() >= 2; };
    std::size_t sent = 0;
    for (;;) {
        if (interrupted()) return death("interrupted", "stopped at the second interrupt", in_flight);
        const auto now = Clock::now();
        silent += std::min(kMostOfTick, std::chrono::duration<double>(now - last_tick).count());
        last_tick = now;
        if (silent > silence_s) return death("timeout", fmt::format("no answer for {:.0f} s", silence_s), in_flight);

        pollfd ready{socket_, short(POLLIN | (sent < line.size() ? POLLOUT : 0)), 0};
        int tick_ms = std::clamp(int((silence_s - silent) * 1000) + 1, 1, 50);
        int count = ::poll(&ready, 1, tick_ms);
        if (count <= 0) continue;
        if ((ready.revents & POLLOUT) && sent < line.size()) {
            ssize_t done = ::send(socket_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (done > 0) sent += std::size_t(done);
        }
        if (!(ready.revents & (POLLIN | POLLHUP | POLLERR))) continue;
        char bytes[65536];
        ssize_t got = ::recv(socket_, bytes, sizeof bytes, MSG_DONTWAIT);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (got <= 0) {
            // Its memory is torn down after its sockets: the end is near, but not yet there.
            int status = wait_for(pid_);
            pid_ = -1;
            return death(was_killed(status) ? "killed" : "fault", describe_status(status), in_flight);
        }
        silent = 0;
        received_.append(bytes, std::size_t(got));
        for (std::size_t end; (end = received_.find('\n')) != std::string::npos;) {
            std::string word = received_.substr(0, end);
            received_.erase(0, end + 1);
            if (!word.empty() && word[0] == kAnnouncement) {
                in_flight = std::atoi(word.c_str() + 1);
                continue;
            }
            Exchange answer;
            answer.answer = std::move(word);
            answer.in_flight = in_flight;
            if (answer.answer.empty() || answer.answer[0] != '{')
                return death("fault", "the worker wrote something that is no answer", in_flight);
            return answer;
        }
    }
}

}  // namespace turbotune
