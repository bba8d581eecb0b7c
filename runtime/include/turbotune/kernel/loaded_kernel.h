// A kernel that can be launched, on a GPU or on the CPU device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "turbotune/device/device.h"
#include "turbotune/kernel/image.h"

namespace turbotune {

struct LaunchShape {
    unsigned grid[3] = {1, 1, 1};
    unsigned block[3] = {1, 1, 1};     // ignored by the CPU device
    unsigned cluster[3] = {1, 1, 1};   // sm_90 and newer
    unsigned shared_bytes = 0;         // dynamic shared memory; on the CPU device: scratch bytes of one thread
    bool programmatic_launch = false;  // may start before the kernel ahead of it has ended
};

// What the CPU device passes to a host kernel for each block of the grid. The symbol's type is
// void(const HostBlock*, void** parameters); `parameters` are those of launch.
struct HostBlock {
    unsigned x, y, z;            // this block's index
    unsigned grid_x, grid_y, grid_z;
    unsigned thread;             // which worker runs it
    unsigned threads;            // how many workers there are
    void* scratch;               // shared_bytes of 64-byte aligned memory of this worker
};

class LoadedKernel {
  public:
    virtual ~LoadedKernel() = default;
    virtual const KernelMetadata& metadata() const = 0;
    virtual Device& device() const = 0;

    // Raises the dynamic shared memory limit to `bytes` (a no-op when it already is, and on the CPU).
    // Called when a plan is made. Throws DeviceError when the device has not that much.
    virtual void allow_shared_memory(std::size_t bytes) = 0;
    // Blocks of one multiprocessor with this shape; 1 on the CPU.
    virtual int blocks_per_sm(const LaunchShape& shape) = 0;

    // Enqueues. Allocates nothing, takes no lock (the CPU device runs the grid on its pool and returns when done).
    // `parameters[i]` points at the i-th kernel argument. The context must be current. Throws DeviceError.
    virtual void launch(const LaunchShape& shape, void** parameters, StreamHandle stream) = 0;
};

// Loads and resolves at once: a wrong-arch image throws here, never later. On a GPU the memory of a kernel
// whose last owner went away is released outside stream capture only.
std::shared_ptr<LoadedKernel> load_kernel(Device& device, const Image& image);

}  // namespace turbotune
