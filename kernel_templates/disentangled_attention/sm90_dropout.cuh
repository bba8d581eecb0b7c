// Dropout of packed probabilities. A patch of dropout.h is what a thread holds of a unit of 64 keys.
// needs: common/types.cuh, config

// Dropping is a product with 2, which is one bit of bf16's exponent, or 0: that is faster in far tiles. Where there are
// near ones alone masks are, which take fewer registers.
constexpr bool by_factor = dropout && dtype == dtype_bf16 && far;
constexpr float kept_factor = by_factor ? 2.0f : 1.0f;  // of kept weights

// Clears the dropped ones, and multiplies the others by kept_factor, among the probabilities of the unit's 16 keys from
// 16 * step on. Both elements of a word have their bits 16 apart. `kept`: bits as in dropout.h, of those kept.
__device__ __forceinline__ void drop(u32 (&a)[4], u32 kept, int step) {
    if constexpr (dropout) {
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int bit = 8 * (part & 1) + 2 * step + (part >> 1);
            if constexpr (by_factor) {
                const u32 factors = (bit < 15 ? kept << (14 - bit) : kept >> 1) & 0x40004000u;  // 2 or 0
                asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(a[part]) : "r"(factors));
            } else {  // both signs, at the top of bytes, fill their halves
                u32 whole;
                asm("prmt.b32 %0, %1, 0, %2;"
                    : "=r"(whole)
                    : "r"(kept << (7 - bit % 8)), "r"(part & 1 ? 0xbb99u : 0xaa88u));
                a[part] &= whole;
            }
        }
    }
}
