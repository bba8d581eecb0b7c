// What the handles of the C interface hold.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "turbotune/device/device_info.h"
#include "turbotune/ops/disentangled_attention/attention.h"
#include "turbotune/ops/runtime.h"
#include "turbotune/turbotune.h"

struct turbotune_runtime {
    std::shared_ptr<turbotune::Runtime> runtime;
};

struct turbotune_plan {
    std::shared_ptr<turbotune::Runtime> runtime;  // the plan uses its constants
    turbotune::disentangled_attention::AttentionPlan attention;
    std::string config;
    std::vector<turbotune::KernelMetadata> kernels;
};

namespace turbotune::capi {

turbotune_device_info describe(const DeviceInfo& info);

}  // namespace turbotune::capi
