// The CPU device's plain kernels, forward_reference.cpp and backward_reference.cpp: launches and workspace of the
// reference tier.
#pragma once

#include "tier.h"

namespace turbotune::disentangled_attention {

KernelLaunch host_reference_launch(const Problem& problem, const DeviceInfo& device);
std::size_t host_reference_workspace_bytes(const Problem& problem);

}  // namespace turbotune::disentangled_attention
