// Constant tables in device memory, one copy for each content. Internal to ops.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "turbotune/device/device.h"

namespace turbotune {

class ConstantCache {
  public:
    // Thread safe; legal while any stream is being captured.
    DevicePointer get(Device& device, const void* data, std::size_t bytes);

  private:
    std::mutex mutex_;
    std::map<std::string, DeviceBuffer> buffers_;  // by the bytes themselves
};

}  // namespace turbotune
