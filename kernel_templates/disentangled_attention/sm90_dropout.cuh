// Dropout of packed probabilities. A patch of dropout.h is what a thread holds of a unit of 64 keys.
// needs: sm90_layout.cuh

// A thread's dropped elements of one tile; bits as in dropout.h. Empty without dropout.
struct Dropped {
    u32 words[dropout ? units : 1];
};

// What the producer drew for this thread, of the tile whose K is at `slot`. K's barrier has been waited for.
__device__ __forceinline__ Dropped read_dropped(const unsigned char* memory, int slot, int thread) {
    Dropped dropped;
    if constexpr (dropout) {
        const u32* words = reinterpret_cast<const u32*>(memory + dropped_offset) + thread;
#pragma unroll
        for (int unit = 0; unit < units; ++unit)
            dropped.words[unit] = words[(slot * units + unit) * (128 * warpgroups)];
    }
    return dropped;
}

// Clears the dropped ones among the probabilities of 16 keys. Both elements of a word have their bits 16 apart: shifted
// to the top of two bytes, whose signs fill the word's halves.
__device__ __forceinline__ void drop(u32 (&a)[4], const Dropped& dropped, int step) {
    if constexpr (dropout) {
        const u32 word = dropped.words[step / 4];
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const u32 top = word << (7 - 2 * (step % 4) - (part >> 1));
            u32 cleared;
            asm("prmt.b32 %0, %1, 0, %2;" : "=r"(cleared) : "r"(top), "r"(part & 1 ? 0xbb99u : 0xaa88u));
            a[part] &= ~cleared;
        }
    }
}
