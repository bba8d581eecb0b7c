// Problems with data: for parity, for timing, and from golden files.
#pragma once

#include "turbotune/ops/disentangled_attention/problem.h"
#include "turbotune/ops/operation.h"

namespace turbotune::disentangled_attention {

// Of every case with dropout.
inline constexpr std::uint64_t kCaseDropoutSeed = 0x5eed0123456789abull, kCaseDropoutOffset = 7;

std::vector<TestCase> make_parity_cases(const Workload& workload, const DeviceInfo& device, std::uint64_t seed);
// Of a backward workload: the forward problems of its full-size cases, less what no kernel depends on.
std::vector<Fields> producers_of(const Workload& workload, const DeviceInfo& device);
TestCase make_timing_case(const Workload& workload, const DeviceInfo& device, std::uint64_t seed);
// Without expected values. Masked: right padding. Packed: one sequence has the problem's length and the others share
// the remaining tokens evenly; with no tokens given all have that length.
TestCase make_problem_case(Problem problem, std::uint64_t seed);
std::vector<TestCase> make_golden_cases(const SafetensorsFile& file,
                                        std::vector<std::pair<std::string, std::string>>* skipped);

enum class MaskPattern { none, right, left, holes, second_half, last_only, first_only, alternating, all_hidden };
const char* to_string(MaskPattern pattern);

// Random inputs of a problem: q, k, v, tables, dout ~ N(0, 1). out and lse of the backward pass are not among them:
// they come from the forward pass. Packed: `lengths` are the sequences' (their sum is problem.tokens). The same seed
// gives the same data.
NamedTensors random_inputs(const Problem& problem, MaskPattern pattern, const std::vector<int>& lengths,
                           std::uint64_t seed);

// 2e-4 strict fp32, 5e-3 tf32, 2e-2 half: largest error relative to the largest value.
double tolerance_of(const Problem& problem);

// The tensors that a problem writes.
std::vector<TensorSpec> output_specs(const Problem& problem);
// Adds out, in the problem's element type, and lse to the inputs of a backward problem, and gives what
// backward_reference does.
NamedTensors add_forward_results(const Problem& problem, NamedTensors& inputs);

// A case of the problem with `expected` from the float64 reference when asked for. A backward case without it gets out
// and lse from its producer.
TestCase make_case(const Problem& problem, MaskPattern pattern, const std::vector<int>& lengths, std::uint64_t seed,
                   bool with_reference);

}  // namespace turbotune::disentangled_attention
