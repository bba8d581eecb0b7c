// The CPU device's threads. One pool per process; its size is the number of usable CPUs (affinity
// mask and cgroup quota), or TURBOTUNE_CPU_THREADS.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>

namespace turbotune {

class ThreadPool {
  public:
    static ThreadPool& shared();
    int threads() const;

    // Calls body(context, index, thread) for every index in [0, count), threads taking the next index
    // as they finish, the caller working along; returns when all are done. Calls from several threads
    // take turns. Allocates nothing. A nested call runs in the calling thread.
    using Body = void (*)(void* context, std::size_t index, int thread);
    void run(std::size_t count, Body body, void* context);

    // The same for a callable: calls visit(first, end) for every piece of [0, count) of at most `piece` indices. The
    // first exception is thrown here when all have ended.
    template <class Visit>
    void run_pieces(std::size_t count, std::size_t piece, Visit visit) {
        struct Context {
            std::size_t count, piece;
            Visit* visit;
            std::atomic<bool> failed{false};
            std::exception_ptr error;
        } context{count, piece, &visit, {}, {}};
        run((count + piece - 1) / piece, [](void* shared, std::size_t index, int) {
            Context& c = *static_cast<Context*>(shared);
            const std::size_t first = index * c.piece, left = c.count - first;
            try {
                (*c.visit)(first, first + (left < c.piece ? left : c.piece));
            } catch (...) {
                if (!c.failed.exchange(true)) c.error = std::current_exception();
            }
        }, &context);
        if (context.error) std::rethrow_exception(context.error);
    }

    // At least `bytes` of 64-byte aligned scratch that belongs to `thread` (< threads()) between
    // reserve_scratch calls. reserve_scratch grows it; call it before run, never inside.
    void reserve_scratch(std::size_t bytes);
    std::byte* scratch(int thread);

  private:
    ThreadPool();
    ~ThreadPool();
    struct State;
    State& live_state();
    State* state_;
};

}  // namespace turbotune
