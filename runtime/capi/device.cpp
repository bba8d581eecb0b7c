#include <fmt/format.h>

#include "handles.h"
#include "sized_struct.h"
#include "turbotune/base/log.h"
#include "turbotune/device/device.h"

using namespace turbotune;
using namespace turbotune::capi;

turbotune_device_info turbotune::capi::describe(const DeviceInfo& info) {
    turbotune_device_info out{};
    const bool gpu = info.kind == DeviceKind::cuda;
    copy_text(out.id, gpu ? std::to_string(info.ordinal) : "cpu");
    copy_text(out.name, info.name);
    copy_text(out.device_class, info.device_class.to_string());
    copy_text(out.target, info.target());
    copy_text(out.tiers, fmt::format("{}", fmt::join(info.tiers(), " ")));
    copy_text(out.uuid, info.uuid);
    out.is_gpu = gpu;
    out.ordinal = info.ordinal;
    out.multiprocessors = info.device_class.sm_count;
    out.driver_version = info.driver_version;
    out.memory_bytes = info.total_memory;
    out.l2_bytes = info.device_class.l2_bytes;
    out.shared_bytes_per_block = info.device_class.shared_per_block;
    return out;
}

void turbotune_device_info_init(turbotune_device_info* info, size_t struct_size) {
    write_sized(info, struct_size, turbotune_device_info{});
}

turbotune_status turbotune_device_count(int32_t* count) {
    return guarded([&] { need(count, "count") = static_cast<int32_t>(list_devices().size()); });
}

turbotune_status turbotune_device_get(int32_t index, turbotune_device_info* info) {
    return guarded([&] {
        need(info, "info");
        const std::vector<DeviceInfo> devices = list_devices();
        if (index < 0 || std::size_t(index) >= devices.size())
            throw InvalidArgument("index", fmt::format("there are {} devices, got {}", devices.size(), index));
        fill_sized(info, describe(devices[std::size_t(index)]), "info");
    });
}

turbotune_status turbotune_device_best(turbotune_device_info* info) {
    return guarded([&] {
        need(info, "info");
        fill_sized(info, describe(open_device("auto").info()), "info");
    });
}

turbotune_status turbotune_set_log_callback(turbotune_log_callback callback, void* user) {
    return guarded([&] {
        if (!callback)
            set_log_sink({});
        else
            set_log_sink([callback, user](LogLevel level, const std::string& message) {
                callback(static_cast<int>(level), message.c_str(), user);
            });
    });
}
