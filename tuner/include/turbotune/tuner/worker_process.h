// The worker as its parent sees it: a process that answers one line with one line, or dies.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <string>

namespace turbotune {

struct Exchange {
    std::string answer;  // one line; empty when the worker died
    std::string reason;  // then "fault", "killed" (from outside), "timeout" or "interrupted"
    std::string detail;  // "killed by signal 11 (Segmentation fault)", and what it last wrote to standard error
    int in_flight = -1;  // index that the worker last announced
    bool died() const { return answer.empty(); }
};

class WorkerProcess {
  public:
    // Runs `program worker --device D` when first needed.
    WorkerProcess(std::string program, std::string device);
    ~WorkerProcess();
    WorkerProcess(const WorkerProcess&) = delete;
    WorkerProcess& operator=(const WorkerProcess&) = delete;

    // Starts the process if none runs. Throws InvalidArgument when the program cannot be started.
    void start();
    // Sends a line and waits for the answer. A worker that says nothing for `silence_s`, announcements included, is
    // killed; so is one at the second interrupt.
    Exchange exchange(const std::string& request, double silence_s, const std::atomic<int>* interrupts);
    // Kills the process, if one runs.
    void stop();
    bool running() const { return pid_ > 0; }
    // Waits for a worker that said it would leave.
    void reap();
    pid_t pid() const { return pid_; }
    int starts() const { return starts_; }

  private:
    Exchange death(const char* reason, const std::string& detail, int in_flight);
    std::string complaints() const;  // the end of the worker's standard error
    void forget();

    std::string program_, device_;
    pid_t pid_ = -1;
    int socket_ = -1;
    int errors_ = -1;  // memory file behind the worker's standard error
    int starts_ = 0;
    std::string received_;  // bytes behind the last whole line
};

// Announcements: a line "@ INDEX", sent before a candidate's sample or case.
inline constexpr char kAnnouncement = '@';

}  // namespace turbotune
