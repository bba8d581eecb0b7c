// Cases with known results, read from files and run through every kernel tier of a device.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "turbotune/ops/operation.h"

namespace turbotune {

struct ValidateOptions {
    std::string directory;        // every *.safetensors in it, in name order
    std::string device = "auto";  // "auto", "cpu" or an ordinal
    std::string tier;             // empty: every tier of the device
    Store::Options store;
};

struct ValidatedCase {
    std::string name;             // the file's name without its extension
    std::string operation, pass;  // as far as the file says
    std::string tier, dtype;      // empty when the case got no further than the file
    Config config;                // the tier's first candidate that fits the device
    bool passed = false, skipped = false;
    std::string reason;  // why it failed or was skipped
    std::vector<OutputParity> outputs;
};

struct ValidateReport {
    DeviceInfo device;
    std::vector<ValidatedCase> cases;  // one per file, pass, dtype and tier
    int passed = 0, failed = 0, skipped = 0;
    bool interrupted = false;  // cases are missing
};

// A malformed file fails by itself and the others still run; operations and passes that this build lacks are skipped.
// Throws InvalidArgument when the directory does not exist or holds no case, or the device has no such tier;
// DeviceError when the device cannot be used.
// `finished` is told each case as it ends. No case begins once `interrupts` is above 0, and one that it broke off is
// left out.
ValidateReport validate(const ValidateOptions& options, const std::function<void(const ValidatedCase&)>& finished = {},
                        const std::atomic<int>* interrupts = nullptr);

}  // namespace turbotune
