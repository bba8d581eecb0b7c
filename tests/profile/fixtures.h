// Devices, profiles and folders for the tests of this room.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "catch.h"
#include "turbotune/base/log.h"
#include "turbotune/profile/selection.h"

namespace turbotune::test {

#if __has_include(<catch2/catch_all.hpp>)
using Catch::Matchers::ContainsSubstring;
#else
inline auto ContainsSubstring(const std::string& text) {
    return Catch::Matchers::Contains(text);
}
#endif

class TempDirectory {
  public:
    TempDirectory() {
        std::string pattern = (std::filesystem::temp_directory_path() / "turbotune-profile-XXXXXX").string();
        path_ = ::mkdtemp(pattern.data());
    }
    ~TempDirectory() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TempDirectory(const TempDirectory&) = delete;
    TempDirectory& operator=(const TempDirectory&) = delete;
    const std::string& path() const { return path_; }
    std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  private:
    std::string path_;
};

// Sets (or, with nullopt, unsets) an environment variable for a scope.
class ScopedVariable {
  public:
    ScopedVariable(std::string name, std::optional<std::string> value) : name_(std::move(name)) {
        if (const char* old = ::getenv(name_.c_str())) old_ = old;
        apply(value);
    }
    ~ScopedVariable() { apply(old_); }
    ScopedVariable(const ScopedVariable&) = delete;
    ScopedVariable& operator=(const ScopedVariable&) = delete;

  private:
    void apply(const std::optional<std::string>& value) {
        if (value)
            ::setenv(name_.c_str(), value->c_str(), 1);
        else
            ::unsetenv(name_.c_str());
    }
    std::string name_;
    std::optional<std::string> old_;
};

// Collects what is logged during a scope.
class ScopedLog {
  public:
    ScopedLog() {
        set_log_sink([this](LogLevel level, const std::string& message) {
            const std::lock_guard lock(mutex_);
            if (level == LogLevel::warn) warnings_.push_back(message);
        });
    }
    ~ScopedLog() { set_log_sink({}); }
    ScopedLog(const ScopedLog&) = delete;
    ScopedLog& operator=(const ScopedLog&) = delete;
    std::vector<std::string> warnings() {
        const std::lock_guard lock(mutex_);
        return warnings_;
    }

  private:
    std::mutex mutex_;
    std::vector<std::string> warnings_;
};

inline void write_text(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << text;
}

inline std::string read_text(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
}

inline const std::string kCompiler = "nvrtc-13.0.88+1f2e3d";
inline const std::string kDigest(64, 'a');

// SM counts, L2, opt-in shared memory and bus widths of the boards' data sheets.
inline DeviceClass h200() {
    return {"sm_90", 132, 60ll << 20, 227 << 10, 6144};
}

inline Workload workload(int length, const std::string& pass = "inference") {
    return {"disentangled_attention", Fields().set("pass", pass.c_str()).set("length", length).set("head_dim", 64)};
}

inline Config config(int block_m, const std::string& tier = "mma") {
    return Fields().set("tier", tier.c_str()).set("block_m", block_m).set("swizzle", FieldValue(true));
}

inline ProfileEntry entry(int length, int block_m, double median = 0.25) {
    ProfileEntry result;
    result.workload = workload(length);
    result.config = config(block_m);
    result.latency = {median / 2, median * 0.75, median, median * 2, 20};
    result.parity = {{{"out", 0.001, 0.02}}, {"none", "right", "holes"}};
    result.registers = 128;
    result.local_bytes = 0;
    result.shared_bytes = 98304;
    result.measured = {{config(block_m + 1), {median, median, median * 1.5, median * 2, 20}}};
    result.rejected = {{config(block_m + 2), "filtered", "needs 300000 bytes of shared memory, device has 232448"}};
    return result;
}

inline Profile profile(const DeviceClass& device_class = h200(), const std::string& name = "NVIDIA H200") {
    Profile result;
    result.device_class = device_class;
    result.device_name = name;
    result.compiler = kCompiler;
    result.templates["disentangled_attention"] = kDigest;
    result.provenance = {{"date", "2026-11-30"}, {"command", "turbotune --preset quick"}};
    result.entries = {entry(128, 64), entry(512, 128)};
    return result;
}

}  // namespace turbotune::test
