// What is known of the CPUs that this process may use.
#pragma once

#include <string>

#include "turbotune/device/device_info.h"

namespace turbotune {

// CPUs of the affinity mask, at most the control group's quota rounded up; TURBOTUNE_CPU_THREADS
// replaces both. The first call decides. Throws InvalidArgument when that variable is no count.
int usable_cpu_threads();

// The arch of the CPU's class: "x86_64-avx512", "x86_64-avx2", "x86_64", "aarch64-neon", ...
std::string cpu_arch();

// Eight hexadecimal digits that differ between CPUs with different instruction sets.
std::string cpu_feature_digest();
// The same of given flags, in any order.
std::string feature_digest(const std::string& flags);

DeviceInfo cpu_device_info();

// Bytes of memory, of the machine or of the control group where that is less.
std::int64_t total_memory();
// Bytes that can be allocated now without swapping.
std::int64_t available_memory();

}  // namespace turbotune
