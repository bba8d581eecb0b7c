// Under which conditions something is measured here: what profiles record, and are compared by.
#pragma once

#include <string>
#include <vector>

#include "turbotune/kernel/compiler.h"
#include "turbotune/profile/profile.h"

namespace turbotune {

// "cpu" or an ordinal: what --device takes.
std::string device_argument(const DeviceInfo& device);
Compiler& compiler_of(const DeviceInfo& device);
std::string utc_now();  // "2026-11-30T08:18:20Z"

// A profile of this device, compiler and the operations' templates, with no entries yet.
Profile fresh_profile(const DeviceInfo& device, const std::vector<std::string>& operations,
                      const std::string& command_line);

}  // namespace turbotune
