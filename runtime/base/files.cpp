#include "turbotune/base/files.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <utility>
#include <vector>

namespace turbotune {

namespace {

int open_retrying(const char* path, int flags, unsigned mode = 0) {
    return uninterrupted([&] { return ::open(path, flags | O_CLOEXEC, mode); });
}

// Closes on scope exit and leaves errno as it was.
class Descriptor {
  public:
    explicit Descriptor(int number) : number_(number) {}
    ~Descriptor() { close_now(); }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int get() const { return number_; }
    // 0 or the errno of close, which is where a network file system reports a full disk.
    int close_now() {
        if (number_ < 0) return 0;
        const int saved = errno;
        const int failed = ::close(std::exchange(number_, -1)) != 0 && errno != EINTR ? errno : 0;
        errno = saved;
        return failed;
    }

  private:
    int number_;
};

std::string directory_of(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    if (slash == std::string::npos) return ".";
    return slash == 0 ? "/" : path.substr(0, slash);
}

// Unique among processes, threads, calls, and hosts that share the directory.
std::string temporary_path(const std::string& directory) {
    static std::atomic<std::uint64_t> counter{0};
    std::random_device random;
    return directory + "/.tmp-" + std::to_string(::getpid()) + "-" + std::to_string(::syscall(SYS_gettid)) + "-" +
           std::to_string(counter.fetch_add(1)) + "-" + std::to_string(random());
}

int write_all(int descriptor, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t written = uninterrupted([&] { return ::write(descriptor, bytes.data(), bytes.size()); });
        if (written < 0) return errno;
        bytes.remove_prefix(static_cast<std::size_t>(written));
    }
    return 0;
}

int sync_descriptor(int descriptor) {
    return uninterrupted([&] { return ::fsync(descriptor); }) == 0 ? 0 : errno;
}

int write_and_sync(const std::string& path, std::string_view bytes, unsigned mode) {
    Descriptor file(open_retrying(path.c_str(), O_WRONLY | O_CREAT | O_EXCL, mode));
    if (file.get() < 0) return errno;
    int failed = write_all(file.get(), bytes);
    if (failed == 0) failed = sync_descriptor(file.get());
    const int close_failed = file.close_now();
    return failed != 0 ? failed : close_failed;
}

// Some file systems cannot sync a directory, and a directory may be writable but not readable: the
// rename itself has then still happened in order.
int sync_directory(const std::string& path) {
    Descriptor directory(open_retrying(path.c_str(), O_RDONLY | O_DIRECTORY));
    if (directory.get() < 0) return 0;
    const int failed = sync_descriptor(directory.get());
    return failed == EINVAL || failed == ENOTSUP || failed == EBADF || failed == EROFS ? 0 : failed;
}

bool has_type(const std::string& path, mode_t type) {
    struct stat status;
    return uninterrupted([&] { return ::stat(path.c_str(), &status); }) == 0 && (status.st_mode & S_IFMT) == type;
}

}  // namespace

std::optional<std::string> read_file(const std::string& path) {
    // Non-blocking, so that a named pipe without a writer does not hold us.
    Descriptor file(open_retrying(path.c_str(), O_RDONLY | O_NONBLOCK));
    if (file.get() < 0) return std::nullopt;
    struct stat status;
    if (uninterrupted([&] { return ::fstat(file.get(), &status); }) != 0) return std::nullopt;
    if (!S_ISREG(status.st_mode)) {  // pipes and devices have no end to wait for
        errno = S_ISDIR(status.st_mode) ? EISDIR : ENOTSUP;
        return std::nullopt;
    }
    // One byte more than the size, so that the end is seen without growing.
    // (A file of /proc says 0 and has more.)
    std::string bytes(std::max<std::size_t>(4096, static_cast<std::size_t>(status.st_size) + 1), '\0');
    std::size_t used = 0;
    for (;;) {
        if (used == bytes.size()) bytes.resize(2 * bytes.size());
        const ssize_t got = uninterrupted([&] { return ::read(file.get(), bytes.data() + used, bytes.size() - used); });
        if (got < 0) return std::nullopt;
        if (got == 0) break;
        used += static_cast<std::size_t>(got);
    }
    bytes.resize(used);
    return bytes;
}

int write_file_atomic(const std::string& path, std::string_view bytes, unsigned mode) {
    const std::string directory = directory_of(path);
    const std::string temporary = temporary_path(directory);
    int failed = write_and_sync(temporary, bytes, mode);
    if (failed == 0 && uninterrupted([&] { return ::rename(temporary.c_str(), path.c_str()); }) != 0) failed = errno;
    if (failed != 0) {
        uninterrupted([&] { return ::unlink(temporary.c_str()); });
        errno = failed;
        return failed;
    }
    return sync_directory(directory);
}

int make_directories(const std::string& path, unsigned mode) {
    for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
        const std::string prefix = path.substr(0, end);
        if (uninterrupted([&] { return ::mkdir(prefix.c_str(), mode); }) != 0) {
            const int failed = errno;
            if (!directory_exists(prefix)) return failed == EEXIST ? ENOTDIR : failed;
        }
        if (end == std::string::npos) return 0;
    }
}

bool file_exists(const std::string& path) {
    return has_type(path, S_IFREG);
}

bool directory_exists(const std::string& path) {
    return has_type(path, S_IFDIR);
}

std::optional<std::string> environment(const char* name) {
    const char* value = std::getenv(name);
    if (!value || !*value) return std::nullopt;
    return std::string(value);
}

std::optional<std::string> home_directory() {
    std::optional<std::string> home = environment("HOME");
    if (!home) {
        std::vector<char> buffer(16384);
        passwd entry{}, *found = nullptr;
        if (::getpwuid_r(::getuid(), &entry, buffer.data(), buffer.size(), &found) == 0 && found && found->pw_dir) {
            home = found->pw_dir;
        }
    }
    if (!home || home->front() != '/' || home->find_first_not_of('/') == std::string::npos) return std::nullopt;
    return home;
}

}  // namespace turbotune
