// The Device on top of the CUDA driver.
#pragma once

#include <memory>

#include "turbotune/device/cuda_driver.h"
#include "turbotune/device/device.h"

namespace turbotune {

// From attributes alone: no context is made.
DeviceInfo cuda_device_info(const cuda::Driver& driver, int ordinal);

// Least compute capability that a tier serves.
inline constexpr int kLeastComputeMajor = 8;

// Retains the device's primary context, for ever. Throws DeviceError.
std::unique_ptr<Device> make_cuda_device(const cuda::Driver& driver, int ordinal);

}  // namespace turbotune
