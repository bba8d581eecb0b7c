#include <fmt/format.h>

#include "handles.h"
#include "sized_struct.h"

using namespace turbotune;
using namespace turbotune::capi;

void turbotune_plan_destroy(turbotune_plan* plan) {
    delete plan;
}

size_t turbotune_plan_workspace_bytes(const turbotune_plan* plan) {
    return plan ? plan->attention.workspace_bytes() : 0;
}

const char* turbotune_plan_config(const turbotune_plan* plan) {
    return plan ? plan->config.c_str() : "";
}

const char* turbotune_plan_origin(const turbotune_plan* plan) {
    return plan ? plan->attention.selection().origin.c_str() : "";
}

const char* turbotune_plan_note(const turbotune_plan* plan) {
    return plan ? plan->attention.selection().note.c_str() : "";
}

void turbotune_kernel_info_init(turbotune_kernel_info* info, size_t struct_size) {
    write_sized(info, struct_size, turbotune_kernel_info{});
}

int32_t turbotune_plan_kernel_count(const turbotune_plan* plan) {
    return plan ? static_cast<int32_t>(plan->kernels.size()) : 0;
}

turbotune_status turbotune_plan_kernel(const turbotune_plan* plan, int32_t index, turbotune_kernel_info* info) {
    return guarded([&] {
        const std::vector<KernelMetadata>& kernels = need(plan, "plan").kernels;
        need(info, "info");
        if (index < 0 || std::size_t(index) >= kernels.size())
            throw InvalidArgument("index", fmt::format("the plan has {} kernels, got {}", kernels.size(), index));
        const KernelMetadata& kernel = kernels[std::size_t(index)];
        turbotune_kernel_info out{};
        copy_text(out.name, kernel.kernel_name);
        out.registers = kernel.registers;
        out.local_bytes = kernel.local_bytes;
        out.spill_store_bytes = kernel.spill_store_bytes;
        out.spill_load_bytes = kernel.spill_load_bytes;
        out.static_shared_bytes = kernel.static_shared_bytes;
        out.compile_ms = kernel.compile_ms;
        fill_sized(info, out, "info");
    });
}
