// Compiles candidates' kernels on several threads before the worker needs them. The store carries the images to the
// worker; without one the worker compiles by itself.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "turbotune/kernel/kernel_cache.h"

namespace turbotune {

struct CompileResult {
    std::string reason, detail;   // a rejection; empty reason: every kernel is there
    int compiled = 0, found = 0;  // kernels from the compiler, and from the store
    double compile_ms = 0;        // sum over the compiled
};

class CompileAhead {
  public:
    CompileAhead(Store::Options store, int threads);
    ~CompileAhead();

    // False when images cannot reach the worker.
    bool useful();

    // Compiles each candidate's kernels, ahead of what prefetch() queued; `done` is called in this thread as each is
    // complete. Stops early, without the rest, when `stop` says so.
    void compile(const std::vector<std::vector<KernelSpec>>& candidates,
                 const std::function<void(int candidate, const CompileResult&)>& done,
                 const std::function<bool()>& stop);

    // Runs `specs` and compiles what it returns, when the threads have nothing else to do. Failures are left for
    // compile() to meet again.
    void prefetch(std::function<std::vector<KernelSpec>()> specs);

  private:
    using Task = std::function<void()>;
    void work();
    CompileResult prepare(const std::vector<KernelSpec>& specs);

    KernelCache cache_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Task> urgent_, idle_;
    bool leaving_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace turbotune
