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
    std::vector<Config> configs;              // the heuristic's first, then best guess first, then the incumbent
    std::optional<Config> incumbent;          // the winner of a profile that was there before
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

// quick: the heuristic's config and one more; standard: three more; exhaustive: all. Nothing that fails the filter. The
// winner of the first of `profiles` that is of the device's class and has the workload comes along, so that a sweep that
// measures little does not fall behind one that measured much.
CandidateList list_candidates(const SweepItem& item, const DeviceInfo& device, Preset preset,
                              const std::vector<LoadedProfile>& profiles = {});

}  // namespace turbotune
