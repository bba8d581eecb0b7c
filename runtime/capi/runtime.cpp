#include <fmt/format.h>

#include "handles.h"
#include "sized_struct.h"
#include "turbotune/base/fields.h"

using namespace turbotune;
using namespace turbotune::capi;

namespace {

turbotune_runtime_options default_options() {
    const RuntimeOptions defaults;
    turbotune_runtime_options options{};
    options.discover_profiles = defaults.discover_profiles;
    options.autotune_candidates = defaults.autotune_candidates;
    options.autotune_budget_ms = defaults.autotune_budget_ms;
    options.store_max_bytes = defaults.store.max_bytes;
    return options;
}

RuntimeOptions translate(const turbotune_runtime_options& given) {
    if (given.reserved != 0) throw InvalidArgument("reserved", "must be 0");
    if (given.autotune_candidates < 1)
        throw InvalidArgument("autotune_candidates",
                              fmt::format("must be at least 1, got {}", given.autotune_candidates));
    if (!(given.autotune_budget_ms >= 0))
        throw InvalidArgument("autotune_budget_ms",
                              fmt::format("must not be negative, got {}", given.autotune_budget_ms));
    if (given.store_max_bytes < 0)
        throw InvalidArgument("store_max_bytes", fmt::format("must not be negative, got {}", given.store_max_bytes));
    RuntimeOptions options;
    if (given.device) options.device = given.device;
    if (given.policy) options.policy = parse_policy(given.policy);
    for (std::size_t i = 0; i < given.profile_count; ++i) {
        const char* path = need(given.profiles, "profiles") ? given.profiles[i] : nullptr;
        if (!path) throw InvalidArgument(fmt::format("profiles[{}]", i), "is null");
        options.profiles.emplace_back(path);
    }
    options.discover_profiles = given.discover_profiles != 0;
    if (given.fixed_config) options.fixed_config = parse_fields(given.fixed_config, "fixed_config");
    options.autotune_candidates = given.autotune_candidates;
    options.autotune_budget_ms = given.autotune_budget_ms;
    if (given.store_directory) options.store.directory = given.store_directory;
    options.store.max_bytes = given.store_max_bytes;
    options.store.memory_only = given.store_memory_only != 0;
    return options;
}

Runtime& runtime_of(const turbotune_runtime* runtime) {
    return *need(runtime, "runtime").runtime;
}

}  // namespace

void turbotune_runtime_options_init(turbotune_runtime_options* options, size_t struct_size) {
    write_sized(options, struct_size, default_options());
}

turbotune_status turbotune_runtime_create(const turbotune_runtime_options* options, turbotune_runtime** runtime) {
    return guarded([&] {
        need(runtime, "runtime");
        const turbotune_runtime_options defaults = default_options();
        auto handle = std::make_unique<turbotune_runtime>();
        handle->runtime =
            std::make_shared<Runtime>(translate(options ? read_sized(options, defaults, "options") : defaults));
        handle->runtime->device();  // a device that cannot be opened is an error here
        *runtime = handle.release();
    });
}

void turbotune_runtime_destroy(turbotune_runtime* runtime) {
    delete runtime;
}

turbotune_status turbotune_runtime_device(const turbotune_runtime* runtime, turbotune_device_info* info) {
    return guarded([&] { fill_sized(info, describe(runtime_of(runtime).device().info()), "info"); });
}

turbotune_status turbotune_allocate(turbotune_runtime* runtime, size_t bytes, void** pointer) {
    return guarded([&] {
        Device& device = runtime_of(runtime).device();
        void*& result = need(pointer, "pointer");  // before there is anything to lose
        result = device.allocate(bytes);
    });
}

void turbotune_free(turbotune_runtime* runtime, void* pointer) {
    if (runtime && pointer) guarded([&] { runtime->runtime->device().free(pointer); });
}

turbotune_status turbotune_copy_to_device(turbotune_runtime* runtime, void* to, const void* from, size_t bytes) {
    return guarded([&] {
        Device& device = runtime_of(runtime).device();
        if (!bytes) return;
        if (!to) throw InvalidArgument("to", "is null");
        if (!from) throw InvalidArgument("from", "is null");
        device.copy_to_device(to, from, bytes);
    });
}

turbotune_status turbotune_copy_to_host(turbotune_runtime* runtime, void* to, const void* from, size_t bytes) {
    return guarded([&] {
        Device& device = runtime_of(runtime).device();
        if (!bytes) return;
        if (!to) throw InvalidArgument("to", "is null");
        if (!from) throw InvalidArgument("from", "is null");
        device.copy_to_host(to, const_cast<void*>(from), bytes);
    });
}

turbotune_status turbotune_fill(turbotune_runtime* runtime, void* pointer, int value, size_t bytes) {
    return guarded([&] {
        Device& device = runtime_of(runtime).device();
        if (!bytes) return;
        if (!pointer) throw InvalidArgument("pointer", "is null");
        device.fill(pointer, static_cast<unsigned char>(value), bytes);
    });
}

turbotune_status turbotune_stream_create(turbotune_runtime* runtime, void** stream) {
    return guarded([&] {
        Device& device = runtime_of(runtime).device();
        void*& result = need(stream, "stream");
        result = device.create_stream();
    });
}

void turbotune_stream_destroy(turbotune_runtime* runtime, void* stream) {
    if (runtime && stream) guarded([&] { runtime->runtime->device().destroy_stream(stream); });
}

turbotune_status turbotune_synchronize(turbotune_runtime* runtime, void* stream) {
    return guarded([&] { runtime_of(runtime).device().synchronize(stream); });
}
