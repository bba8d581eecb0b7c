#include "cpu_info.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "cgroup.h"
#include "turbotune/base/error.h"
#include "turbotune/base/files.h"
#include "turbotune/base/sha256.h"

namespace turbotune {

namespace {

constexpr const char* kCgroupRoot = "/sys/fs/cgroup";
constexpr int kMostThreads = 1024;

std::string memberships() {
    return read_file("/proc/self/cgroup").value_or("");
}

int affinity_count() {
    // The kernel refuses a mask smaller than its own, and machines beyond 1024 CPUs exist.
    for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
        cpu_set_t* mask = CPU_ALLOC(static_cast<std::size_t>(cpus));
        if (!mask) break;
        const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(cpus));
        const bool known = ::sched_getaffinity(0, bytes, mask) == 0;
        const int count = known ? CPU_COUNT_S(bytes, mask) : 0;
        CPU_FREE(mask);
        if (known) return std::max(count, 1);
    }
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// The value of the first line "KEY : value" of one of the keys.
std::string cpuinfo_value(std::initializer_list<const char*> keys) {
    static const std::string text = read_file("/proc/cpuinfo").value_or("");
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        const std::size_t colon = line.find(':');
        if (colon == std::string::npos) continue;
        const std::string key = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
        if (std::none_of(keys.begin(), keys.end(), [&](const char* wanted) { return key == wanted; })) continue;
        const std::size_t start = line.find_first_not_of(" \t", colon + 1);
        if (start != std::string::npos) return line.substr(start);
    }
    return "";
}

// Bytes of the data or unified cache of a level, from sysfs ("1024K"); 0 when it does not say.
std::int64_t cache_bytes(int level) {
    for (int index = 0; index < 8; ++index) {
        const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index);
        const std::string type = read_file(folder + "/type").value_or("");
        if (type.rfind("Instruction", 0) == 0) continue;
        if (read_file(folder + "/level").value_or("") != std::to_string(level) + "\n") continue;
        std::istringstream size(read_file(folder + "/size").value_or(""));
        std::int64_t value = 0;
        char unit = ' ';
        if (!(size >> value)) continue;
        size >> unit;
        return unit == 'K' ? value << 10 : unit == 'M' ? value << 20 : value;
    }
    return 0;
}

std::int64_t cache_or(int level, int sysconf_name, std::int64_t otherwise) {
    if (const std::int64_t bytes = cache_bytes(level)) return bytes;
    const long bytes = ::sysconf(sysconf_name);
    return bytes > 0 ? bytes : otherwise;
}

// Bytes of a line "NAME:   123 kB" of /proc/meminfo; 0 when it is not there.
std::int64_t meminfo(const std::string& name) {
    std::istringstream lines(read_file("/proc/meminfo").value_or(""));
    for (std::string line; std::getline(lines, line);) {
        if (line.rfind(name + ":", 0) == 0) return std::strtoll(line.c_str() + name.size() + 1, nullptr, 10) << 10;
    }
    return 0;
}

int count_cpu_threads() {
    if (const std::optional<std::string> wanted = environment("TURBOTUNE_CPU_THREADS")) {
        int count = 0;
        const char* end = wanted->data() + wanted->size();
        const auto [rest, failed] = std::from_chars(wanted->data(), end, count);
        if (failed != std::errc() || rest != end || count < 1 || count > kMostThreads) {
            throw InvalidArgument(
                "TURBOTUNE_CPU_THREADS",
                "expected an integer in [1, " + std::to_string(kMostThreads) + "], got \"" + *wanted + "\"");
        }
        return count;
    }
    int count = affinity_count();
    if (const std::optional<double> quota = cgroup_cpu_quota(memberships(), kCgroupRoot)) {
        count = std::min(count, std::max(1, static_cast<int>(std::min(std::ceil(*quota), 1e6))));
    }
    return std::min(count, kMostThreads);
}

}  // namespace

int usable_cpu_threads() {
    static const int count = count_cpu_threads();
    return count;
}

std::string cpu_arch() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        return "x86_64-avx512";
    }
    return avx2 ? "x86_64-avx2" : "x86_64";
#elif defined(__aarch64__)
    return "aarch64-neon";
#else
    utsname machine{};
    return ::uname(&machine) == 0 ? machine.machine : "unknown";
#endif
}

std::string feature_digest(const std::string& flags) {
    std::istringstream stream(flags);
    std::set<std::string> sorted;
    for (std::string flag; stream >> flag;) sorted.insert(flag);
    Sha256 hash;
    for (const std::string& flag : sorted) hash.field(flag);
    return to_hex(hash.finish()).substr(0, 8);
}

std::string cpu_feature_digest() {
    // The implementer and part, because ARM's feature list leaves out what differs between cores.
    static const std::string digest =
        feature_digest(cpuinfo_value({"flags", "Features"}) + " " + cpuinfo_value({"CPU implementer"}) + " " +
                       cpuinfo_value({"CPU part"}));
    return digest;
}

DeviceInfo cpu_device_info() {
    DeviceInfo info;
    info.kind = DeviceKind::cpu;
    info.name = cpuinfo_value({"model name", "Hardware", "Processor"});
    if (info.name.empty()) info.name = "CPU";
    info.device_class.arch = cpu_arch();
    info.device_class.sm_count = usable_cpu_threads();
    info.device_class.shared_per_block = cache_or(2, _SC_LEVEL2_CACHE_SIZE, 256 << 10);
    info.device_class.l2_bytes = cache_or(3, _SC_LEVEL3_CACHE_SIZE, info.device_class.shared_per_block);
    info.total_memory = total_memory();
    return info;
}

std::int64_t total_memory() {
    const std::int64_t machine = meminfo("MemTotal");
    const std::optional<MemoryLimit> group = cgroup_memory_limit(memberships(), kCgroupRoot);
    return group ? std::min(machine, group->limit) : machine;
}

std::int64_t available_memory() {
    std::int64_t available = meminfo("MemAvailable");
    if (const std::optional<MemoryLimit> group = cgroup_memory_limit(memberships(), kCgroupRoot)) {
        available = std::min(available, std::max<std::int64_t>(group->limit - group->used, 0));
    }
    return available;
}

}  // namespace turbotune
