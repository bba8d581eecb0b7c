#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <thread>
#include <utility>

#include "turbotune/base/files.h"

namespace turbotune {

namespace {

using Clock = std::chrono::steady_clock;

// Another user's lock file may only be readable, which is enough for flock.
int open_lock_file(const std::string& path) {
    const int descriptor = uninterrupted([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644); });
    if (descriptor >= 0 || (errno != EACCES && errno != EROFS)) return descriptor;
    return uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); });
}

// Somebody may have cleared the directory since the file was opened: the lock is then on a file that no
// newcomer can see.
bool still_at(int descriptor, const std::string& path) {
    struct stat open_file, named_file;
    return uninterrupted([&] { return ::fstat(descriptor, &open_file); }) == 0 &&
           uninterrupted([&] { return ::stat(path.c_str(), &named_file); }) == 0 &&
           open_file.st_dev == named_file.st_dev && open_file.st_ino == named_file.st_ino;
}

void write_pid(int descriptor) {
    const std::string text = std::to_string(::getpid()) + "\n";
    if (::ftruncate(descriptor, 0) != 0) return;
    // Only a help for whoever waits: a file that cannot be written is no fault of the lock.
    [[maybe_unused]] const ssize_t written = ::pwrite(descriptor, text.data(), text.size(), 0);
}

// 0 when the file does not say.
int read_pid(int descriptor) {
    char text[32] = {};
    if (::pread(descriptor, text, sizeof text - 1, 0) <= 0) return 0;
    return static_cast<int>(std::strtol(text, nullptr, 10));
}

enum class Attempt { taken, busy, failed };

Attempt try_lock(int descriptor) {
    if (uninterrupted([&] { return ::flock(descriptor, LOCK_EX | LOCK_NB); }) == 0) return Attempt::taken;
    return errno == EWOULDBLOCK ? Attempt::busy : Attempt::failed;
}

}  // namespace

FileLock::~FileLock() {
    release();
}

FileLock::FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
    if (this != &other) {
        release();
        descriptor_ = std::exchange(other.descriptor_, -1);
    }
    return *this;
}

FileLock FileLock::acquire(const std::string& path, std::chrono::milliseconds wait,
                           void (*on_slow)(const std::string& path, int holder_pid)) {
    constexpr auto kSlow = std::chrono::seconds(5);
    constexpr auto kLongestPause = std::chrono::milliseconds(50);
    const Clock::time_point began = Clock::now();
    auto pause = std::chrono::milliseconds(1);
    FileLock lock;
    for (;;) {
        if (lock.descriptor_ < 0) lock.descriptor_ = open_lock_file(path);
        if (lock.descriptor_ < 0) return lock;
        const Attempt attempt = try_lock(lock.descriptor_);
        if (attempt == Attempt::taken && still_at(lock.descriptor_, path)) {
            write_pid(lock.descriptor_);
            return lock;
        }
        const auto waited = Clock::now() - began;
        if (attempt == Attempt::failed || waited >= wait) {
            ::close(std::exchange(lock.descriptor_, -1));
            return lock;
        }
        if (attempt == Attempt::taken || !still_at(lock.descriptor_, path)) {
            ::close(std::exchange(lock.descriptor_, -1));
            continue;
        }
        if (on_slow && waited >= kSlow) std::exchange(on_slow, nullptr)(path, read_pid(lock.descriptor_));
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(wait - waited);
        std::this_thread::sleep_for(
            std::clamp(pause, std::chrono::milliseconds(1), std::max(left, std::chrono::milliseconds(1))));
        pause = std::min(2 * pause, kLongestPause);
    }
}

void FileLock::release() {
    if (descriptor_ < 0) return;
    // Emptied, so that the next holder is not taken for this process. Unlocked by name, because a child
    // that was forked meanwhile holds a copy of the descriptor.
    [[maybe_unused]] const int emptied = ::ftruncate(descriptor_, 0);
    ::flock(descriptor_, LOCK_UN);
    ::close(std::exchange(descriptor_, -1));
}

}  // namespace turbotune
