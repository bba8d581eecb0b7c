#include "turbotune/kernel/compile_jobs.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <vector>

#include "turbotune/base/files.h"
#include "turbotune/kernel/compiler.h"

namespace turbotune {
namespace {

// The first number of a file; -1 when there is none ("max").
std::int64_t read_number(const std::string& path) {
    const std::string text = read_file(path).value_or("");
    char* end = nullptr;
    const long long value = std::strtoll(text.c_str(), &end, 10);
    return end == text.c_str() ? -1 : value;
}

std::int64_t smaller(std::int64_t a, std::int64_t b) {
    return a < 0 ? b : b < 0 ? a : std::min(a, b);
}

std::int64_t memory_available(const std::string& root) {
    std::istringstream lines(read_file(root + "/proc/meminfo").value_or(""));
    std::string name;
    std::int64_t kib = 0;
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        if (words >> name >> kib && name == "MemAvailable:") return kib * 1024;
    }
    return -1;
}

// The folders whose limits hold for this process, its own first: every level above counts too.
std::vector<std::string> cgroup_folders(const std::string& root, const std::string& controller) {
    std::istringstream lines(read_file(root + "/proc/self/cgroup").value_or(""));
    std::vector<std::string> folders;
    for (std::string line; std::getline(lines, line);) {
        const auto first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
        const bool unified = controllers == ",,";
        if (!unified && controllers.find("," + controller + ",") == std::string::npos) continue;
        const std::string mount = root + "/sys/fs/cgroup" + (unified ? "" : "/" + controller);
        for (std::string path = line.substr(second + 1); path.size() > 1; path.resize(path.rfind('/')))
            folders.push_back(mount + path);
        folders.push_back(mount);  // inside a container the own group is the mount itself
    }
    return folders;
}

std::int64_t cgroup_memory_left(const std::string& root) {
    std::int64_t left = -1;
    for (const std::string& folder : cgroup_folders(root, "memory")) {
        for (const auto& [limit_name, used_name] : {std::pair{"/memory.max", "/memory.current"},
                                                    std::pair{"/memory.limit_in_bytes", "/memory.usage_in_bytes"}}) {
            const std::int64_t limit = read_number(folder + limit_name);
            const std::int64_t used = std::max<std::int64_t>(0, read_number(folder + used_name));
            if (limit >= 0) left = smaller(left, std::max<std::int64_t>(0, limit - used));
        }
    }
    return left;
}

double cgroup_cpu_quota(const std::string& root) {
    double quota = -1;
    const auto take = [&](double value) { quota = quota < 0 ? value : std::min(quota, value); };
    for (const std::string& folder : cgroup_folders(root, "cpu")) {
        std::istringstream words(read_file(folder + "/cpu.max").value_or(""));
        double allowed = 0, period = 0;
        if (words >> allowed >> period && period > 0) take(allowed / period);  // "max 100000" is no number
        const std::int64_t old_quota = read_number(folder + "/cpu.cfs_quota_us");
        const std::int64_t old_period = read_number(folder + "/cpu.cfs_period_us");
        if (old_quota > 0 && old_period > 0) take(static_cast<double>(old_quota) / static_cast<double>(old_period));
    }
    return quota;
}

int cores_of_mask() {
    cpu_set_t set;
    CPU_ZERO(&set);
    return ::sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

}  // namespace

JobLimits read_job_limits(const std::string& root) {
    return {cores_of_mask(), cgroup_cpu_quota(root), memory_available(root), cgroup_memory_left(root)};
}

int compile_jobs(const JobLimits& limits) {
    std::int64_t jobs = limits.cores;
    if (limits.cpu_quota >= 0) jobs = std::min(jobs, static_cast<std::int64_t>(limits.cpu_quota));
    for (const std::int64_t memory : {limits.available_memory, limits.cgroup_memory}) {
        if (memory >= 0) jobs = std::min(jobs, memory / kCompileMemory);
    }
    return static_cast<int>(std::max<std::int64_t>(1, jobs));
}

int compile_jobs() {
    return compile_jobs(read_job_limits());
}

}  // namespace turbotune
