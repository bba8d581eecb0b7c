#include "turbotune/tuner/peaks.h"

#include <algorithm>

namespace turbotune {

namespace {

struct Entry {
    const char* arch;
    int sm_count, bus_width;
    double half, tf32, fp32;  // dense TFLOP/s
    double copy;              // TB/s
    const char* source;
};

// NVIDIA H200 Tensor Core GPU datasheet: 1979 TFLOP/s half and 989 tf32 with sparsity, half of that without; 67 fp32.
// Large bf16 products run at 722 to 790 TFLOP/s there, so that a share of 75 to 80 % is what products alone reach. The
// copy (bytes read plus bytes written) is measured; the datasheet has 4.8 TB/s.
constexpr Entry kEntries[] = {
    {"sm_90", 132, 6016, 989.5, 494.7, 67.0, 4.25,
     "H200 datasheet without sparsity, and a measured device-to-device copy"},
};

std::string text_of(const Fields& fields, const char* name) {
    const FieldValue* value = fields.find(name);
    return value ? to_string(*value) : "";
}

}  // namespace

double Peaks::floor_ms(double flops, double bytes) const {
    return std::max(flops / flops_per_s, bytes / bytes_per_s) * 1e3;
}

std::optional<Peaks> known_peaks(const DeviceInfo& device, const Fields& problem) {
    const DeviceClass& here = device.device_class;
    for (const Entry& entry : kEntries) {
        if (here.arch != entry.arch || here.sm_count != entry.sm_count || here.bus_width != entry.bus_width) continue;
        const std::string dtype = text_of(problem, "dtype");
        double tflops = entry.half;
        if (dtype == "f32") tflops = text_of(problem, "math") == "fast" ? entry.tf32 : entry.fp32;
        return Peaks{tflops * 1e12, entry.copy * 1e12, entry.source};
    }
    return std::nullopt;
}

}  // namespace turbotune
