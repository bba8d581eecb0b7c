// How many compiles may run side by side without exhausting the machine.
#pragma once

#include <cstdint>
#include <string>

namespace turbotune {

// What one compile may need at its worst.
inline constexpr std::int64_t kCompileMemory = std::int64_t{1} << 30;  // bytes

struct JobLimits {
    int cores = 1;                       // of the affinity mask
    double cpu_quota = -1;               // CPUs that the cgroup allows; -1: no limit
    std::int64_t available_memory = -1;  // bytes; -1: not known
    std::int64_t cgroup_memory = -1;     // bytes left to the cgroup; -1: no limit
};

// Reads the limits of this process; `root` stands before /proc and /sys (for tests).
JobLimits read_job_limits(const std::string& root = "");

// min(cores, quota, memory / kCompileMemory), at least 1.
int compile_jobs(const JobLimits& limits);

}  // namespace turbotune
