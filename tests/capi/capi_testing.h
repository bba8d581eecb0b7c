// Helpers of the C interface's tests: a runtime on the CPU device with a store of its own.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include "catch.h"
#include "turbotune/turbotune.h"

namespace turbotune::testing {

class TempFolder {
  public:
    TempFolder() {
        char name[] = "/tmp/turbotune-capi-XXXXXX";
        path_ = ::mkdtemp(name);
    }
    ~TempFolder() { std::filesystem::remove_all(path_); }
    TempFolder(const TempFolder&) = delete;
    TempFolder& operator=(const TempFolder&) = delete;
    const std::string& path() const { return path_; }

  private:
    std::string path_;
};

inline std::string last_error() {
    return turbotune_last_error();
}

// Options of the CPU device that look at no profile of this machine.
inline turbotune_runtime_options cpu_options() {
    turbotune_runtime_options options;
    turbotune_runtime_options_init(&options, sizeof options);
    options.device = "cpu";
    options.discover_profiles = 0;
    return options;
}

class CpuRuntime {
  public:
    explicit CpuRuntime(const turbotune_runtime_options& options = cpu_options()) {
        INFO(last_error());
        REQUIRE(turbotune_runtime_create(&options, &handle_) == TURBOTUNE_OK);
    }
    ~CpuRuntime() { turbotune_runtime_destroy(handle_); }
    CpuRuntime(const CpuRuntime&) = delete;
    CpuRuntime& operator=(const CpuRuntime&) = delete;
    operator turbotune_runtime*() const { return handle_; }

  private:
    turbotune_runtime* handle_ = nullptr;
};

inline turbotune_disentangled_attention_problem small_problem(int pass = TURBOTUNE_INFERENCE) {
    turbotune_disentangled_attention_problem problem;
    turbotune_disentangled_attention_problem_init(&problem, sizeof problem);
    problem.pass = pass;
    problem.dtype = TURBOTUNE_F32;
    problem.batch = 2;
    problem.heads = 3;
    problem.length = 33;
    problem.head_dim = 32;
    problem.position_buckets = 16;
    problem.max_relative_positions = 32;
    return problem;
}

}  // namespace turbotune::testing
