#include "file_calls.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <mutex>

namespace turbotune::test {

namespace {

struct State {
    std::mutex mutex;
    Fault fault;
    int calls = 0;
    std::string failed;
    std::array<bool, 4096> inside{};  // descriptors of files below the folder
};

std::atomic<bool> armed{false};

State& state() {
    static auto* instance = new State;  // outlives what closes files at exit
    return *instance;
}

bool below(const char* path) {
    const std::string& folder = state().fault.folder;
    const std::string text = path;
    return text.compare(0, folder.size(), folder) == 0 && (text.size() == folder.size() || text[folder.size()] == '/');
}

bool known(int descriptor) {
    return descriptor >= 0 && std::size_t(descriptor) < state().inside.size() &&
           state().inside[std::size_t(descriptor)];
}

// A read-only file system, or a full one, still lets itself be read.
bool only_writes(int error) {
    return error == EROFS || error == ENOSPC || error == EDQUOT;
}

// Whether this call is to fail. `writes`: it changes what is on disk.
bool fails(const char* name, const std::string& where, bool writes) {
    State& s = state();
    ++s.calls;
    // No signal comes for ever.
    const int last = !s.fault.for_good ? s.fault.at : s.fault.error == EINTR ? s.fault.at + 4 : INT_MAX;
    const bool now = s.fault.at > 0 && s.calls >= s.fault.at && s.calls <= last;
    if (!now || (only_writes(s.fault.error) && !writes)) return false;
    if (s.failed.empty()) s.failed = std::string(name) + " " + where;
    errno = s.fault.error;
    return true;
}

bool path_fails(const char* name, const char* path, bool writes) {
    if (!armed) return false;
    const std::lock_guard lock(state().mutex);
    return below(path) && fails(name, path, writes);
}

bool file_fails(const char* name, int descriptor, bool writes) {
    if (!armed) return false;
    const std::lock_guard lock(state().mutex);
    return known(descriptor) && fails(name, "descriptor " + std::to_string(descriptor), writes);
}

void note(int descriptor, const char* path) {
    if (!armed || descriptor < 0) return;
    const std::lock_guard lock(state().mutex);
    if (std::size_t(descriptor) < state().inside.size()) state().inside[std::size_t(descriptor)] = below(path);
}

template <typename Function>
Function* next(const char* name, Function*) {
    return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

FileCalls::FileCalls(Fault fault) {
    const std::lock_guard lock(state().mutex);
    state().fault = std::move(fault);
    state().calls = 0;
    state().failed.clear();
    state().inside.fill(false);
    armed = true;
}

FileCalls::~FileCalls() {
    armed = false;
}

int FileCalls::count() const {
    const std::lock_guard lock(state().mutex);
    return state().calls;
}

std::string FileCalls::failed() const {
    const std::lock_guard lock(state().mutex);
    return state().failed;
}

}  // namespace turbotune::test

using turbotune::test::file_fails;
using turbotune::test::next;
using turbotune::test::note;
using turbotune::test::path_fails;

#define REAL(name) static auto* const real = next(#name, &::name)

extern "C" {

int open(const char* path, int flags, ...) {
    mode_t mode = 0;
    if ((flags & (O_CREAT | O_TMPFILE)) != 0) {
        va_list arguments;
        va_start(arguments, flags);
        mode = va_arg(arguments, mode_t);
        va_end(arguments);
    }
    REAL(open);
    if (path_fails("open", path, (flags & (O_CREAT | O_WRONLY | O_RDWR)) != 0)) return -1;
    const int descriptor = real(path, flags, mode);
    note(descriptor, path);
    return descriptor;
}

// Fails after it has closed, as the real one does: a file system tells of a lost write here.
int close(int descriptor) {
    REAL(close);
    const bool fault = file_fails("close", descriptor, true);
    const int error = errno;
    note(descriptor, "");
    const int result = real(descriptor);
    if (!fault) return result;
    errno = error;
    return -1;
}

ssize_t read(int descriptor, void* bytes, size_t count) {
    REAL(read);
    return file_fails("read", descriptor, false) ? -1 : real(descriptor, bytes, count);
}

ssize_t write(int descriptor, const void* bytes, size_t count) {
    REAL(write);
    return file_fails("write", descriptor, true) ? -1 : real(descriptor, bytes, count);
}

ssize_t pread(int descriptor, void* bytes, size_t count, off_t offset) {
    REAL(pread);
    return file_fails("pread", descriptor, false) ? -1 : real(descriptor, bytes, count, offset);
}

ssize_t pwrite(int descriptor, const void* bytes, size_t count, off_t offset) {
    REAL(pwrite);
    return file_fails("pwrite", descriptor, true) ? -1 : real(descriptor, bytes, count, offset);
}

int fsync(int descriptor) {
    REAL(fsync);
    return file_fails("fsync", descriptor, true) ? -1 : real(descriptor);
}

int ftruncate(int descriptor, off_t size) noexcept {
    REAL(ftruncate);
    return file_fails("ftruncate", descriptor, true) ? -1 : real(descriptor, size);
}

int flock(int descriptor, int operation) noexcept {
    REAL(flock);
    return file_fails("flock", descriptor, false) ? -1 : real(descriptor, operation);
}

int futimens(int descriptor, const struct timespec times[2]) noexcept {
    REAL(futimens);
    return file_fails("futimens", descriptor, true) ? -1 : real(descriptor, times);
}

int fstat(int descriptor, struct stat* status) noexcept {
    static auto* const real = reinterpret_cast<int (*)(int, struct stat*)>(::dlsym(RTLD_NEXT, "fstat"));
    return file_fails("fstat", descriptor, false) ? -1 : real(descriptor, status);
}

int stat(const char* path, struct stat* status) noexcept {
    static auto* const real = reinterpret_cast<int (*)(const char*, struct stat*)>(::dlsym(RTLD_NEXT, "stat"));
    return path_fails("stat", path, false) ? -1 : real(path, status);
}

int lstat(const char* path, struct stat* status) noexcept {
    static auto* const real = reinterpret_cast<int (*)(const char*, struct stat*)>(::dlsym(RTLD_NEXT, "lstat"));
    return path_fails("lstat", path, false) ? -1 : real(path, status);
}

int access(const char* path, int mode) noexcept {
    REAL(access);
    return path_fails("access", path, (mode & W_OK) != 0) ? -1 : real(path, mode);
}

int mkdir(const char* path, mode_t mode) noexcept {
    REAL(mkdir);
    return path_fails("mkdir", path, true) ? -1 : real(path, mode);
}

int rename(const char* from, const char* to) noexcept {
    REAL(rename);
    return path_fails("rename", from, true) ? -1 : real(from, to);
}

int unlink(const char* path) noexcept {
    REAL(unlink);
    return path_fails("unlink", path, true) ? -1 : real(path);
}

DIR* opendir(const char* path) {
    REAL(opendir);
    return path_fails("opendir", path, false) ? nullptr : real(path);
}
}
