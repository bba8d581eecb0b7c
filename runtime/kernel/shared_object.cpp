#include "shared_object.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string_view>

#include "failed_source.h"
#include "turbotune/base/error.h"
#include "turbotune/base/files.h"

namespace turbotune {
namespace {

// The loader takes a path that it has seen for the library that it holds, and descriptor numbers come again. The bits
// of a counter, written as "./" or "/", make every spelling of the same path another one.
std::string fresh_path(int descriptor) {
    static std::atomic<std::uint64_t> counter{0};
    std::string path = "/proc/self/";
    for (std::uint64_t bits = counter.fetch_add(1); bits != 0; bits >>= 1) path += (bits & 1) != 0 ? "./" : "/";
    return path + fmt::format("fd/{}", descriptor);
}

bool write_all(int descriptor, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return false;
        bytes.remove_prefix(static_cast<std::size_t>(written));
    }
    return true;
}

void* open_in_memory(const std::string& bytes) {
    const int descriptor = ::memfd_create("turbotune-kernel", MFD_CLOEXEC);
    if (descriptor < 0) return nullptr;
    void* handle = nullptr;
    if (write_all(descriptor, bytes)) handle = ::dlopen(fresh_path(descriptor).c_str(), RTLD_NOW | RTLD_LOCAL);
    ::close(descriptor);
    return handle;
}

// Where /proc is not mounted or memory files may not be executed.
void* open_in_private_folder(const std::string& bytes) {
    std::string folder = temp_directory() + "/turbotune-XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr) return nullptr;
    const std::string path = folder + "/kernel.so";
    void* handle = nullptr;
    if (write_file_atomic(path, bytes, 0700) == 0) handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    ::unlink(path.c_str());
    ::rmdir(folder.c_str());
    return handle;
}

}  // namespace

SharedObject::SharedObject(const std::string& bytes) {
    handle_ = open_in_memory(bytes);
    if (handle_ == nullptr) handle_ = open_in_private_folder(bytes);
    if (handle_ != nullptr) return;
    const char* why = ::dlerror();
    throw DeviceError(std::string("a host kernel cannot be loaded: ") + (why != nullptr ? why : "no place for it"));
}

SharedObject::~SharedObject() {
    ::dlclose(handle_);
}

void* SharedObject::symbol(const std::string& name) const {
    return ::dlsym(handle_, name.c_str());
}

}  // namespace turbotune
