// A tier of the operation: which workloads its kernels serve, with which configs, at what cost, and how they are
// launched. Internal to ops/disentangled_attention.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "turbotune/kernel/kernel_spec.h"
#include "turbotune/kernel/loaded_kernel.h"
#include "turbotune/ops/disentangled_attention/problem.h"
#include "turbotune/ops/operation.h"

struct BackwardParams;  // kernel_templates/disentangled_attention/params.h

namespace turbotune::disentangled_attention {

struct KernelLaunch {
    KernelSpec spec;
    LaunchShape shape;
    bool tensor_maps = false;  // forward: takes ForwardMaps of the tensors as its second argument
};

class Tier {
  public:
    virtual ~Tier() = default;
    virtual const char* name() const = 0;  // "sm90", "mma", "simt", "host", "reference"
    // Empty when this tier serves the workload (the problem fields pass, layout, head_dim, precision); else why not.
    virtual std::string refuse(const Workload& workload) const = 0;
    // Every config worth measuring, best guess first; each has "tier" = name() as its first field.
    virtual std::vector<Config> candidates(const Workload& workload, const DeviceInfo& device) const = 0;
    // Throws InvalidArgument when a field is missing, unknown, or not a value that candidates() may produce: this is
    // the check that a config from a profile must pass.
    virtual Resources resources(const Workload& workload, const Config& config) const = 0;
    // The kernels of one execution, in launch order, each taking one ForwardParams by value, and where it says so
    // ForwardMaps; BackwardParams in the backward pass.
    virtual std::vector<KernelLaunch> launches(const Problem& problem, const Config& config,
                                               const DeviceInfo& device) const = 0;
    // What an automatic choice for the problem's workload becomes for its exact shape; a candidate, too.
    virtual Config fitted(const Problem& problem, const Config& config) const {
        (void)problem;
        return config;
    }
    virtual std::size_t workspace_bytes(const Problem& problem, const Config& config) const {
        (void)problem, (void)config;
        return 0;
    }
    // Backward: sets what the tier's kernels want beyond the problem, such as the regions of the workspace.
    virtual void fill(const Problem& problem, const Config& config, BackwardParams& params) const {
        (void)problem, (void)config, (void)params;
    }
};

// The template parameters that follow from the problem alone, the same names in every template: head_dim (int),
// dtype (int: 0 f32, 1 f16, 2 bf16), c2p, p2c, mask, packed, lse, dropout (bool).
Fields problem_parameters(const Problem& problem);

const Tier& sm90_tier();
const Tier& mma_tier();
const Tier& simt_tier();
const Tier& host_tier();
const Tier& reference_tier();  // plain fp32 kernel on a GPU, plain float64 loops on the CPU
// Throws InvalidArgument for an unknown name.
const Tier& find_tier(const std::string& name);

}  // namespace turbotune::disentangled_attention
