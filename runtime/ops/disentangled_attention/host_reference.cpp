#include "host_reference.h"

#include "disentangled_attention/reference_workspace.h"
#include "schedule.h"

namespace turbotune::disentangled_attention {

namespace {

constexpr int kRows = 16;  // query rows of one block of forward_reference.cpp

}  // namespace

KernelLaunch host_reference_launch(const Problem& problem, const DeviceInfo& device) {
    const bool backward = problem.pass == Pass::backward;
    KernelLaunch launch;
    launch.spec.template_path =
        backward ? "disentangled_attention/backward_reference.cpp" : "disentangled_attention/forward_reference.cpp";
    launch.spec.kernel_name =
        backward ? "disentangled_attention_backward_reference" : "disentangled_attention_forward_reference";
    launch.spec.parameters = problem_parameters(problem);
    launch.spec.target = device.target();
    launch.shape.grid[0] = backward ? static_cast<unsigned>(problem.heads) : blocks_of(problem, kRows);
    return launch;
}

std::size_t host_reference_workspace_bytes(const Problem& problem) {
    if (problem.pass != Pass::backward) return 0;
    const ReferenceWorkspace sizes{problem.head_dim, problem.span(), problem.length};
    return static_cast<std::size_t>(sizes.per_head() * problem.heads) * sizeof(double);
}

}  // namespace turbotune::disentangled_attention
