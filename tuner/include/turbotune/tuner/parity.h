// Parity: one config on one test case, against float64 or the reference plan.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "turbotune/ops/operation.h"

namespace turbotune {

struct CaseOutcome {
    bool passed = false;
    std::string reason;  // "mismatch" | "unwritten" | "overrun" | "input_changed" | "not_repeatable"; empty when passed
    std::string detail;  // "out[3,17,5] = nan, want 0.1875"
    std::vector<OutputParity> outputs;
};

// Uploads the inputs, poisons outputs and workspace with NaN bytes between canaries, runs twice, and compares: every
// element written, both runs bit-equal, canaries and inputs untouched, |got - want| within the case's tolerance. Throws
// what planning and launching throw (CompileError, DeviceError, Unsupported).
CaseOutcome check_case(Runtime& runtime, const Operation& operation, const TestCase& test_case, const Config& config);

// The same for many configs on one case: inputs and expected values stay on the device and on the host. What a
// config damages (an input, a canary) is restored before the next.
class ParityChecker {
  public:
    // Computes the expected values by the plan of reference_config() when the case has none.
    ParityChecker(Runtime& runtime, const Operation& operation, TestCase test_case);
    ~ParityChecker();

    CaseOutcome check(const Config& config);

    const TestCase& test_case() const;
    // Milliseconds that one run of the reference took; 0 when the case brought its expected values.
    double reference_ms() const;
    std::int64_t device_bytes() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace turbotune
