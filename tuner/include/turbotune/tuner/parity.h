// Parity: one config on one test case, against float64 or the reference plan.
#pragma once

#include <string>
#include <vector>

#include "turbotune/ops/operation.h"

namespace turbotune {

struct CaseOutcome {
    bool passed = false;
    std::string reason;    // "mismatch" | "unwritten" | "overrun" | "input_changed" | "not_repeatable"; empty when passed
    std::string detail;    // "out[3,17,5] = nan, want 0.1875"
    std::vector<OutputParity> outputs;
};

// Uploads the inputs, poisons outputs and workspace with NaN bytes between canaries, runs twice, and compares: every element
// written, both runs bit-equal, canaries and inputs untouched, |got - want| within the case's tolerance. Throws
// what planning and launching throw (CompileError, DeviceError, Unsupported).
CaseOutcome check_case(Runtime& runtime, const Operation& operation, const TestCase& test_case, const Config& config);

}  // namespace turbotune
