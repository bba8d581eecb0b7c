// Loads and stores of shared memory by address.
// needs: common/types.cuh

__device__ __forceinline__ Words4 load_shared16(u32 from) {
    Words4 value;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(from)
                 : "memory");
    return value;
}

__device__ __forceinline__ u32 load_word(u32 from) {
    u32 value;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(from) : "memory");
    return value;
}

__device__ __forceinline__ void store_word(u32 to, u32 value) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}
__device__ __forceinline__ void store_halfword(u32 to, u32 value) {
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(u16(value)) : "memory");
}
