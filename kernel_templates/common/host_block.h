// What the CPU device passes to a host kernel for each block of the grid; the layout of
// turbotune/kernel/loaded_kernel.h.
struct HostBlock {
    unsigned x, y, z;
    unsigned grid_x, grid_y, grid_z;
    unsigned thread;
    unsigned threads;
    void* scratch;  // 64-byte aligned, this worker's own
};
