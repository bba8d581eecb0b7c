// From a kernel spec to a loaded kernel: memory, else the store, else the compiler.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "turbotune/kernel/compiler.h"
#include "turbotune/kernel/kernel_spec.h"
#include "turbotune/kernel/loaded_kernel.h"
#include "turbotune/kernel/store.h"

namespace turbotune {

enum class KernelOrigin { memory, store, compiled };
const char* to_string(KernelOrigin origin);

struct KernelCacheStatistics {
    std::int64_t memory_hits = 0, store_hits = 0, compiles = 0;
    double compile_ms = 0;    // sum over compiles
};

class KernelCache {
  public:
    explicit KernelCache(Store::Options store);
    ~KernelCache();

    // Thread safe; the same spec asked for by several threads at once is compiled once. Throws CompileError, DeviceError.
    std::shared_ptr<LoadedKernel> get(Device& device, const KernelSpec& spec, KernelOrigin* origin = nullptr);

    // Makes sure that the store (or memory) holds the image, without loading it: for compile-ahead and for targets
    // that are not in this machine. Returns the metadata. Throws CompileError.
    KernelMetadata prepare(const KernelSpec& spec, KernelOrigin* origin = nullptr);

    Store& store();
    KernelCacheStatistics statistics() const;

  private:
    struct State;
    State* state_;
};

}  // namespace turbotune
