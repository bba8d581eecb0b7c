// The workloads of disentangled attention: their fields, the presets, and how a problem maps to one.
// Fields: pass, layout (padded | padded_masked | packed), length (family), batch_heads (8 | 32), head_dim,
// precision (half | fp32_strict | fp32_fast), relative (c2p_p2c | c2p | p2c | none), dropout.
#pragma once

#include <optional>
#include <vector>

#include "turbotune/ops/disentangled_attention/problem.h"
#include "turbotune/ops/operation.h"

namespace turbotune::disentangled_attention {

inline constexpr const char* kName = "disentangled_attention";

// Upper bounds of the length families; longer problems run in the last.
inline constexpr int kLengthFamilies[] = {64, 128, 384, 512, 768, 1024, 2048, 4096, 8192};

int length_family(int length);
Workload workload_of(const Problem& problem);
std::vector<Workload> enumerate_workloads(const WorkloadQuery& query);
std::vector<Workload> workload_neighbours(const Workload& workload);
std::vector<std::pair<std::string, std::string>> workload_axes();

// A problem of the workload, of the given element type, without sizes other than head_dim and length.
Problem problem_of(const Workload& workload, DType dtype);
// Another workload that the same kernels serve, so that one measurement holds for both: backward_dq and backward_dkdv.
std::optional<Workload> shared_winner(const Workload& workload);
// The element types that fall into the workload's precision.
std::vector<DType> dtypes_of(const Workload& workload);

}  // namespace turbotune::disentangled_attention
