#include "turbotune/tuner/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <map>
#include <set>

#include "candidate_list.h"
#include "profile_file.h"
#include "provenance.h"
#include "turbotune/base/error.h"
#include "turbotune/base/files.h"

namespace turbotune {

namespace {

void refuse_differences(const LoadedProfile& first, const LoadedProfile& other,
                        const std::map<std::string, std::pair<std::string, std::string>>& digests) {
    std::vector<std::string> differences;
    const auto note = [&](const std::string& what, const auto& here, const auto& there) {
        if (here != there) differences.push_back(fmt::format("{}: {}, there {}", what, here, there));
    };
    const DeviceClass &here = other.profile.device_class, &there = first.profile.device_class;
    note("arch", here.arch, there.arch);
    note("sm_count", here.sm_count, there.sm_count);
    note("l2_bytes", here.l2_bytes, there.l2_bytes);
    note("shared_per_block", here.shared_per_block, there.shared_per_block);
    note("bus_width", here.bus_width, there.bus_width);
    note("compiler", other.profile.compiler, first.profile.compiler);
    std::string against = first.path;
    for (const auto& [operation, digest] : other.profile.templates) {
        const auto found = digests.find(operation);
        if (found == digests.end() || found->second.first == digest) continue;
        note("templates of " + operation, digest.substr(0, 12), found->second.first.substr(0, 12));
        against = found->second.second;
    }
    if (differences.empty()) return;
    throw InvalidArgument(other.path,
                          fmt::format("cannot be joined with {}: {}", against, fmt::join(differences, "; ")));
}

struct Holder {
    std::size_t source;
    const ProfileEntry* entry;
};

bool same(const ProfileEntry& a, const ProfileEntry& b) {
    return a.config == b.config && a.latency.median == b.latency.median && a.latency.samples == b.latency.samples;
}

// N of the shards "K/N" that the profile came from; 0 when it knows of none, or of several ways to share.
int shards_of(const Profile& profile) {
    const auto found = profile.provenance.find(kShardKey);
    if (found == profile.provenance.end()) return 0;
    int shards = 0;
    for (const std::string& part : split(found->second, ", ")) {
        const std::size_t slash = part.find('/');
        int count = 0;
        const char* const end = part.data() + part.size();
        if (slash == std::string::npos || std::from_chars(part.data() + slash + 1, end, count).ptr != end || count < 1)
            return 0;
        if (shards != 0 && shards != count) return 0;
        shards = count;
    }
    return shards;
}

bool same_file(const std::string& a, const std::string& b) {
    std::error_code ignored;
    return a == b || std::filesystem::equivalent(a, b, ignored);
}

}  // namespace

MergeReport merge_profiles(const std::vector<LoadedProfile>& inputs) {
    if (inputs.empty()) throw InvalidArgument("inputs", "there is no profile to join");
    MergeReport report;
    Profile& profile = report.profile;
    profile.device_class = inputs.front().profile.device_class;
    profile.device_name = inputs.front().profile.device_name;
    profile.compiler = inputs.front().profile.compiler;
    std::map<std::string, std::pair<std::string, std::string>> digests;  // operation -> digest, path
    std::vector<std::vector<Holder>> holders;                            // per workload, in order of appearance
    std::map<std::string, std::vector<std::size_t>> places;              // text -> holders of workloads of that text
    for (std::size_t source = 0; source < inputs.size(); ++source) {
        const LoadedProfile& input = inputs[source];
        refuse_differences(inputs.front(), input, digests);
        for (const auto& [operation, digest] : input.profile.templates)
            digests.emplace(operation, std::pair{digest, input.path});
        join_provenance(profile.provenance, input.profile.provenance);
        report.sources.push_back({input.path, int(input.profile.entries.size()), 0});
        for (const ProfileEntry& entry : input.profile.entries) {
            // Equal workloads may list their fields in any order.
            auto fields = entry.workload.fields.entries();
            std::sort(fields.begin(), fields.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
            std::string key = entry.workload.operation;
            for (const auto& [name, value] : fields) key += fmt::format(" {}={}", name, to_string(value));
            std::vector<std::size_t>& candidates = places[key];
            const auto known = std::find_if(candidates.begin(), candidates.end(), [&](std::size_t place) {
                return holders[place].front().entry->workload == entry.workload;
            });
            if (known != candidates.end()) {
                holders[*known].push_back({source, &entry});
                continue;
            }
            candidates.push_back(holders.size());
            holders.push_back({{source, &entry}});
        }
    }
    for (const LoadedProfile& input : inputs)
        for (const ProfileEntry& entry : input.profile.entries) {
            const std::string& operation = entry.workload.operation;
            if (input.profile.templates.count(operation) == 0 && digests.count(operation) > 0)
                throw InvalidArgument(input.path,
                                      fmt::format("cannot be joined with {}: it does not say which templates of {} "
                                                  "its entries were measured with",
                                                  digests.at(operation).second, operation));
        }
    for (const auto& [operation, digest] : digests) profile.templates[operation] = digest.first;
    for (const std::vector<Holder>& each : holders) {
        const Holder& best = *std::min_element(each.begin(), each.end(), [](const Holder& a, const Holder& b) {
            return a.entry->latency.median < b.entry->latency.median;  // the first of equal ones
        });
        profile.entries.push_back(*best.entry);
        ++report.sources[best.source].kept;
        for (const Holder& other : each) {
            if (same(*other.entry, *best.entry)) continue;
            report.conflicts.push_back({best.entry->workload, inputs[best.source].path, inputs[other.source].path,
                                        best.entry->latency.median, other.entry->latency.median,
                                        best.entry->config == other.entry->config});
        }
    }
    return report;
}

MergeReport merge_files(const std::string& named, const std::vector<std::string>& inputs) {
    const std::string output = prepare_output(named);
    // A sweep may be writing there.
    const FileLock lock = FileLock::acquire(output + ".lock", std::chrono::seconds(20));
    std::vector<LoadedProfile> loaded;
    if (file_exists(output)) loaded.push_back({output, load_profile(output)});
    for (const std::string& path : inputs)
        if (loaded.empty() || !same_file(path, output)) loaded.push_back({path, load_profile(path)});
    MergeReport report = merge_profiles(loaded);
    save_profile(report.profile, output);
    return report;
}

Coverage coverage(const Profile& profile, const SweepOptions& options, const std::vector<const Operation*>& known) {
    SweepOptions whole = options;
    whole.shard = whole.shards = 1;
    const DeviceInfo device = device_of_class(profile.device_class);
    const int shards = shards_of(profile);
    Coverage result;
    const std::vector<SweepItem> items = sweep_items(whole, known);
    const std::vector<int> dealt = deal_shards(items, std::max(1, shards));
    for (const SweepItem& item : items) {
        const auto place = static_cast<std::size_t>(result.workloads++);
        if (profile.find(item.workload) != nullptr) {
            ++result.held;
        } else if (!list_candidates(item, device, options.query.preset).unavailable.empty()) {
            ++result.unavailable;
        } else {
            const std::string shard = shards > 0 ? fmt::format("{}/{}", dealt[place] + 1, shards) : "";
            result.missing.push_back({item.workload, shard});
        }
    }
    return result;
}

DeviceInfo device_of_class(const DeviceClass& device_class) {
    for (DeviceInfo& info : list_devices())
        if (info.device_class == device_class) return info;
    DeviceInfo info;
    info.device_class = device_class;
    info.name = device_class.arch;
    constexpr std::string_view kPrefix = "sm_";
    if (device_class.arch.rfind(kPrefix, 0) != 0) return info;
    info.kind = DeviceKind::cuda;
    int number = 0;  // 90: compute capability 9.0
    std::from_chars(device_class.arch.data() + kPrefix.size(), device_class.arch.data() + device_class.arch.size(),
                    number);
    info.cc_major = number / 10;
    info.cc_minor = number % 10;
    info.registers_per_sm = 65536;  // of every GPU since compute capability 5.0
    info.shared_per_sm = device_class.shared_per_block + 1024;
    info.max_threads_per_sm = 1024;  // the least of those that a tier serves
    return info;
}

}  // namespace turbotune
