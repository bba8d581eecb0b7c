// Which workloads a sweep visits, and which configs it measures for each.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "turbotune/tuner/sweep.h"

namespace turbotune {

struct SweepItem {
    const Operation* operation = nullptr;
    Workload workload;
};

struct CandidateList {
    std::vector<Config> configs;              // the heuristic's first, then best guess first, then winners known before
    std::optional<Config> incumbent;          // of the winners known before, the one that programs would take
    std::vector<RejectedCandidate> filtered;  // reason "filtered"
    std::string unavailable;                  // why there is nothing to measure
};

// For each item the shard, from 0 on, that measures it: items that share a winner go to the same.
std::vector<int> deal_shards(const std::vector<SweepItem>& items, int shards);
// Indices of items, together those that share a winner.
std::vector<std::vector<std::size_t>> group_shared(const std::vector<SweepItem>& items);

// Every workload of the query, less those of other shards. Throws InvalidArgument for an unknown operation or a shard
// that is not 1 .. shards.
std::vector<SweepItem> sweep_items(const SweepOptions& options, const std::vector<const Operation*>& known);

// In the order in which programs here would take their winners: those of this compiler and these templates first.
// `here`: an empty profile of what is here.
std::vector<LoadedProfile> known_profiles(std::vector<LoadedProfile> profiles, const Profile& here);

// quick: the heuristic's config and one more; standard: three more; exhaustive: all. Nothing that fails the filter. The
// winners of `profiles` of the device's class come along, so that a sweep that measures little does not fall behind one
// that measured much; the first of them is the incumbent.
CandidateList list_candidates(const SweepItem& item, const DeviceInfo& device, Preset preset,
                              const std::vector<LoadedProfile>& profiles = {});

}  // namespace turbotune
