// Products of 64 rows with a chunk of 64 distances, and their way into fp16 score buffers whose column is row +
// distance.
//
// A operands hold rows 2g and 2g + 1 of each 16 in a thread's two halves, so that a half's rows are all even or all
// odd: where the shift keeps pairs aligned they are stored as words, in the other half as words of the next pairing.
// needs: sm90_tiles.cuh, common/mma.cuh, common/shared_memory.cuh

struct Lane {
    int warp, lane, g, c;  // warp of the warpgroup; row and column pair of an accumulator

    __device__ __forceinline__ explicit Lane(int thread) {
        warp = thread / 32 % 4, lane = thread % 32, g = lane >> 2, c = lane & 3;
    }
};

// Where this thread's row of the 16 from row0 on is in a tile, for load_operand: rows in order, or (in_pairs) rows 2g,
// 2g + 1 in the halves of a thread.
template <bool in_pairs>
__device__ __forceinline__ u32 operand_place(int row0, const Lane& lane) {
    const int half = lane.lane >> 3 & 1, row = lane.lane & 7;
    return chunk_address<64>(0, row0 + (in_pairs ? 2 * row + half : row + 8 * half), lane.lane >> 4);
}

// A operands of 16 rows of a tile of `rows` rows.
template <int rows>
__device__ __forceinline__ void load_operand(u32 (&a)[dim_steps][4], u32 first) {
    asm volatile("" : "+r"(first));  // the steps' addresses must not stay in registers
#pragma unroll
    for (int step = 0; step < dim_steps; ++step) {
        constexpr int panel_steps = panel_chunks / 2;
        load_matrices(a[step], (first ^ (step % panel_steps << 5)) + step / panel_steps * (rows * row_bytes));
    }
}

template <int rows, bool in_pairs>
__device__ __forceinline__ void load_operand(u32 (&a)[dim_steps][4], u32 tile, int row0, const Lane& lane) {
    load_operand<rows>(a, tile + operand_place<in_pairs>(row0, lane));
}

// Large scores saturate; the fp16 sum of two may still be infinite (Softmax).
__device__ __forceinline__ u32 pack_score(float low, float high) {
    u32 packed;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

// The 16 neighbours of both rows of a thread, as words in the order of the buffers.
// aligned_half: the half whose pairs are whole words there.
struct ShiftedScores {
    u32 aligned[8], odd[7], ends;

    template <int aligned_half>
    __device__ __forceinline__ void pack(const float (&x)[32]) {
        constexpr int a = 2 * aligned_half, b = 2 - a;
#pragma unroll
        for (int n = 0; n < 8; ++n) aligned[n] = pack_score(x[4 * n + a], x[4 * n + a + 1]);
#pragma unroll
        for (int n = 0; n < 7; ++n) odd[n] = pack_score(x[4 * n + b + 1], x[4 * n + 4 + b]);
        ends = pack_score(x[28 + b + 1], x[b]);
    }

    // `to`: address of row 2g's first; row 2g + 1's lies at to + pitch + 2.
    template <int aligned_half, int pitch>
    __device__ __forceinline__ void store(u32 to, bool active) const {
        asm volatile("" : "+r"(to));  // keeps the compiler from keeping every address of the loop in registers
        const u32 even = to + (aligned_half ? pitch + 2 : 0), other = to + (aligned_half ? 0 : pitch + 2);
        if (active) {
#pragma unroll
            for (int n = 0; n < 8; ++n) store_word(even + 4 * n, aligned[n]);
#pragma unroll
            for (int n = 0; n < 7; ++n) store_word(other + 2 + 4 * n, odd[n]);
            store_halfword(other + 30, ends);
            store_halfword(other, ends >> 16);
        }
    }
};

__device__ __forceinline__ float half_to_float(u32 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(u16(bits)));
    return value;
}

// The sum of neighbouring c2p and p2c scores, whichever there are, in fp32. Probabilities of bf16 hide that the sum itself
// is rounded to fp16.
__device__ __forceinline__ void sum_scores(float& low, float& high, u32 c, u32 t) {
    u32 sum = c2p ? c : t;
    if constexpr (c2p && p2c && dtype == dtype_bf16)
        asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(c), "r"(t));
    low = half_to_float(sum), high = half_to_float(sum >> 16);
    if constexpr (c2p && p2c && dtype == dtype_f16)
        low += half_to_float(t), high += half_to_float(t >> 16);
}

// One product with a chunk of 64 distances.
__device__ __forceinline__ void chunk_product(float (&x)[32], const u32 (&a)[dim_steps][4], u32 chunk) {
    wgmma_fence();
    wgmma<dtype, operand_high, false, false>(x, a[0], key_operand<64>(chunk, 0));
#pragma unroll
    for (int step = 1; step < dim_steps; ++step)
        wgmma<dtype, operand_high, true, false>(x, a[step], key_operand<64>(chunk, step));
    wgmma_commit();
}
