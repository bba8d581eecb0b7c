// The two kinds behind load_kernel().
#pragma once

#include <memory>

#include "turbotune/kernel/loaded_kernel.h"

namespace turbotune {

std::shared_ptr<LoadedKernel> load_cuda_kernel(Device& device, const Image& image);
std::shared_ptr<LoadedKernel> load_host_kernel(Device& device, const Image& image);

}  // namespace turbotune
