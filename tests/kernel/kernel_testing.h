// What the tests of this room share: folders of their own, environment variables for a while, and processes made of
// this very program that run one hidden test case.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "turbotune/base/files.h"
#include "turbotune/kernel/kernel_spec.h"
#include "turbotune/kernel/store.h"

extern char** environ;

namespace turbotune::testing {

class TempFolder {
  public:
    explicit TempFolder(const std::string& name = "") {
        std::string pattern = std::filesystem::temp_directory_path().string() + "/turbotune-test-XXXXXX";
        root_ = ::mkdtemp(pattern.data());
        path_ = name.empty() ? root_ : root_ + "/" + name;
        std::filesystem::create_directories(path_);
    }
    ~TempFolder() {
        std::error_code error;
        std::filesystem::remove_all(root_, error);
    }
    TempFolder(const TempFolder&) = delete;
    TempFolder& operator=(const TempFolder&) = delete;
    const std::string& path() const { return path_; }
    std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  private:
    std::string root_, path_;
};

class ScopedVariable {
  public:
    ScopedVariable(const char* name, const std::string& value) : name_(name) {
        if (const char* old = std::getenv(name)) old_ = old;
        ::setenv(name, value.c_str(), 1);
    }
    ~ScopedVariable() {
        if (old_)
            ::setenv(name_, old_->c_str(), 1);
        else
            ::unsetenv(name_);
    }
    ScopedVariable(const ScopedVariable&) = delete;
    ScopedVariable& operator=(const ScopedVariable&) = delete;

  private:
    const char* name_;
    std::optional<std::string> old_;
};

inline void write_text(const std::string& path, const std::string& text, unsigned mode = 0644) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
    std::filesystem::permissions(path, static_cast<std::filesystem::perms>(mode));
}

inline std::string read_text(const std::string& path) {
    return read_file(path).value_or("");
}

inline std::vector<std::string> files_below(const std::string& root) {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
        if (!entry.is_directory()) files.push_back(entry.path().string());
    }
    return files;
}

// An empty value removes the variable.
using Variables = std::map<std::string, std::string>;

inline std::string variable(const char* name) {
    return environment(name).value_or("");
}

// Whether this process is a Child. Its test cases are hidden; a runner that names only what it does not want starts
// them all the same, and then they return at once.
inline bool is_child() {
    return !variable("TURBOTUNE_TEST_CHILD").empty();
}

// A process of this program that runs the one test case of that name.
class Child {
  public:
    Child(const std::string& test_case, const Variables& variables) {
        std::vector<std::string> environment;
        for (char** entry = environ; *entry != nullptr; ++entry) {
            const std::string text = *entry;
            if (variables.count(text.substr(0, text.find('='))) == 0) environment.push_back(text);
        }
        for (const auto& [name, value] : variables) {
            if (!value.empty()) environment.push_back(name + "=" + value);
        }
        environment.push_back("TURBOTUNE_TEST_CHILD=1");
        std::vector<char*> pointers;
        for (std::string& text : environment) pointers.push_back(text.data());
        pointers.push_back(nullptr);
        std::string name = test_case, program = "/proc/self/exe";
        program = std::filesystem::canonical(program).string();
        char* arguments[] = {program.data(), name.data(), nullptr};
        posix_spawn_file_actions_t actions;
        ::posix_spawn_file_actions_init(&actions);
        ::posix_spawn_file_actions_addopen(&actions, 1, (log_ / "log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
        ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
        if (::posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, pointers.data()) != 0) pid_ = -1;
        ::posix_spawn_file_actions_destroy(&actions);
    }
    ~Child() {
        if (pid_ <= 0) return;
        ::kill(pid_, SIGKILL);
        wait();
    }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;

    pid_t pid() const { return pid_; }
    // The exit code; 128 + signal when one ended it; 99 when it ran no check (a name that matches no case).
    int wait() {
        if (pid_ <= 0) return -1;
        int status = 0;
        while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
        }
        pid_ = -1;
        if (!WIFEXITED(status)) return 128 + WTERMSIG(status);
        const bool checked = output().find("All tests passed (") != std::string::npos;
        return WEXITSTATUS(status) == 0 && !checked ? 99 : WEXITSTATUS(status);
    }
    std::string output() const { return read_text(log_ / "log"); }

  private:
    TempFolder log_;
    pid_t pid_ = -1;
};

// An image whose bytes tell whether they are whole: `size` bytes made from `seed`.
inline Image make_image(unsigned seed, std::size_t size) {
    Image image;
    image.bytes.resize(size);
    unsigned state = seed * 2654435761u + 1;
    for (char& byte : image.bytes) {
        state = state * 1664525u + 1013904223u;
        byte = static_cast<char>(state >> 24);
    }
    image.metadata.kernel_name = "kernel_" + std::to_string(seed);
    image.metadata.registers = static_cast<int>(seed % 255);
    image.metadata.compile_ms = 1.5;
    return image;
}

inline StoreKey make_key(unsigned seed) {
    return store_key("source " + std::to_string(seed), {"-O3"}, "sm_90a", "test-1+0", "k");
}

inline Store::Options options_at(const std::string& directory) {
    Store::Options options;
    options.directory = directory;
    return options;
}

// out[i] = scale * x[i] + y[i], one block per `chunk` elements.
inline const char* axpy_host_template() {
    return R"(#include "config"
#include <cstddef>
struct HostBlock { unsigned x, y, z, grid_x, grid_y, grid_z, thread, threads; void* scratch; };
extern "C" void axpy(const HostBlock* block, void** parameters) {
    const float* x = *static_cast<const float**>(parameters[0]);
    const float* y = *static_cast<const float**>(parameters[1]);
    float* out = *static_cast<float**>(parameters[2]);
    const int n = *static_cast<const int*>(parameters[3]);
    for (int i = block->x * config::chunk; i < n && i < int(block->x + 1) * config::chunk; ++i)
        out[i] = config::scale * x[i] + y[i];
}
)";
}

inline const char* axpy_cuda_template() {
    return R"(#include "config"
extern "C" __global__ void __launch_bounds__(128) axpy(const float* x, const float* y, float* out, int n) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) out[i] = config::scale * x[i] + y[i];
}
)";
}

inline KernelSpec axpy_cuda_spec(const std::string& target = "sm_90a") {
    return {"test/axpy.cu", "axpy", Fields{{"scale", std::int64_t{3}}}, target};
}

inline KernelSpec axpy_host_spec(const std::string& target, int scale = 3) {
    return {"test/axpy.cpp", "axpy", Fields{{"scale", std::int64_t{scale}}, {"chunk", std::int64_t{64}}}, target};
}

// Both templates below `root`.
inline void write_templates(const std::string& root) {
    write_text(root + "/test/axpy.cpp", axpy_host_template());
    write_text(root + "/test/axpy.cu", axpy_cuda_template());
}

}  // namespace turbotune::testing
