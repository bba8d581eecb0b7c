// Vector registers of a CPU, which bound its register tiles.
#pragma once

#include <string>

#include "turbotune/device/device.h"

namespace turbotune::disentangled_attention {

// 32 rather than 16.
inline bool has_many_registers(const DeviceInfo& device) {
    const std::string& arch = device.device_class.arch;
    return arch.find("avx512") != std::string::npos || arch.find("aarch64") != std::string::npos;
}

}  // namespace turbotune::disentangled_attention
