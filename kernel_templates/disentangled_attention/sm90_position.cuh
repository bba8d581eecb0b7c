// Position scores of near tiles. Q.PKchunk and K.PQchunk are matrix products over distances; the shift "column =
// distance" is undone on the way through fp16 buffers: C[query row][key], T[key][query row] (one unit of 64 keys).
//
// A operands hold rows 2g and 2g + 1 of each 16 in a thread's two halves, so that a half's rows are all even or all
// odd: where the shift keeps pairs aligned they are stored as words, in the other half as words of the next pairing.
// needs: sm90_layout.cuh, common/mma.cuh

struct Lane {
    int warp, lane, g, c;  // warp of the warpgroup; row and column pair of an accumulator

    __device__ __forceinline__ explicit Lane(int thread) {
        warp = thread / 32 % 4, lane = thread % 32, g = lane >> 2, c = lane & 3;
    }
};

// A operands of 16 rows of a tile, in order or (paired) rows 2g, 2g + 1 in the halves of a thread.
template <int rows, bool paired>
__device__ __forceinline__ void load_operand(u32 (&a)[dim_steps][4], u32 tile, int row0, const Lane& lane) {
    const int half = lane.lane >> 3 & 1, row = lane.lane & 7;
    u32 first = chunk_address<rows>(tile, row0 + (paired ? 2 * row + half : row + 8 * half), lane.lane >> 4);
    asm volatile("" : "+r"(first));  // the steps' addresses must not stay in registers
#pragma unroll
    for (int step = 0; step < dim_steps; ++step) {
        constexpr int panel_steps = panel_chunks / 2;
        load_matrices(a[step], (first ^ (step % panel_steps << 5)) + step / panel_steps * (rows * row_bytes));
    }
}

__device__ __forceinline__ void store_word(u32 to, u32 value) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}
__device__ __forceinline__ void store_halfword(u32 to, u32 value) {
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(u16(value)) : "memory");
}

// Large scores saturate; the sum of two may still be infinite (Softmax).
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

// Where a near tile's scores are, for one thread.
struct ScoreBuffers {
    u32 c_store, t_store;  // row 2g of this thread's warp, column 16 * (warp + c)
    u32 c_read, t_read;    // this thread's ldmatrix rows

    __device__ __forceinline__ ScoreBuffers(u32 scratch, const Lane& lane) {
        const u32 c0 = scratch + spill_bytes, t0 = scratch + c_bytes + spill_bytes;
        const int row = 16 * lane.warp + 2 * lane.g, column = 16 * (lane.warp + lane.c) + 2 * lane.g;
        c_store = c0 + row * c_pitch + 2 * column;
        t_store = t0 + row * t_pitch + 2 * column;
        c_read = c0 + (16 * lane.warp + (lane.lane & 15)) * c_pitch + 16 * (lane.lane >> 4);
        t_read =
            t0 + ((lane.lane & 7) + 8 * (lane.lane >> 4)) * t_pitch + 2 * (16 * lane.warp + 8 * (lane.lane >> 3 & 1));
    }
};

// Chunk `number` of C, 0 .. units, in order of keys: column = row + x + 64 * number - 63.
__device__ __forceinline__ void store_c(const ShiftedScores& x, const ScoreBuffers& at, const Lane& lane, int number) {
    const int sum = lane.warp + lane.c;
    const bool active = number == 0 ? sum >= 3 : number == units ? sum <= 3 : true;
    x.store<1, c_pitch>(at.c_store + 2 * (64 * number - 63), active);
}

// Chunk 0 or 1 of a unit of T: column = row + x - 64 * number.
__device__ __forceinline__ void store_t(const ShiftedScores& x, const ScoreBuffers& at, const Lane& lane, int buffer,
                                        int number) {
    const int sum = lane.warp + lane.c;
    x.store<0, t_pitch>(at.t_store + buffer * t_bytes - 128 * number, number == 0 ? sum <= 3 : sum >= 3);
}

__device__ __forceinline__ float half_to_float(u32 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(u16(bits)));
    return value;
}

// Scores of one unit into its accumulators. All loads come first: one at a time their latency would show.
__device__ __forceinline__ void read_unit(float (&s)[32], const ScoreBuffers& at, int unit) {
    u32 c[4][4], t[4][4];
#pragma unroll
    for (int x = 0; x < 4; ++x) {
        if constexpr (c2p) load_matrices(c[x], at.c_read + 128 * unit + 32 * x);
        if constexpr (p2c) load_matrices_transposed(t[x], at.t_read + unit * t_bytes + 16 * x * t_pitch);
    }
#pragma unroll
    for (int x = 0; x < 4; ++x)
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            u32 sum = c2p ? c[x][part] : t[x][part];
            if constexpr (c2p && p2c) asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(c[x][part]), "r"(t[x][part]));
            const int first = (2 * x + (part >> 1)) * 4 + 2 * (part & 1);
            s[first] = half_to_float(sum);
            s[first + 1] = half_to_float(sum >> 16);
        }
}

// The products of a near tile: for each unit of keys Q with its first chunk, in order of keys, and K's unit with both
// of its chunks; at the end Q with the last chunk.
struct Product {
    bool of_query;
    int unit, chunk;  // chunk: of this warpgroup's units + 1
};

constexpr int of_unit = has_bias ? int(c2p) + 2 * int(p2c) : 1;
constexpr int products = has_bias ? of_unit * units + int(c2p) : 1;

__device__ constexpr Product product_of(int job) {
    const int unit = job / of_unit, rest = job % of_unit;
    if (c2p && rest == 0) return {true, unit, unit};
    return {false, unit, unit + rest - int(c2p)};
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
