// Bounded tuning inside a call: the heuristic's config against the next few candidates. Internal to ops.
// The tuner proper (parity, interleaved finals, profiles) is not here; this is the policy for somebody who
// has no profile and accepts a slow first call.
#pragma once

#include "turbotune/ops/operation.h"

namespace turbotune {

struct AutotuneLimits {
    int candidates = 4;       // the heuristic's config included
    double budget_ms = 2000;  // for compiling and measuring, once the data lie on the device
};

// Measures the workload's timing case on buffers and a stream of its own. The config returned also plans `problem`.
// Candidates that do not compile, fail or give values that are not finite are skipped with a warning; when nothing
// can be measured the result is the heuristic's, origin and note saying so. Throws only what heuristic() throws.
Selection autotune(Runtime& runtime, const Operation& operation, const Workload& workload, const Fields& problem,
                   const AutotuneLimits& limits);

}  // namespace turbotune
