// Dropout of packed probabilities. A patch of dropout.h is what a thread holds of a unit of 64 keys.
// needs: common/types.cuh, config

// Clears the dropped ones among the probabilities of the unit's 16 keys from 16 * step on. Both elements of a word have
// their bits 16 apart: shifted to the top of two bytes, whose signs fill the word's halves.
__device__ __forceinline__ void drop(u32 (&a)[4], u32 dropped, int step) {
    if constexpr (dropout) {
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const u32 top = dropped << (7 - 2 * step - (part >> 1));
            u32 cleared;
            asm("prmt.b32 %0, %1, 0, %2;" : "=r"(cleared) : "r"(top), "r"(part & 1 ? 0xbb99u : 0xaa88u));
            a[part] &= ~cleared;
        }
    }
}
