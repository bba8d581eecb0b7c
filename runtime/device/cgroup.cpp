#include "cgroup.h"

#include <sstream>
#include <string_view>
#include <vector>

#include "turbotune/base/files.h"

namespace turbotune {

namespace {

// The group's folder in one hierarchy and every folder above it, deepest first. A container may see the
// name of its group without the folders: then only those that exist are met when they are read.
std::vector<std::string> folders(const std::string& mount, std::string group) {
    std::vector<std::string> result;
    while (!group.empty() && group != "/") {
        result.push_back(mount + group);
        group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
    }
    result.push_back(mount);
    return result;
}

struct Membership {
    bool unified;  // version 2
    std::string group;
};

// "5:cpu,cpuacct:/a/b" (version 1) or "0::/a/b" (version 2).
std::vector<Membership> parse(const std::string& memberships, std::string_view controller) {
    std::vector<Membership> result;
    std::istringstream lines(memberships);
    for (std::string line; std::getline(lines, line);) {
        const std::size_t first = line.find(':');
        const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
        if (second == std::string::npos) continue;
        std::istringstream names(line.substr(first + 1, second - first - 1));
        if (second == first + 1) result.push_back({true, line.substr(second + 1)});
        for (std::string name; std::getline(names, name, ',');) {
            if (name == controller) result.push_back({false, line.substr(second + 1)});
        }
    }
    return result;
}

std::optional<std::int64_t> read_integer(const std::string& path) {
    const std::optional<std::string> text = read_file(path);
    if (!text) return std::nullopt;
    std::istringstream stream(*text);
    std::int64_t value;
    if (stream >> value) return value;
    return std::nullopt;
}

std::optional<double> quota_of(const std::string& folder, bool unified) {
    std::int64_t quota = 0, period = 0;
    if (unified) {
        // "200000 100000" or "max 100000", in microseconds.
        const std::optional<std::string> text = read_file(folder + "/cpu.max");
        if (!text) return std::nullopt;
        std::istringstream stream(*text);
        if (!(stream >> quota >> period)) return std::nullopt;
    } else {
        quota = read_integer(folder + "/cpu.cfs_quota_us").value_or(-1);
        period = read_integer(folder + "/cpu.cfs_period_us").value_or(0);
    }
    if (quota <= 0 || period <= 0) return std::nullopt;
    return static_cast<double>(quota) / static_cast<double>(period);
}

std::optional<MemoryLimit> memory_of(const std::string& folder, bool unified) {
    const auto limit = read_integer(folder + (unified ? "/memory.max" : "/memory.limit_in_bytes"));
    const auto used = read_integer(folder + (unified ? "/memory.current" : "/memory.usage_in_bytes"));
    // Version 1 writes "unlimited" as a number near the largest.
    if (!limit || *limit <= 0 || *limit >= (std::int64_t{1} << 60)) return std::nullopt;
    return MemoryLimit{*limit, used.value_or(0)};
}

std::vector<std::string> mounts(const Membership& membership, const std::string& root, std::string_view controller) {
    if (membership.unified) return {root, root + "/unified"};
    if (controller == "cpu") return {root + "/cpu", root + "/cpu,cpuacct"};
    return {root + "/" + std::string(controller)};
}

template <typename Visit>
void for_each_folder(const std::string& memberships, const std::string& root, std::string_view controller,
                     Visit&& visit) {
    for (const Membership& membership : parse(memberships, controller)) {
        for (const std::string& mount : mounts(membership, root, controller)) {
            for (const std::string& folder : folders(mount, membership.group)) visit(folder, membership.unified);
        }
    }
}

}  // namespace

std::optional<double> cgroup_cpu_quota(const std::string& memberships, const std::string& root) {
    std::optional<double> least;
    for_each_folder(memberships, root, "cpu", [&](const std::string& folder, bool unified) {
        const std::optional<double> quota = quota_of(folder, unified);
        if (quota && (!least || *quota < *least)) least = quota;
    });
    return least;
}

std::optional<MemoryLimit> cgroup_memory_limit(const std::string& memberships, const std::string& root) {
    std::optional<MemoryLimit> least;
    for_each_folder(memberships, root, "memory", [&](const std::string& folder, bool unified) {
        const std::optional<MemoryLimit> memory = memory_of(folder, unified);
        if (memory && (!least || memory->limit - memory->used < least->limit - least->used)) least = memory;
    });
    return least;
}

}  // namespace turbotune
