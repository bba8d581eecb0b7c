#include "turbotune/kernel/kernel_cache.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "turbotune/base/files.h"

namespace turbotune {
namespace {

Compiler& compiler_of(const KernelSpec& spec) {
    return spec.is_host() ? host_compiler() : nvrtc_compiler();
}

// A small key, so that a hit neither renders nor hashes a source. Lengths in front keep neighbours apart.
std::string memory_key(const Device& device, const KernelSpec& spec) {
    std::string key =
        fmt::format("{}:{}", device.info().kind == DeviceKind::cuda ? "cuda" : "cpu", device.info().ordinal);
    const auto add = [&key](const std::string& text) {
        key += fmt::format("|{}:", text.size());
        key += text;
    };
    add(spec.template_path);
    add(spec.kernel_name);
    add(spec.target);
    for (const auto& [name, value] : spec.parameters.entries()) {
        add(name);
        add(fmt::format("{}{}", value.index(), to_string(value)));
    }
    // Texts read from a folder may change while the process runs.
    if (environment("TURBOTUNE_TEMPLATE_DIR")) add(render(spec));
    return key;
}

struct Slot {
    std::mutex mutex;  // held while the kernel is made: whoever wants the same one waits, nobody else does
    std::shared_ptr<LoadedKernel> kernel;
};

}  // namespace

const char* to_string(KernelOrigin origin) {
    switch (origin) {
        case KernelOrigin::memory:
            return "memory";
        case KernelOrigin::store:
            return "store";
        case KernelOrigin::compiled:
            return "compiled";
    }
    return "unknown";
}

struct KernelCache::State {
    explicit State(Store::Options options) : store(std::move(options)) {}

    std::shared_ptr<Slot> slot(const std::string& key) {
        const std::lock_guard lock(mutex);
        std::shared_ptr<Slot>& slot = slots[key];
        if (!slot) slot = std::make_shared<Slot>();
        return slot;
    }

    // From the store, else compiled and put there.
    Image image(const KernelSpec& spec, KernelOrigin* origin) {
        Compiler& compiler = compiler_of(spec);
        CompileRequest request{render(spec), spec.kernel_name, spec.target, spec.to_string()};
        const StoreKey key = store_key(request.source, compiler.options(spec.target), spec.target, compiler.identity(),
                                       spec.kernel_name);
        *origin = KernelOrigin::store;
        std::optional<Image> found = store.find(key);
        if (!found) {
            const FileLock lock = store.lock_for_compile(key);
            found = store.find(key);  // whoever held the lock may have published it
            if (!found) {
                *origin = KernelOrigin::compiled;
                found = compiler.compile(request);
                store.put(key, *found);
            }
        }
        const std::lock_guard lock(mutex);
        if (*origin == KernelOrigin::store) {
            ++statistics.store_hits;
        } else {
            ++statistics.compiles;
            statistics.compile_ms += found->metadata.compile_ms;
        }
        return *std::move(found);
    }

    Store store;
    mutable std::mutex mutex;  // of the two below
    std::map<std::string, std::shared_ptr<Slot>> slots;
    KernelCacheStatistics statistics;
};

KernelCache::KernelCache(Store::Options store) : state_(new State(std::move(store))) {}

KernelCache::~KernelCache() {
    delete state_;
}

std::shared_ptr<LoadedKernel> KernelCache::get(Device& device, const KernelSpec& spec, KernelOrigin* origin) {
    const std::shared_ptr<Slot> slot = state_->slot(memory_key(device, spec));
    const std::lock_guard making(slot->mutex);
    KernelOrigin found = KernelOrigin::memory;
    if (slot->kernel) {
        const std::lock_guard lock(state_->mutex);
        ++state_->statistics.memory_hits;
    } else {
        slot->kernel = load_kernel(device, state_->image(spec, &found));
    }
    if (origin != nullptr) *origin = found;
    return slot->kernel;
}

KernelMetadata KernelCache::prepare(const KernelSpec& spec, KernelOrigin* origin) {
    KernelOrigin found = KernelOrigin::store;
    const Image image = state_->image(spec, &found);
    if (origin != nullptr) *origin = found;
    return image.metadata;
}

Store& KernelCache::store() {
    return state_->store;
}

KernelCacheStatistics KernelCache::statistics() const {
    const std::lock_guard lock(state_->mutex);
    return state_->statistics;
}

}  // namespace turbotune
