// What is known of a device, and the class of devices for which one profile holds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace turbotune {

enum class DeviceKind { cpu, cuda };

// A profile measured on one member holds for every other. Names are not part of it: a MIG slice or
// another board under the same name has other numbers here.
struct DeviceClass {
    std::string arch;                  // "sm_90"; for the CPU device "x86_64-avx512", "x86_64-avx2", "aarch64-neon", ...
    int sm_count = 0;                  // multiprocessors; CPU: threads that the device uses
    std::int64_t l2_bytes = 0;         // GPU: L2; CPU: last-level cache seen by one core
    std::int64_t shared_per_block = 0; // GPU: opt-in shared memory of one block; CPU: L2 bytes of one core
    int bus_width = 0;                 // GPU: memory bus in bits; CPU: 0

    // "sm_90-132sm-60MiB-227KiB-6016bit": file-name safe.
    std::string to_string() const;
    friend bool operator==(const DeviceClass&, const DeviceClass&) = default;
};

struct DeviceInfo {
    DeviceKind kind = DeviceKind::cpu;
    int ordinal = 0;                   // GPU: driver ordinal; CPU: 0
    std::string name;                  // "NVIDIA H200", "AMD EPYC": a hint only, never compared
    DeviceClass device_class;
    int cc_major = 0, cc_minor = 0;    // compute capability; 0.0 on the CPU
    std::int64_t total_memory = 0;     // bytes
    int registers_per_sm = 0;          // 32-bit registers
    std::int64_t shared_per_sm = 0;    // bytes
    int max_threads_per_sm = 0;
    std::string uuid;                  // "GPU-xxxxxxxx-..."; empty on the CPU
    int driver_version = 0;            // 13000 for 13.0; 0 on the CPU. A diagnostic, never compared.

    // The compiler's arch name: 9.0 -> "sm_90a", 10.0 -> "sm_100a", 12.0 -> "sm_120a", others plain
    // ("sm_80"); the CPU's is its class arch plus a digest of the instruction set ("x86_64-avx512-1a2b3c4d").
    std::string target() const;
    // Tiers that this device can run, best first: sm90 only on 9.0, mma and simt from 8.0, host on the CPU.
    std::vector<std::string> tiers() const;
};

// Names the arch of a compute capability as target() does.
std::string cuda_target(int cc_major, int cc_minor);

}  // namespace turbotune
