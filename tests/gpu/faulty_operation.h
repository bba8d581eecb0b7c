// An operation for tests of the tuner on a GPU: out = 2 * in, by kernels that behave well or badly in a named way.
// Inputs and cases are those of the toy operation; the kernel is compiled by NVRTC like any other.
#pragma once

#include "../tuner/toy_operation.h"

namespace turbotune {

// kind: good, null_write, trap, endless, nothing, half, wrong, accumulate, overrun, out_of_memory, launch_error,
// compile_error, filtered. us: about how long one execution takes.
class FaultyOperation : public ToyOperation {
  public:
    using ToyOperation::ToyOperation;
    std::vector<KernelSpec> kernels(const Fields& problem, const Config& config,
                                    const DeviceInfo& device) const override;
    std::unique_ptr<Plan> plan(Runtime& runtime, const Fields& problem, const Config* config,
                               StreamHandle stream) const override;
};

// Its template, below `folder`: what TURBOTUNE_TEMPLATE_DIR then names.
void write_faulty_template(const std::string& folder);

// A program for SweepOptions::worker_program that serves it on device 0: a script in `folder`.
std::string faulty_worker(const std::string& folder);

}  // namespace turbotune
