// The devices of --devices.
#pragma once

#include <string>
#include <vector>

#include "turbotune/device/device_info.h"

namespace turbotune::cli {

// "all" (every GPU of `present`; the CPU, with a warning, where there is none) or "0,1", as names for the sweep. Throws
// InvalidArgument naming --devices for what is not there or named twice, and for devices of several classes, listing
// which are alike; DeviceError, with `why_no_gpu`, for the number of a GPU where there is none at all.
std::vector<std::string> choose_devices(const std::string& text, const std::vector<DeviceInfo>& present,
                                        const std::string& why_no_gpu = "");

}  // namespace turbotune::cli
