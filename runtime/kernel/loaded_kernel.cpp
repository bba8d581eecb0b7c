#include "turbotune/kernel/loaded_kernel.h"

#include "loaded_kernel_parts.h"

namespace turbotune {

std::shared_ptr<LoadedKernel> load_kernel(Device& device, const Image& image) {
    return device.info().kind == DeviceKind::cuda ? load_cuda_kernel(device, image) : load_host_kernel(device, image);
}

}  // namespace turbotune
