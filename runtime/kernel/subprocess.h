// A program run to its end, with what it wrote.
#pragma once

#include <string>
#include <vector>

namespace turbotune {

struct ProgramResult {
    int exit_code = -1;  // -1: did not start, or ended by `signal`
    int signal = 0;
    std::string output;   // standard output and standard error, at most 1 MiB
    std::string problem;  // why it did not start
};

// Uses posix_spawn: a fork would copy page tables of a process that holds a GPU. `environment` entries ("NAME=value")
// replace those of this process. The program gets a process group of its own, so that Ctrl-C at the terminal ends
// this process in its own way and does not look like a failed compile.
ProgramResult run_program(const std::vector<std::string>& arguments, const std::vector<std::string>& environment);

}  // namespace turbotune
