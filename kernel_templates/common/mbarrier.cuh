// mbarriers in shared memory (sm_90): producers and consumers of a ring of buffers.
// PTX ISA, "mbarrier". A barrier completes a phase after `count` arrivals; waiting names the parity of the phase.
// needs: common/types.cuh

__device__ __forceinline__ void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Makes initialised barriers visible to the asynchronous proxy; a __syncthreads must follow.
__device__ __forceinline__ void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// Whether the phase is over, at once; ask early and wait only when it was not, so that the answer's latency is hidden.
__device__ __forceinline__ bool barrier_test(u32 barrier, u32 parity) {
    u32 over;
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n"
        "}"
        : "=r"(over)
        : "r"(barrier), "r"(parity)
        : "memory");
    return over != 0;
}

// For warps that run ahead: asks seldom, which leaves the issue slots to others.
__device__ __forceinline__ void barrier_wait_asleep(u32 barrier, u32 parity) {
    while (!barrier_test(barrier, parity)) asm volatile("nanosleep.u32 32;");
}

// Orders what this thread wrote to shared memory, by stores and landed cp.async, before wgmma's reads of it by whoever
// is signalled afterwards. PTX ISA, "Async proxy".
__device__ __forceinline__ void async_proxy_fence() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A barrier of `threads` threads of the block; ids 1 .. 15, 0 is __syncthreads'.
__device__ __forceinline__ void named_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
