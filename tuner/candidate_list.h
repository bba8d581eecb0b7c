// Which workloads a sweep visits, and which configs it measures for each.
#pragma once

#include <string>
#include <vector>

#include "turbotune/tuner/sweep.h"

namespace turbotune {

struct SweepItem {
    const Operation* operation = nullptr;
    Workload workload;
};

struct CandidateList {
    std::vector<Config> configs;              // the heuristic's first, then best guess first
    std::vector<RejectedCandidate> filtered;  // reason "filtered"
    std::string unavailable;                  // why there is nothing to measure
};

// Every workload of the query, less those of other shards. Throws InvalidArgument for an unknown operation or a shard
// that is not 1 .. shards.
std::vector<SweepItem> sweep_items(const SweepOptions& options, const std::vector<const Operation*>& known);

// quick: the heuristic's config and one more; standard: three more; exhaustive: all. Nothing that fails the filter.
CandidateList list_candidates(const SweepItem& item, const DeviceInfo& device, Preset preset);

}  // namespace turbotune
