#include "compile_ahead.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "device_failure.h"
#include "thread_group.h"

namespace turbotune {

namespace {

// One candidate while its kernels are compiled, each in a task of its own.
struct Pending {
    CompileResult result;
    int open = 0;
    bool reported = false;
};

// The state of one compile() call: tasks may outlive it when it stops early.
struct Batch {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Pending> pending;
    bool abandoned = false;
};

}  // namespace

CompileAhead::CompileAhead(Store::Options store, int threads) : cache_(std::move(store)) {
    threads_ = start_threads(std::max(1, threads), [this] { work(); });
}

CompileAhead::~CompileAhead() {
    {
        std::lock_guard lock(mutex_);
        leaving_ = true;
        urgent_.clear();
        idle_.clear();
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

bool CompileAhead::useful() {
    return !cache_.store().directory().empty();
}

void CompileAhead::work() {
    for (;;) {
        Task task;
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [&] { return leaving_ || !urgent_.empty() || !idle_.empty(); });
            if (leaving_) return;
            std::deque<Task>& queue = urgent_.empty() ? idle_ : urgent_;
            task = std::move(queue.front());
            queue.pop_front();
        }
        task();
    }
}

CompileResult CompileAhead::prepare(const std::vector<KernelSpec>& specs) {
    CompileResult result;
    for (const KernelSpec& spec : specs) {
        try {
            KernelOrigin origin = KernelOrigin::memory;
            KernelMetadata metadata = cache_.prepare(spec, &origin);
            if (origin == KernelOrigin::compiled) {
                ++result.compiled;
                result.compile_ms += metadata.compile_ms;
            } else {
                ++result.found;
            }
        } catch (...) {
            CandidateFailure failure = describe_failure(std::current_exception());
            // Nothing was launched yet: a template or parameter that cannot be rendered counts here too.
            result.reason = failure.reason == "launch_error" ? "compile_error" : failure.reason;
            result.detail = failure.detail;
            return result;
        }
    }
    return result;
}

void CompileAhead::compile(const std::vector<std::vector<KernelSpec>>& candidates,
                           const std::function<void(int, const CompileResult&)>& done,
                           const std::function<bool()>& stop) {
    auto batch = std::make_shared<Batch>();
    batch->pending.resize(candidates.size());
    {
        std::lock_guard lock(mutex_);
        for (std::size_t c = 0; c < candidates.size(); ++c) {
            batch->pending[c].open = int(candidates[c].size());
            for (const KernelSpec& spec : candidates[c]) {
                urgent_.push_back([this, batch, c, spec] {
                    {
                        std::lock_guard guard(batch->mutex);
                        if (batch->abandoned) return;
                    }
                    CompileResult one = prepare({spec});
                    std::lock_guard guard(batch->mutex);
                    Pending& pending = batch->pending[c];
                    if (pending.result.reason.empty())
                        pending.result.reason = one.reason, pending.result.detail = one.detail;
                    pending.result.compiled += one.compiled;
                    pending.result.found += one.found;
                    pending.result.compile_ms += one.compile_ms;
                    --pending.open;
                    batch->changed.notify_all();
                });
            }
        }
    }
    changed_.notify_all();

    std::unique_lock lock(batch->mutex);
    for (std::size_t reported = 0; reported < candidates.size();) {
        for (std::size_t c = 0; c < candidates.size(); ++c) {
            Pending& pending = batch->pending[c];
            if (pending.reported || pending.open > 0) continue;
            pending.reported = true;
            ++reported;
            CompileResult result = pending.result;
            lock.unlock();
            done(int(c), result);
            lock.lock();
        }
        if (stop()) {
            batch->abandoned = true;
            return;
        }
        if (reported < candidates.size()) batch->changed.wait_for(lock, std::chrono::milliseconds(50));
    }
}

void CompileAhead::prefetch(std::function<std::vector<KernelSpec>()> specs) {
    std::lock_guard lock(mutex_);
    idle_.push_back([this, specs = std::move(specs)] {
        std::vector<KernelSpec> wanted;
        try {
            wanted = specs();
        } catch (...) {
            return;  // compile() meets the same failure, and reports it
        }
        std::lock_guard guard(mutex_);
        if (leaving_) return;
        for (KernelSpec& spec : wanted) idle_.push_back([this, one = std::move(spec)] { prepare({one}); });
        changed_.notify_all();
    });
    changed_.notify_one();
}

}  // namespace turbotune
