// Devices that need not be here: one board, as sold, of each architecture.
#pragma once

#include <string>
#include <vector>

#include "turbotune/device/device_info.h"

namespace turbotune {

// By arch ("sm_90"), compiler target ("sm_90a") or device class ("sm_90-114sm-50MiB-227KiB-5120bit", which is then the
// device's own). Throws InvalidArgument listing the archs.
DeviceInfo model_device(const std::string& name);
std::vector<std::string> model_archs();

}  // namespace turbotune
