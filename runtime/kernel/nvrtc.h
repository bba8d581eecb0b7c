// libnvrtc: found as a file, identified without loading, opened with dlopen on first use.
// https://docs.nvidia.com/cuda/nvrtc/ : function signatures and result codes.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace turbotune::nvrtc {

using Result = int;
using Program = struct ProgramTag*;

struct Functions {
    Result (*Version)(int* major, int* minor);
    Result (*GetNumSupportedArchs)(int* count);
    Result (*GetSupportedArchs)(int* archs);
    const char* (*GetErrorString)(Result);
    Result (*CreateProgram)(Program*, const char* source, const char* name, int headers, const char* const* texts,
                            const char* const* names);
    Result (*DestroyProgram)(Program*);
    Result (*CompileProgram)(Program, int count, const char* const* options);
    Result (*GetCUBINSize)(Program, std::size_t*);
    Result (*GetCUBIN)(Program, char*);
    Result (*GetProgramLogSize)(Program, std::size_t*);
    Result (*GetProgramLog)(Program, char*);
};

// The library's file and what tells its build from others.
struct LibraryFile {
    std::string path;                 // as found; "" when there is none
    std::string version;              // "13.0.88"; only "13" when the file does not tell
    std::string fingerprint;          // 16 hex digits
    std::vector<std::string> looked;  // every place that was tried
};

// Looked for once per process.
const LibraryFile& library_file();

struct Library {
    Functions functions{};
    std::string builtins_problem;      // why libnvrtc-builtins could not be loaded; "" when it was
    std::vector<std::string> targets;  // "sm_80", "sm_90", "sm_90a", ...
};

// Loads on first call. Throws CompileError saying where it looked, or what dlopen said.
const Library& library();
bool loaded();

}  // namespace turbotune::nvrtc
