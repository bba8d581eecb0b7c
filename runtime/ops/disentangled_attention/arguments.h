// The kernels' arguments: what the problem fixes when a plan is made, and what each call adds. Internal to
// ops/disentangled_attention.
#pragma once

#include "disentangled_attention/params.h"
#include "turbotune/ops/disentangled_attention/attention.h"
#include "turbotune/ops/disentangled_attention/problem.h"

namespace turbotune::disentangled_attention {

// The slot table goes to the device as a constant of the runtime.
ForwardParams forward_arguments(Runtime& runtime, const Problem& problem);
BackwardParams backward_arguments(Runtime& runtime, const Problem& problem);

void set_buffers(ForwardParams& params, const Problem& problem, const Buffers& buffers);
void set_buffers(BackwardParams& params, const Problem& problem, const Buffers& buffers);

// Throws InvalidArgument naming the first buffer that the problem needs and that is null or not a multiple of its
// alignment: `element_alignment` bytes for tensors of elements.
void check_buffers(const Problem& problem, const Buffers& buffers, std::size_t element_alignment,
                   std::size_t workspace_bytes);

}  // namespace turbotune::disentangled_attention
