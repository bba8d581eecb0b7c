// From the config of a workload to that of one problem in it. Internal to ops/disentangled_attention.
#pragma once

#include <string>

#include "turbotune/device/device_info.h"
#include "turbotune/ops/disentangled_attention/problem.h"
#include "turbotune/profile/profile.h"

namespace turbotune::disentangled_attention {

struct Fitted {
    Config config;
    std::string why;  // it is not the given one; else empty
};

// `config` was measured, or is the heuristic's guess, for the workload `matched`.
Fitted fit(const Problem& problem, const Workload& matched, const Config& config, const DeviceInfo& device);

}  // namespace turbotune::disentangled_attention
