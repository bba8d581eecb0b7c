// What the CUDA tiers share: configs as rows of integers, the check of configs that come from elsewhere, and launches
// with one block per block of query rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tier.h"

namespace turbotune::disentangled_attention {

// A field of a tier's configs, and every value that candidates() may give it.
struct ScheduleAxis {
    const char* name;
    std::vector<int> values;
};

Config make_config(const char* tier, const std::vector<ScheduleAxis>& axes, const std::vector<int>& values);
// Throws InvalidArgument for a missing or unknown field, or a value that is not on its axis.
void check_config(const char* tier, const std::vector<ScheduleAxis>& axes, const Config& config);

// What a tier's kernels do beyond inference.
struct Served {
    bool dropout = false, backward = false;
};
// Empty when the workload has a native head_dim and asks for nothing that is not served; else why not.
std::string refuse_unserved(const char* tier, const Workload& workload, const Served& served);

// Of a workload: both workloads of the backward pass run the same kernels.
bool is_backward(const Workload& workload);
bool has_dropout(const Workload& workload);

// Registers per thread that __launch_bounds__(threads, blocks_per_sm) leaves.
int registers_per_thread(int threads, int blocks_per_sm);

// Every row of every tensor starts at a multiple of 8 elements (its base pointer is 16-byte aligned: see
// AttentionPlan).
bool has_aligned_rows(const Problem& problem);

// Blocks in a one-dimensional grid; throws Unsupported beyond 2^31 - 1.
unsigned blocks_of(const Problem& problem, int rows_per_block);

struct PositionTerms {
    bool c2p = true, p2c = true;
    int count() const { return int{c2p} + int{p2c}; }
};
PositionTerms position_terms(const Workload& workload);

}  // namespace turbotune::disentangled_attention
