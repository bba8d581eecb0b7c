// Two sweeps on one device distort each other's times.
#pragma once

#include <string>
#include <vector>

#include "turbotune/base/files.h"
#include "turbotune/device/device_info.h"

namespace turbotune {

// For as long as a sweep measures: whoever comes second on a device is told, by a warning. Sweeps meet in the user's
// folder of profiles, or where there is none beside the profile that they write; nowhere when neither can be written.
std::vector<FileLock> claim_devices(const std::vector<const DeviceInfo*>& devices, const std::string& profile_path);

}  // namespace turbotune
