// The least time that a device needs for a number of operations and bytes.
#pragma once

#include <optional>
#include <string>

#include "turbotune/base/fields.h"
#include "turbotune/device/device_info.h"

namespace turbotune {

struct Peaks {
    double flops_per_s = 0;  // of the unit that does the products of the problem's element type
    double bytes_per_s = 0;  // of device memory, read and written
    std::string source;      // of the two numbers

    // Milliseconds: no execution that does this work on such a device is faster.
    double floor_ms(double flops, double bytes) const;
};

// By device class (names lie) and the problem's `dtype` and `math`. Nothing for devices that are not in the table.
std::optional<Peaks> known_peaks(const DeviceInfo& device, const Fields& problem);

}  // namespace turbotune
