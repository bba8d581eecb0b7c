#include "turbotune/device/thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "cpu_info.h"
#include "turbotune/base/error.h"

namespace turbotune {

namespace {

using Word = std::atomic<std::uint32_t>;
static_assert(sizeof(Word) == 4 && Word::is_always_lock_free, "a futex is a plain 32-bit word");

// Returns when woken, when the word no longer holds `expected`, or for no reason.
void futex_wait(Word& word, std::uint32_t expected) {
    ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void futex_wake(Word& word, int count) {
    ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Spins while `waiting` holds, at most as long as going to sleep and being woken would take.
template <typename Waiting>
void spin_while(Waiting&& waiting) {
    constexpr auto kLongest = std::chrono::microseconds(30);
    const auto began = std::chrono::steady_clock::now();
    while (waiting()) {
        for (int i = 0; i < 8 && waiting(); ++i) pause_briefly();
        if (std::chrono::steady_clock::now() - began > kLongest) return;
    }
}

// This thread's index while it works for the pool; -1 outside.
thread_local int current_thread = -1;

std::atomic<bool> forked{false};

DeviceError out_of_scratch(std::size_t bytes, int threads) {
    return DeviceError("out of memory on the CPU: " + std::to_string(bytes) + " bytes of scratch asked for each of " +
                       std::to_string(threads) + " threads");
}

}  // namespace

// A job is open to workers between two changes of the gate's top bit. A worker that wakes late finds it
// closed and touches nothing, so that the caller waits only for those that came in.
struct ThreadPool::State {
    static constexpr std::uint32_t kClosed = 1u << 31;

    explicit State(int size) : threads(size), scratch(static_cast<std::size_t>(size), nullptr) {}

    const int threads;
    int workers = 0;  // started; fewer than threads - 1 where the system refused one
    std::mutex turn;
    std::vector<std::byte*> scratch;
    std::size_t scratch_bytes = 0;

    // The open job.
    Body body = nullptr;
    void* context = nullptr;
    std::size_t count = 0;
    alignas(64) std::atomic<std::size_t> next{0};

    alignas(64) Word gate{kClosed};  // workers inside, and whether more may come in
    Word caller_sleeps{0};
    alignas(64) Word epoch{0};  // counts jobs; workers sleep on it
    Word sleepers{0};

    void take_indices(int thread) {
        for (std::size_t index; (index = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
            body(context, index, thread);
        }
    }

    void start_workers();
    void work(int thread);
    void wait_for_job(std::uint32_t seen);
    void leave();
    void run(std::size_t indices, Body call, void* argument);
};

void ThreadPool::State::start_workers() {
    // Signals are the application's: its own threads must get them. Faults stay with the thread at fault.
    sigset_t blocked, previous;
    sigfillset(&blocked);
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&blocked, fault);
    ::pthread_sigmask(SIG_SETMASK, &blocked, &previous);
    try {
        for (; workers < threads - 1; ++workers) std::thread(&State::work, this, workers + 1).detach();
    } catch (const std::system_error&) {
        // Fewer workers do the same work.
    }
    ::pthread_sigmask(SIG_SETMASK, &previous, nullptr);
}

void ThreadPool::State::wait_for_job(std::uint32_t seen) {
    spin_while([&] { return epoch.load(std::memory_order_acquire) == seen; });
    if (epoch.load(std::memory_order_acquire) != seen) return;
    sleepers.fetch_add(1);
    while (epoch.load() == seen) futex_wait(epoch, seen);
    sleepers.fetch_sub(1);
}

void ThreadPool::State::leave() {
    if (gate.fetch_sub(1) == kClosed + 1 && caller_sleeps.load() != 0) futex_wake(gate, 1);
}

void ThreadPool::State::work(int thread) {
    current_thread = thread;
    for (std::uint32_t seen = 0;;) {
        wait_for_job(seen);
        seen = epoch.load(std::memory_order_acquire);
        if ((gate.fetch_add(1) & kClosed) == 0) take_indices(thread);
        leave();
    }
}

void ThreadPool::State::run(std::size_t indices, Body call, void* argument) {
    if (workers == 0 || indices == 1) {
        for (std::size_t index = 0; index < indices; ++index) call(argument, index, 0);
        return;
    }
    body = call;
    context = argument;
    count = indices;
    next.store(0, std::memory_order_relaxed);
    gate.fetch_and(~kClosed);
    epoch.fetch_add(1);
    if (sleepers.load() != 0) {
        futex_wake(epoch, static_cast<int>(std::min<std::size_t>(indices - 1, static_cast<std::size_t>(workers))));
    }
    take_indices(0);
    gate.fetch_or(kClosed);
    spin_while([&] { return gate.load(std::memory_order_acquire) != kClosed; });
    if (gate.load(std::memory_order_acquire) == kClosed) return;
    caller_sleeps.store(1);
    for (std::uint32_t inside; (inside = gate.load()) != kClosed;) futex_wait(gate, inside);
    caller_sleeps.store(0);
}

ThreadPool::ThreadPool() : state_(new State(usable_cpu_threads())) {
    ::pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
    state_->start_workers();
}

// The workers sleep until the process ends; the one pool is never destroyed.
ThreadPool::~ThreadPool() = default;

ThreadPool& ThreadPool::shared() {
    static ThreadPool* pool = new ThreadPool;
    return *pool;
}

// A forked child has none of the workers, and a lock that another thread held at the fork stays shut: it
// gets a new state and keeps the scratch.
ThreadPool::State& ThreadPool::live_state() {
    static std::mutex renewing;
    if (forked.load(std::memory_order_acquire)) {
        std::lock_guard<std::mutex> hold(renewing);
        if (forked.load(std::memory_order_acquire)) {
            State* fresh = new State(state_->threads);
            fresh->scratch = state_->scratch;
            fresh->scratch_bytes = state_->scratch_bytes;
            fresh->start_workers();
            state_ = fresh;
            forked.store(false, std::memory_order_release);
        }
    }
    return *state_;
}

int ThreadPool::threads() const {
    return state_->threads;
}

void ThreadPool::run(std::size_t count, Body body, void* context) {
    if (count == 0) return;
    if (current_thread >= 0) {
        for (std::size_t index = 0; index < count; ++index) body(context, index, current_thread);
        return;
    }
    State& state = live_state();
    std::lock_guard<std::mutex> hold(state.turn);
    current_thread = 0;
    state.run(count, body, context);
    current_thread = -1;
}

void ThreadPool::reserve_scratch(std::size_t bytes) {
    State& state = live_state();
    std::lock_guard<std::mutex> hold(state.turn);
    if (bytes <= state.scratch_bytes) return;
    const auto most = static_cast<std::size_t>(total_memory()) / static_cast<std::size_t>(state.threads);
    if (bytes > most) throw out_of_scratch(bytes, state.threads);
    const std::size_t whole = (bytes + 127) / 128 * 128;
    // The old blocks stay until all new ones are there: kernels that reserved them go on working when this fails.
    std::vector<std::byte*> blocks(state.scratch.size(), nullptr);
    for (std::byte*& block : blocks) {
        block = static_cast<std::byte*>(std::aligned_alloc(64, whole));
        if (block) continue;
        for (std::byte* made : blocks) std::free(made);
        throw out_of_scratch(bytes, state.threads);
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) std::free(std::exchange(state.scratch[i], blocks[i]));
    state.scratch_bytes = whole;
}

std::byte* ThreadPool::scratch(int thread) {
    return state_->scratch[static_cast<std::size_t>(thread)];
}

}  // namespace turbotune
