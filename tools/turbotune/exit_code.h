// What the process returns; the same for every subcommand.
#pragma once

namespace turbotune::cli {

enum ExitCode : int {
    kDone = 0,
    kFailures = 1,      // finished, with failures that were named
    kUsage = 2,         // bad usage or a bad input file
    kNoDevice = 3,      // no usable device
    kInterrupted = 130  // Ctrl-C; what was measured is saved
};

}  // namespace turbotune::cli
