#include "nvrtc.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <mutex>

#include "elf_file.h"
#include "loader_paths.h"
#include "turbotune/base/error.h"
#include "turbotune/base/files.h"
#include "turbotune/kernel/compiler.h"

namespace turbotune::nvrtc {
namespace {

std::atomic<bool> is_loaded{false};

std::string join(const std::vector<std::string>& words) {
    return fmt::format("{}", fmt::join(words, ", "));
}

std::string real_path(const std::string& path) {
    std::error_code error;
    const auto real = std::filesystem::canonical(path, error);
    return error ? path : real.string();
}

bool is_version(const std::string& text) {
    return !text.empty() && text.find_first_not_of("0123456789.") == std::string::npos;
}

// "13.0.88" from the name of the file where distributions keep it there (libnvrtc.so.13.0.88), else from the
// library's own text, else what the soname tells.
std::string version_of(const std::string& path) {
    const std::string name = std::filesystem::path(real_path(path)).filename().string();
    const auto at = name.find(".so.");
    const std::string suffix = at == std::string::npos ? "" : name.substr(at + 4);
    if (is_version(suffix) && std::count(suffix.begin(), suffix.end(), '.') >= 2) return suffix;
    const std::string text = elf_text_after(path, "Cuda compilation tools, release ");  // "13.0, V13.0.88"
    const auto comma = text.find(", V");
    if (comma != std::string::npos && is_version(text.substr(comma + 3))) return text.substr(comma + 3);
    return is_version(suffix) ? suffix : "unknown";
}

bool accept(LibraryFile& file, const std::string& path) {
    file.looked.push_back(path);
    if (!is_native_elf(path)) return false;
    file.path = path;
    return true;
}

bool look_for(LibraryFile& file, const std::string& soname) {
    for (const std::string& directory : library_path_directories()) {
        if (accept(file, directory + "/" + soname)) return true;
    }
    for (const std::string& path : loader_cache_files(soname)) {
        if (accept(file, path)) return true;
    }
    for (const std::string& directory : toolkit_directories()) {
        if (accept(file, directory + "/" + soname)) return true;
    }
    return false;
}

LibraryFile find_library() {
    LibraryFile file;
    if (const auto named = environment("TURBOTUNE_NVRTC")) {
        accept(file, *named);
    } else if (!look_for(file, "libnvrtc.so.13")) {
        look_for(file, "libnvrtc.so.12");
    }
    if (file.path.empty()) return file;
    file.path = std::filesystem::absolute(file.path).string();
    file.version = version_of(file.path);
    file.fingerprint = file_fingerprint(file.path);
    return file;
}

template <class Function>
void resolve(void* handle, const std::string& path, const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(::dlsym(handle, name));
    if (function == nullptr) throw CompileError("NVRTC: " + path + " has no " + name);
}

// NVRTC opens its builtins by bare name, so they must be in the process before the first compile. Only those that lie
// beside the library belong to the same build.
std::string load_builtins(const std::string& path, int major, int minor) {
    const std::string name = fmt::format("libnvrtc-builtins.so.{}.{}", major, minor);
    std::vector<std::string> looked;
    for (const std::string& library : {path, real_path(path)}) {
        const std::string directory = std::filesystem::path(library).parent_path().string();
        if (!looked.empty() && looked.front() == directory) continue;
        looked.push_back(directory);
        const std::string file = directory + "/" + name;
        if (!file_exists(file)) continue;
        if (::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr) return {};
        const char* why = ::dlerror();
        return fmt::format("{} cannot be loaded: {}", file, why != nullptr ? why : "unknown reason");
    }
    return fmt::format("{} is missing: looked in {}, beside {}", name, join(looked),
                       std::filesystem::path(path).filename().string());
}

// "sm_90a" and "sm_100f" exist beside the plain names from 9.0 and 10.0 on.
std::vector<std::string> read_targets(const Functions& functions) {
    int count = 0;
    if (functions.GetNumSupportedArchs(&count) != 0 || count <= 0) return {};
    std::vector<int> archs(static_cast<std::size_t>(count));
    if (functions.GetSupportedArchs(archs.data()) != 0) return {};
    std::vector<std::string> targets;
    for (const int arch : archs) {
        targets.push_back(fmt::format("sm_{}", arch));
        if (arch >= 90) targets.push_back(fmt::format("sm_{}a", arch));
        if (arch >= 100) targets.push_back(fmt::format("sm_{}f", arch));
    }
    return targets;
}

Library load_library() {
    const LibraryFile& file = library_file();
    if (file.path.empty()) throw CompileError("NVRTC was not found: looked for " + join(file.looked));
    void* handle = ::dlopen(file.path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        const char* why = ::dlerror();
        throw CompileError("NVRTC cannot be loaded: " + std::string(why != nullptr ? why : file.path));
    }
    Library library;
    Functions& f = library.functions;
    resolve(handle, file.path, "nvrtcVersion", f.Version);
    resolve(handle, file.path, "nvrtcGetNumSupportedArchs", f.GetNumSupportedArchs);
    resolve(handle, file.path, "nvrtcGetSupportedArchs", f.GetSupportedArchs);
    resolve(handle, file.path, "nvrtcGetErrorString", f.GetErrorString);
    resolve(handle, file.path, "nvrtcCreateProgram", f.CreateProgram);
    resolve(handle, file.path, "nvrtcDestroyProgram", f.DestroyProgram);
    resolve(handle, file.path, "nvrtcCompileProgram", f.CompileProgram);
    resolve(handle, file.path, "nvrtcGetCUBINSize", f.GetCUBINSize);
    resolve(handle, file.path, "nvrtcGetCUBIN", f.GetCUBIN);
    resolve(handle, file.path, "nvrtcGetProgramLogSize", f.GetProgramLogSize);
    resolve(handle, file.path, "nvrtcGetProgramLog", f.GetProgramLog);
    int major = 0, minor = 0;
    f.Version(&major, &minor);
    library.builtins_problem = load_builtins(file.path, major, minor);
    library.targets = read_targets(f);
    is_loaded = true;
    return library;
}

}  // namespace

const LibraryFile& library_file() {
    static const LibraryFile file = find_library();
    return file;
}

const Library& library() {
    static const Library* library = new Library(load_library());  // a throw leaves it to the next call
    return *library;
}

bool loaded() {
    return is_loaded;
}

}  // namespace turbotune::nvrtc
