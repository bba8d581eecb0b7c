// Bulk copies from global to shared memory (sm_90), completing on an mbarrier by bytes; the order of dependent grids.
// needs: common/types.cuh

// Adds bytes to what the barrier's phase waits for; no arrival.
__device__ __forceinline__ void barrier_expect_bytes(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Addresses and `bytes` are multiples of 16.
__device__ __forceinline__ void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
                 : "memory");
}

// One arrival, and bytes that its phase waits for as well.
__device__ __forceinline__ void barrier_arrive_bytes(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// A box of a tensor map of four dimensions, which lies among the kernel's parameters. Coordinates of its first element;
// what is beyond the tensor becomes zeros.
template <class Map>
__device__ __forceinline__ void copy_box(u32 to, const Map& map, int x, int y, int z, int w, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
        "%5}], [%6];" ::"r"(to),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier)
        : "memory");
}
template <class Map>
__device__ __forceinline__ void prefetch_box(const Map& map, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(&map), "r"(x), "r"(y),
                 "r"(z), "r"(w)
                 : "memory");
}

// With a programmatic launch: lets the next grid start, and waits for the grid before this one and its writes.
__device__ __forceinline__ void allow_next_grid() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void await_previous_grid() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Brings a cache line into L2.
__device__ __forceinline__ void prefetch_line(const void* from) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from)) : "memory");
}
