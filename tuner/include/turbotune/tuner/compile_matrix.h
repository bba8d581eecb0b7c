// Compiles candidates for GPUs that need not be here, and holds what ptxas reports against what the filter predicted.
#pragma once

#include <string>
#include <vector>

#include "turbotune/ops/operation.h"
#include "turbotune/tuner/model_device.h"

namespace turbotune {

struct CompileRow {
    std::string target;  // "sm_90a"
    std::string kernel;  // KernelSpec::to_string()
    std::string config;
    int threads = 0;  // per block, predicted
    int predicted_registers = 0;
    int registers = 0;
    std::int64_t predicted_shared_bytes = 0;  // dynamic
    int static_shared_bytes = 0;
    int spill_store_bytes = 0, spill_load_bytes = 0, local_bytes = 0;
    double compile_ms = 0;
    std::string problem;  // why the row fails: compile error, more registers than predicted, beyond the device, spills
};

struct CompileMatrixOptions {
    std::vector<std::string> targets = {"sm_80", "sm_90a", "sm_100a", "sm_120a"};
    WorkloadQuery query{Preset::exhaustive, {}};
    // 0: every kernel; n: every n-th of the list, the same ones each time.
    int every = 0;
    int jobs = 0;                // 0: compile_jobs()
    bool spills_allowed = true;  // false: any spill is a problem
};

// Distinct kernels of all workloads of the operation that are available on the target, for every candidate that passes
// the filter and every element type of the workload's precision.
std::vector<CompileRow> compile_matrix(const Operation& operation, const CompileMatrixOptions& options);

}  // namespace turbotune
