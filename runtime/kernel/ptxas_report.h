// Reads the report that ptxas -v writes into the compiler's log.
#pragma once

#include <string>
#include <vector>

#include "turbotune/kernel/image.h"

namespace turbotune {

struct PtxasReport {
    std::vector<std::string> entries;     // kernels that were compiled
    std::vector<std::string> serialised;  // lines that say that wgmma is serialised (C7510 to C7515)
    KernelMetadata metadata;              // of the kernel asked for; -1 where the log does not tell
};

PtxasReport parse_ptxas_report(const std::string& log, const std::string& kernel_name);

}  // namespace turbotune
