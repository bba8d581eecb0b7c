// The Device on the machine's own CPUs and memory.
#pragma once

#include <memory>

#include "turbotune/device/device.h"

namespace turbotune {

std::unique_ptr<Device> make_cpu_device();

}  // namespace turbotune
