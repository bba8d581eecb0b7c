// The two compilers behind one interface: NVRTC for CUDA templates, the system C++ compiler for
// host templates.
#pragma once

#include <string>
#include <vector>

#include "turbotune/kernel/image.h"

namespace turbotune {

struct CompileRequest {
    std::string source;        // rendered
    std::string kernel_name;   // symbol to expect in the image
    std::string target;
    std::string label;         // for messages and as the file name in diagnostics
};

class Compiler {
  public:
    virtual ~Compiler() = default;
    // Version and build, such as "nvrtc-13.0.88+1f2e..." or "g++-12.2.0+...". Must not load or run the
    // compiler (a process that hits the store never loads NVRTC): read from the library file's or
    // program's name and ELF build id. Throws CompileError when there is no compiler, listing where it looked.
    virtual const std::string& identity() = 0;
    // All options, in order, for a target. Part of the key.
    virtual std::vector<std::string> options(const std::string& target) = 0;
    // Throws CompileError with the log, the options and a path of the source. Thread safe: compiles run in parallel.
    virtual Image compile(const CompileRequest& request) = 0;
};

// Process-wide. The NVRTC library: TURBOTUNE_NVRTC (a path), then libnvrtc.so.13, then .12, along
// LD_LIBRARY_PATH, the loader's cache, /usr/local/cuda/lib64. The host compiler: $CXX, c++, g++, clang++ along PATH.
Compiler& nvrtc_compiler();
Compiler& host_compiler();

// The arch names this NVRTC knows ("sm_80", "sm_90a", ...). Loads NVRTC.
std::vector<std::string> nvrtc_targets();
// True once NVRTC has been loaded into this process.
bool nvrtc_loaded();

// How many compiles may run side by side: min(cores, memory / 1 GiB, cgroup limits), at least 1.
int compile_jobs();

}  // namespace turbotune
