#include "work_queue.h"

#include <algorithm>

namespace turbotune {

std::optional<std::size_t> WorkQueue::take(int device) {
    std::unique_lock lock(mutex_);
    for (;;) {
        if (stopped_) return std::nullopt;
        const auto other =
            std::find_if(returned_.begin(), returned_.end(), [&](const Returned& each) { return each.by != device; });
        if (other != returned_.end()) {
            const std::size_t item = other->item;
            returned_.erase(other);
            ++at_work_;
            return item;
        }
        if (next_ < items_) {
            ++at_work_;
            return next_++;
        }
        if (at_work_ == 0) return std::nullopt;
        changed_.wait(lock);
    }
}

void WorkQueue::done() {
    const std::lock_guard lock(mutex_);
    --at_work_;
    changed_.notify_all();
}

bool WorkQueue::hand_over(std::size_t item, int device) {
    const std::lock_guard lock(mutex_);
    if (std::find(second_try_.begin(), second_try_.end(), item) != second_try_.end()) return false;
    --at_work_;
    changed_.notify_all();
    second_try_.push_back(item);
    returned_.push_back({item, device});
    return true;
}

void WorkQueue::stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
}

std::size_t WorkQueue::next() const {
    const std::lock_guard lock(mutex_);
    return next_;
}

bool WorkQueue::anything_left() const {
    const std::lock_guard lock(mutex_);
    return next_ < items_ || !returned_.empty();
}

}  // namespace turbotune
