// Two sweeps on one device distort each other's times.
#pragma once

#include <string>
#include <vector>

#include "turbotune/device/device_info.h"

namespace turbotune {

// Held for as long as a sweep measures.
class DeviceClaim {
  public:
    explicit DeviceClaim(int descriptor) : descriptor_(descriptor) {}
    ~DeviceClaim();
    DeviceClaim(DeviceClaim&& other) noexcept;
    DeviceClaim& operator=(DeviceClaim&&) = delete;

  private:
    int descriptor_;
};

// Whoever comes second, or later, on a device is told, by a warning. Sweeps meet in the user's folder of profiles, or
// where there is none beside the profile that they write; nowhere when neither can be written or files cannot be locked
// there.
std::vector<DeviceClaim> claim_devices(const std::vector<const DeviceInfo*>& devices, const std::string& profile_path);

}  // namespace turbotune
