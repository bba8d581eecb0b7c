// Problems with data: for parity, for timing, and from golden files.
#pragma once

#include "turbotune/ops/disentangled_attention/problem.h"
#include "turbotune/ops/operation.h"

namespace turbotune::disentangled_attention {

std::vector<TestCase> make_parity_cases(const Workload& workload, const DeviceInfo& device, std::uint64_t seed);
TestCase make_timing_case(const Workload& workload, const DeviceInfo& device, std::uint64_t seed);
std::vector<TestCase> make_golden_cases(const SafetensorsFile& file,
                                        std::vector<std::pair<std::string, std::string>>* skipped);

enum class MaskPattern { none, right, left, holes, second_half, last_only, first_only, alternating, all_hidden };
const char* to_string(MaskPattern pattern);

// Random inputs of a problem: q, k, v, tables ~ N(0, 1). Packed: `lengths` are the sequences' (their sum is
// problem.tokens). The same seed gives the same data.
NamedTensors random_inputs(const Problem& problem, MaskPattern pattern, const std::vector<int>& lengths,
                           std::uint64_t seed);

// 2e-4 strict fp32, 5e-3 tf32, 2e-2 half: largest error relative to the largest value.
double tolerance_of(const Problem& problem);

// A case of the problem with `expected` from the float64 reference when asked for.
TestCase make_case(const Problem& problem, MaskPattern pattern, const std::vector<int>& lengths, std::uint64_t seed,
                   bool with_reference);

}  // namespace turbotune::disentangled_attention
