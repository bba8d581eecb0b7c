// One problem measured by itself: what `turbotune bench` prints a line of.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "turbotune/tuner/measure.h"

namespace turbotune {

struct BenchOptions {
    Config config;  // fields that the config must have; empty: by the runtime's policy
    int samples = 50;
    std::uint64_t seed = 1;
    std::function<void(int done)> before_sample;  // may throw to end the measurement
};

struct BenchResult {
    Fields problem;
    Selection selection;
    Latency latency;
    std::optional<double> host_us;  // of one execution; nothing on the CPU device
    double flops = 0, bytes = 0;    // Operation::flops and bytes
    std::size_t workspace_bytes = 0;
    MemoryPlan memory;
    std::vector<KernelMetadata> kernels;

    double tflops() const { return flops / latency.median * 1e-9; }           // per second
    double gigabytes_per_s() const { return bytes / latency.median * 1e-6; }  // of compulsory traffic
};

// Inputs are random and rotate through more memory than the L2 holds. Throws what planning and launching throw.
BenchResult bench(Runtime& runtime, const Operation& operation, const Fields& problem, const BenchOptions& options);

// The first candidate with the given fields that fits. Throws InvalidArgument("config", ...) that says which field no
// candidate has, or why those that match do not fit.
Config complete_config(const Operation& operation, const Workload& workload, const DeviceInfo& device,
                       const Config& given);

}  // namespace turbotune
