#include <atomic>
#include <mutex>

#include "loaded_kernel_parts.h"
#include "shared_object.h"
#include "turbotune/base/error.h"
#include "turbotune/device/thread_pool.h"

namespace turbotune {
namespace {

using HostFunction = void (*)(const HostBlock*, void** parameters);

struct HostLaunch {
    HostFunction function;
    const LaunchShape* shape;
    void** parameters;
    ThreadPool* pool;
};

void run_block(void* context, std::size_t index, int thread) {
    const auto& launch = *static_cast<const HostLaunch*>(context);
    const unsigned* grid = launch.shape->grid;
    HostBlock block;
    block.x = static_cast<unsigned>(index % grid[0]);
    block.y = static_cast<unsigned>(index / grid[0] % grid[1]);
    block.z = static_cast<unsigned>(index / grid[0] / grid[1]);
    block.grid_x = grid[0];
    block.grid_y = grid[1];
    block.grid_z = grid[2];
    block.thread = static_cast<unsigned>(thread);
    block.threads = static_cast<unsigned>(launch.pool->threads());
    block.scratch = launch.shape->shared_bytes == 0 ? nullptr : launch.pool->scratch(thread);
    launch.function(&block, launch.parameters);
}

class HostKernel final : public LoadedKernel {
  public:
    HostKernel(Device& device, const Image& image) : device_(device), metadata_(image.metadata), object_(image.bytes) {
        function_ = reinterpret_cast<HostFunction>(object_.symbol(metadata_.kernel_name));
        if (function_ == nullptr) throw DeviceError("the host image has no symbol " + metadata_.kernel_name);
    }

    const KernelMetadata& metadata() const override { return metadata_; }
    Device& device() const override { return device_; }

    void allow_shared_memory(std::size_t bytes) override {
        const std::lock_guard lock(mutex_);
        if (bytes <= reserved_) return;
        ThreadPool::shared().reserve_scratch(bytes);
        reserved_ = bytes;
    }

    int blocks_per_sm(const LaunchShape&) override { return 1; }

    void launch(const LaunchShape& shape, void** parameters, StreamHandle) override {
        if (shape.shared_bytes > reserved_) allow_shared_memory(shape.shared_bytes);
        HostLaunch launch{function_, &shape, parameters, &ThreadPool::shared()};
        const std::size_t blocks = std::size_t{shape.grid[0]} * shape.grid[1] * shape.grid[2];
        launch.pool->run(blocks, run_block, &launch);
    }

  private:
    Device& device_;
    KernelMetadata metadata_;
    SharedObject object_;
    HostFunction function_ = nullptr;
    std::mutex mutex_;
    std::atomic<std::size_t> reserved_{0};  // bytes
};

}  // namespace

std::shared_ptr<LoadedKernel> load_host_kernel(Device& device, const Image& image) {
    return std::make_shared<HostKernel>(device, image);
}

}  // namespace turbotune
