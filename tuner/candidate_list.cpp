#include "candidate_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "turbotune/base/error.h"

namespace turbotune {

namespace {

std::vector<const Operation*> chosen_operations(const SweepOptions& options,
                                                const std::vector<const Operation*>& known) {
    if (options.operations.empty()) return known;
    std::vector<const Operation*> chosen;
    for (const std::string& name : options.operations) {
        auto found = std::find_if(known.begin(), known.end(), [&](const Operation* o) { return o->name() == name; });
        if (found == known.end()) {
            std::vector<std::string> names;
            for (const Operation* operation : known) names.push_back(operation->name());
            throw InvalidArgument("ops", fmt::format("\"{}\" is not one of {}", name, fmt::join(names, ", ")));
        }
        if (std::find(chosen.begin(), chosen.end(), *found) == chosen.end()) chosen.push_back(*found);
    }
    return chosen;
}

std::size_t most_configs(Preset preset) {
    switch (preset) {
        case Preset::quick:
            return 2;
        case Preset::standard:
            return 4;
        case Preset::exhaustive:
            break;
    }
    return std::numeric_limits<std::size_t>::max();
}

bool contains(const std::vector<Config>& configs, const Config& config) {
    return std::find(configs.begin(), configs.end(), config) != configs.end();
}

// Each once, in the profiles' order.
std::vector<Config> known_winners(const SweepItem& item, const DeviceInfo& device,
                                  const std::vector<LoadedProfile>& profiles) {
    std::vector<Config> winners;
    for (const LoadedProfile& loaded : profiles) {
        if (loaded.profile.device_class != device.device_class) continue;
        const ProfileEntry* entry = loaded.profile.find(item.workload);
        if (!entry || contains(winners, entry->config)) continue;
        try {
            if (item.operation->filter(item.workload, entry->config, device).fits) winners.push_back(entry->config);
        } catch (const Error&) {
            // a config of other templates
        }
    }
    return winners;
}

}  // namespace

std::vector<SweepItem> sweep_items(const SweepOptions& options, const std::vector<const Operation*>& known) {
    if (options.shards < 1 || options.shard < 1 || options.shard > options.shards)
        throw InvalidArgument("shard", fmt::format("{}/{} is not 1/{} to {}/{}", options.shard, options.shards,
                                                   std::max(1, options.shards), std::max(1, options.shards),
                                                   std::max(1, options.shards)));
    std::vector<SweepItem> all, own;
    for (const Operation* operation : chosen_operations(options, known))
        for (Workload& workload : operation->workloads(options.query)) all.push_back({operation, std::move(workload)});
    if (options.shards == 1) return all;
    const std::vector<int> shards = deal_shards(all, options.shards);
    for (std::size_t i = 0; i < all.size(); ++i)
        if (shards[i] == options.shard - 1) own.push_back(std::move(all[i]));
    return own;
}

std::vector<std::vector<std::size_t>> group_shared(const std::vector<SweepItem>& items) {
    std::vector<std::vector<std::size_t>> groups;
    std::map<std::string, std::size_t> waiting;  // by the workload that would join the group
    for (std::size_t i = 0; i < items.size(); ++i) {
        const auto found = waiting.find(items[i].workload.to_string());
        if (found != waiting.end()) {
            groups[found->second].push_back(i);
            continue;
        }
        if (const std::optional<Workload> other = items[i].operation->shared_winner(items[i].workload))
            waiting.emplace(other->to_string(), groups.size());
        groups.push_back({i});
    }
    return groups;
}

std::vector<int> deal_shards(const std::vector<SweepItem>& items, int shards) {
    std::vector<int> shard(items.size());
    const std::vector<std::vector<std::size_t>> groups = group_shared(items);
    for (std::size_t group = 0; group < groups.size(); ++group)
        for (const std::size_t item : groups[group]) shard[item] = static_cast<int>(group % std::size_t(shards));
    return shard;
}

std::vector<LoadedProfile> known_profiles(std::vector<LoadedProfile> profiles, const Profile& here) {
    std::stable_partition(profiles.begin(), profiles.end(), [&](const LoadedProfile& known) {
        return std::all_of(here.templates.begin(), here.templates.end(), [&](const auto& operation) {
            return compare(known.profile, operation.first, here.device_class, here.compiler, operation.second).grade ==
                   Grade::exact;
        });
    });
    return profiles;
}

CandidateList list_candidates(const SweepItem& item, const DeviceInfo& device, Preset preset,
                              const std::vector<LoadedProfile>& profiles) {
    CandidateList list;
    const auto& [operation, workload] = item;
    list.unavailable = operation->unavailable(workload, device);
    if (!list.unavailable.empty()) return list;
    std::vector<Config> fitting;
    try {
        fitting.push_back(operation->heuristic(workload, device));
    } catch (const Unsupported& error) {
        list.unavailable = error.what();
        return list;
    }
    for (Config& config : operation->candidates(workload, device)) {
        if (contains(fitting, config)) continue;
        Verdict verdict = operation->filter(workload, config, device);
        if (verdict.fits)
            fitting.push_back(std::move(config));
        else
            list.filtered.push_back({std::move(config), "filtered", verdict.reason});
    }
    fitting.resize(std::min(fitting.size(), most_configs(preset)));
    list.configs = std::move(fitting);
    for (const Config& winner : known_winners(item, device, profiles)) {
        if (!list.incumbent) list.incumbent = winner;
        if (!contains(list.configs, winner)) list.configs.push_back(winner);
    }
    return list;
}

std::vector<PlannedWorkload> plan_sweep(const SweepOptions& options, const std::vector<const Operation*>& known) {
    std::vector<SweepItem> items = sweep_items(options, known);
    const DeviceInfo& device = open_device(options.devices.empty() ? options.device : options.devices.front()).info();
    std::vector<PlannedWorkload> plan;
    for (const SweepItem& item : items) {
        CandidateList list = list_candidates(item, device, options.query.preset, options.profiles);
        PlannedWorkload planned;
        planned.workload = item.workload;
        planned.candidates = int(list.configs.size());
        planned.filtered = int(list.filtered.size());
        planned.unavailable = list.unavailable;
        plan.push_back(std::move(planned));
    }
    return plan;
}

}  // namespace turbotune
