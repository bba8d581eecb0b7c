// GPUs for tests that run without one: what a tier's configs are held against.
#pragma once

#include <string>
#include <vector>

#include "turbotune/base/error.h"
#include "turbotune/device/device_info.h"
#include "turbotune/kernel/compiler.h"

namespace turbotune::testing {

// `shared_per_block`: opt-in shared memory of one block, bytes.
inline DeviceInfo model_gpu(int cc_major, int multiprocessors, std::int64_t shared_per_block) {
    DeviceInfo info;
    info.kind = DeviceKind::cuda;
    info.name = "a GPU";
    info.cc_major = cc_major;
    info.device_class.arch = "sm_" + std::to_string(10 * cc_major);
    info.device_class.sm_count = multiprocessors;
    info.device_class.shared_per_block = shared_per_block;
    info.registers_per_sm = 65536;
    return info;
}

inline DeviceInfo hopper() {
    return model_gpu(9, 132, 227 * 1024);
}

// A100, H200, B200, RTX 5090.
inline std::vector<DeviceInfo> gpus() {
    return {model_gpu(8, 108, 163 * 1024), hopper(), model_gpu(10, 148, 227 * 1024), model_gpu(12, 170, 99 * 1024)};
}

inline bool have_nvrtc() {
    try {
        return !nvrtc_targets().empty();
    } catch (const CompileError&) {
        return false;
    }
}

}  // namespace turbotune::testing
