// The devices of --devices.
#pragma once

#include <string>
#include <vector>

#include "turbotune/device/device_info.h"

namespace turbotune::cli {

// "all" (every GPU of `present`; the CPU where there is none) or "0,1", as names for the sweep. Throws InvalidArgument
// naming --devices for what is not there or named twice, and for devices of several classes, listing which are alike.
std::vector<std::string> choose_devices(const std::string& text, const std::vector<DeviceInfo>& present);

}  // namespace turbotune::cli
