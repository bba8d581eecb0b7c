// The few file operations that the store, the journal and the profiles are built from.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace turbotune {

// A system call (0 or more, or -1 with errno), made again for as long as a signal interrupts it. Network file systems
// interrupt even those that POSIX says are not.
template <typename Call>
auto uninterrupted(Call&& call) {
    auto result = call();
    while (result == -1 && errno == EINTR) result = call();
    return result;
}

// Whole regular file as bytes; nullopt with errno set when it cannot be read (ENOTSUP: a pipe or device).
std::optional<std::string> read_file(const std::string& path);

// Temp file in the same directory, fsync, rename, fsync of the directory: a reader sees the old
// file or the new one, never a part. Returns 0, or the errno of the step that failed, after
// removing the temp file; the old file is then unchanged (unless only the last step failed). A process
// killed half way leaves a file called ".tmp-...", which nobody reads.
int write_file_atomic(const std::string& path, std::string_view bytes, unsigned mode = 0644);

// Creates every missing directory of the path. 0 or errno.
int make_directories(const std::string& path, unsigned mode = 0755);

bool file_exists(const std::string& path);
bool directory_exists(const std::string& path);

// Owner of an advisory flock(2) on a file that is created if needed and never removed, so that a
// killed holder leaves nothing to clean up.
class FileLock {
  public:
    FileLock() = default;
    ~FileLock();
    FileLock(FileLock&& other) noexcept;
    FileLock& operator=(FileLock&& other) noexcept;
    FileLock(const FileLock&) = delete;
    FileLock& operator=(const FileLock&) = delete;

    // Waits at most `wait`; an unheld lock when it could not be had (or the file not opened).
    // The holder's pid is written into the file, and `on_slow` is called once with it after 5 s.
    static FileLock acquire(const std::string& path, std::chrono::milliseconds wait,
                            void (*on_slow)(const std::string& path, int holder_pid) = nullptr);
    bool held() const { return descriptor_ >= 0; }
    void release();

  private:
    int descriptor_ = -1;
};

// Value of an environment variable; nullopt when unset or empty.
std::optional<std::string> environment(const char* name);

// The user's home from $HOME, else the password database; nullopt for none or "/".
std::optional<std::string> home_directory();

}  // namespace turbotune
