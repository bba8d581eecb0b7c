// Deals workloads to the devices of a sweep, each the next as soon as it is free.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <vector>

namespace turbotune {

class WorkQueue {
  public:
    explicit WorkQueue(std::size_t items) : items_(items) {}

    // What the device does next; done() or hand_over() must follow. Waits while nothing is left but others are at work,
    // for what they may hand over. Nothing: the work is over.
    std::optional<std::size_t> take(int device);
    void done();
    // The device could not do it: another one gets it. False when another one could not either; then it is done().
    bool hand_over(std::size_t item, int device);
    // Nothing is dealt any more.
    void stop();

    // Not dealt yet; the number of items when all are.
    std::size_t next() const;
    bool anything_left() const;

  private:
    struct Returned {
        std::size_t item;
        int by;
    };

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::size_t items_, next_ = 0;
    int at_work_ = 0;
    bool stopped_ = false;
    std::vector<Returned> returned_;
    std::vector<std::size_t> second_try_;  // items that were returned once
};

}  // namespace turbotune
