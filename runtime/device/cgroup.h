// Limits that a control group (a container, a batch job) sets below those of the machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace turbotune {

// `memberships` is the text of /proc/self/cgroup, `root` is where the hierarchies are mounted
// (/sys/fs/cgroup). Versions 1 and 2; the least limit of the group and its ancestors.

// CPUs' worth of time, such as 2.5; nullopt when unlimited.
std::optional<double> cgroup_cpu_quota(const std::string& memberships, const std::string& root);

struct MemoryLimit {
    std::int64_t limit;  // bytes
    std::int64_t used;   // bytes, files that can be dropped counted too
};
std::optional<MemoryLimit> cgroup_memory_limit(const std::string& memberships, const std::string& root);

}  // namespace turbotune
