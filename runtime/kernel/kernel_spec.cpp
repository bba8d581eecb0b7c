#include "turbotune/kernel/kernel_spec.h"

namespace turbotune {

bool KernelSpec::is_host() const {
    return template_path.ends_with(".cpp");
}

std::string KernelSpec::to_string() const {
    return template_path + "[" + parameters.to_string() + "]@" + target;
}

}  // namespace turbotune
