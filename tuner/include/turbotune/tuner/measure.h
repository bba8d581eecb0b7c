// Timing one execution honestly: each mechanism that stands between a clock reading and a comparable number is a
// small type of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "turbotune/ops/operation.h"

namespace turbotune {

// min, p10, median and p90 of samples in milliseconds. No samples: all zero.
Latency summarize(std::vector<double> samples);
double median_of(std::vector<double> samples);

// A kernel that finds its inputs in L2 from the launch before looks faster than it will be in a model, where other
// layers ran in between. Timed launches therefore walk over several copies of all tensors: by the time a copy comes
// round again, more than twice the L2 has passed through.
struct MemoryPlan {
    std::int64_t set_bytes = 0;  // inputs and outputs of one copy, padded
    std::int64_t l2_bytes = 0;
    std::int64_t limit_bytes = 0;  // that the copies may take
    int wanted_sets = 1;
    int sets = 1;  // fewer than wanted when memory is short

    std::int64_t rotated_bytes() const { return set_bytes * sets; }
    bool cold() const { return rotated_bytes() > 2 * l2_bytes; }
    // "12 copies of 10.5 MiB: 126.0 MiB rotated against 60.0 MiB of L2"
    std::string to_string() const;
};
MemoryPlan plan_memory(const TestCase& test_case, const DeviceInfo& device, std::int64_t limit_bytes);

// TURBOTUNE_MEMORY_LIMIT in bytes; nullopt when unset. Throws InvalidArgument for what is no positive number.
std::optional<std::int64_t> memory_limit_setting();
// Nine tenths of what is free on the device; or memory_limit_setting(), less what is `taken` and never below 0, when
// that is less.
std::int64_t memory_limit(Device& device, std::int64_t taken = 0);

// A timer resolves about a microsecond and starting it costs as much: short executions are timed many at a time.
int launches_per_sample(double execution_ms, double sample_ms = 0.2);

// Clocks fall for milliseconds at a time when the chip meets its power limit, and other processes take the CPU away.
// Such samples lie far above the median; they are taken again, at most one for every four. Returns how many were.
int retake_outliers(std::vector<double>& samples, const std::function<double()>& again);

// The buffer sets of one timing case and the configs bound to them.
class TimingBench {
  public:
    // Allocates the sets, fewer when the device refuses. Throws DeviceError when not even one fits.
    TimingBench(Runtime& runtime, const Operation& operation, const TestCase& test_case, std::int64_t limit_bytes);
    ~TimingBench();

    const MemoryPlan& memory() const;

    // Plans and binds a config, warms it up and learns how many launches make a sample. Throws what planning and
    // launching throw. A config that is already there is left alone.
    void add(const Config& config);
    const Plan& plan(const Config& config) const;
    // Microseconds of the host for one execution that is only enqueued: the median over bursts, between which the
    // device's queue is emptied. Nothing where executing is not asynchronous (the CPU device).
    std::optional<double> host_us(const Config& config);
    // What add() found: good for planning, not for comparing.
    double execution_ms(const Config& config) const;
    // Milliseconds of one execution, averaged over one batch of launches.
    double sample(const Config& config);

    // `samples` of each config, taking turns: what drifts meets all alike. `before(i)` announces a sample of the
    // i-th. Outliers are taken again.
    std::vector<std::vector<double>> round(const std::vector<Config>& configs, int samples,
                                           const std::function<void(int)>& before = {});

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace turbotune
