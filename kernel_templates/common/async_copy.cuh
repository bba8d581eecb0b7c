// Copies from global to shared memory behind the threads' back (sm_80 and newer).
// PTX ISA, "cp.async": source bytes beyond `bytes` are not read, and zeros are written.
// needs: common/types.cuh

__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return u32(__cvta_generic_to_shared(pointer));
}

// 16 bytes, or 16 zero bytes when `valid` is false (the source is then not read).
__device__ __forceinline__ void copy_async16(u32 to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void copy_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `pending` of this thread's newest groups are still on their way.
template <int pending>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

__device__ __forceinline__ void store_shared16(u32 to, Words4 value) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(value.x), "r"(value.y), "r"(value.z),
                 "r"(value.w)
                 : "memory");
}

__device__ __forceinline__ void store_shared(u32 to, float value) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}

__device__ __forceinline__ float load_shared(u32 from) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");
    return value;
}

// Four, aligned to 16 bytes.
__device__ __forceinline__ Float4 load_shared_floats(u32 from) {
    Float4 value;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(from)
                 : "memory");
    return value;
}
