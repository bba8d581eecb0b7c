// Scores of a tile, without factor and mask: x.z, and where the tile is near x.T1 and z.T2. The position terms are
// products with the whole strip, and the shift "column = distance" is undone on the way through a buffer of the warp,
// whose address is affine in both rows.
// needs: mma_tiles.cuh

// Blocks of a strip whose products a warp sums at a time: independent sums hide the latency of mma. Those of 16-bit
// elements have half the steps, and configs with more rows of a warp.
constexpr int strip_group = dtype == dtype_f32 && row_tiles == 1 ? 3 : 1;

using Scores = float[row_tiles][block_n / 8][4];  // columns: other rows by key_of

// s = x.T1strip, shifted: element (row, t) of a 16-row tile belongs to other row t + row - 15.
// `strip`: ring row of this warp's strip (the strip of its last 16 rows starts there).
template <class Rows>
__device__ __forceinline__ void scores_t1(const Rows& x, const Lane& lane, u32 ring, int strip, u32 shift) {
    const int first = 2 * lane.c + lane.g;
    const u32 store = shift + 4 * (lane.g * (shift_pitch + 1) + 2 * lane.c - 15);
#pragma unroll
    for (int first_block = 0; first_block < key_blocks + row_tiles; first_block += strip_group) {
        u32 base[strip_group];
        float c[strip_group][row_tiles][2][4] = {};
#pragma unroll
        for (int i = 0; i < strip_group; ++i) base[i] = ring_block(ring, strip, first_block + i);
#pragma unroll
        for (int step = 0; step < dim_steps; ++step)
#pragma unroll
            for (int i = 0; i < strip_group; ++i) {
                if (first_block + i >= key_blocks + row_tiles) continue;
                u32 b[4];
                load_operand(b, lane.b_address(base[i], step));
#pragma unroll
                for (int t = 0; t < row_tiles; ++t) {
                    const int own = first_block + i - (row_tiles - 1 - t);  // block within this tile's strip
                    if (own < 0 || own > key_blocks) continue;
                    u32 a[4];
                    x.load(a, t, step);
                    multiply<dtype>(c[i][t][0], a, b[0], b[1]);
                    multiply<dtype>(c[i][t][1], a, b[2], b[3]);
                }
            }
#pragma unroll
        for (int i = 0; i < strip_group; ++i)
#pragma unroll
            for (int t = 0; t < row_tiles; ++t) {
                const int own = first_block + i - (row_tiles - 1 - t);
                if (own < 0 || own > key_blocks) continue;
#pragma unroll
                for (int n = 0; n < 2; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const int half = e >> 1, odd = e & 1;
                        // other row = first + 8 * (n + half) + odd - 15 + 16 * own
                        const bool from_zero = first + 8 * (n + half) + odd >= 15;
                        if (own == 0 ? from_zero : own == key_blocks ? !from_zero : true)
                            store_shared(
                                store + 4 * ((16 * t + 8 * half) * shift_pitch + 16 * own + 8 * n + 8 * half + odd),
                                c[i][t][n][e]);
                    }
            }
    }
}

// B fragments of a group of blocks of z: those in registers, or where the registers are too few, shared memory again.
template <int blocks>
struct HeldBlocks {
    u32 word[blocks][dim_steps][4];

    __device__ __forceinline__ void load(u32 (&b)[4], int block, int step) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) b[i] = word[block][step][i];
    }
};
struct SharedBlocks {
    const Lane& lane;
    u32 z;

    __device__ __forceinline__ void load(u32 (&b)[4], int block, int step) const {
        load_operand(b, lane.b_address(z + block * 16 * row_bytes, step));
    }
};
constexpr bool holds_blocks = row_bytes <= 256;

// T2strip.z for a group of blocks of z, shifted: element (t, other) of strip block `block`, both counted from the
// group's first, belongs to row other - t + warp_rows - 1 - 16 * block. Each strip block is loaded once for the whole
// group.
template <class Blocks>
__device__ __forceinline__ void scores_t2(const Blocks& z, const Lane& lane, u32 ring, int strip, u32 shift,
                                          int first_block) {
    const int first = lane.g - lane.c;
    const u32 store = shift + 4 * (lane.c * (shift_pitch + 1) - lane.g * shift_pitch);
    constexpr int at_once = strip_group < 2 ? strip_group : 2;  // the blocks of z hold registers, too
#pragma unroll
    for (int first_own = 0; first_own < key_group + row_tiles; first_own += at_once) {
        u32 base[at_once];
        float c[at_once][key_group][2][4] = {};
#pragma unroll
        for (int j = 0; j < at_once; ++j) base[j] = ring_block(ring, strip, first_block + first_own + j);
#pragma unroll
        for (int step = 0; step < dim_steps; ++step)
#pragma unroll
            for (int j = 0; j < at_once; ++j) {
                const int block = first_own + j;
                if (block >= key_group + row_tiles) continue;
                u32 a[4];
                load_operand(a, lane.a_address(base[j], step));
#pragma unroll
                for (int i = 0; i < key_group; ++i) {
                    if (block < i || block > i + row_tiles) continue;
                    u32 b[4];
                    z.load(b, i, step);
                    multiply<dtype>(c[j][i][0], a, b[0], b[1]);
                    multiply<dtype>(c[j][i][1], a, b[2], b[3]);
                }
            }
#pragma unroll
        for (int j = 0; j < at_once; ++j)
#pragma unroll
            for (int i = 0; i < key_group; ++i) {
                const int own = first_own + j - i;  // block within the strip of these 16 rows of z
                if (own < 0 || own > row_tiles) continue;
#pragma unroll
                for (int n = 0; n < 2; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const int half = e >> 1, odd = e & 1;
                        const int key = 8 * n + 4 * odd;                            // + c
                        const int row = key - 8 * half + warp_rows - 1 - 16 * own;  // + c - g
                        const bool in_last_row = first >= key - 8 * half;  // row <= warp_rows - 1 when own is 0
                        if (own == 0 ? in_last_row : own == row_tiles ? !in_last_row : true)
                            store_shared(store + 4 * (row * shift_pitch + 16 * (first_block + i) + key), c[j][i][n][e]);
                    }
            }
    }
}

// s += or = the shifted scores of this warp.
template <bool accumulate>
__device__ __forceinline__ void read_shifted(Scores& s, const Lane& lane, u32 shift) {
    const u32 from = shift + 4 * (lane.g * shift_pitch + lane.c);
#pragma unroll
    for (int t = 0; t < row_tiles; ++t)
#pragma unroll
        for (int n = 0; n < block_n / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float bias =
                    load_shared(from + 4 * ((16 * t + 8 * (e >> 1)) * shift_pitch + 8 * n + 4 * (e & 1)));
                s[t][n][e] = accumulate ? s[t][n][e] + bias : bias;
            }
}

__device__ __forceinline__ void clear(Scores& s) {
#pragma unroll
    for (int t = 0; t < row_tiles; ++t)
#pragma unroll
        for (int n = 0; n < block_n / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) s[t][n][e] = 0.0f;
}

// s += x.z of block `block` of those `from` counts, first_block among the tile's, and of one step; leaves z's fragment.
template <class Rows>
__device__ __forceinline__ void add_block(Scores& s, const Rows& x, const SharedBlocks& from, u32 (&b)[4],
                                          int first_block, int block, int step) {
    from.load(b, block, step);
#pragma unroll
    for (int t = 0; t < row_tiles; ++t) {
        u32 a[4];
        x.load(a, t, step);
        multiply<dtype>(s[t][2 * (first_block + block)], a, b[0], b[1]);
        multiply<dtype>(s[t][2 * (first_block + block) + 1], a, b[2], b[3]);
    }
}

// `z`: address of the tile; `strip`: ring row where this warp's strip starts (near tiles). The next stores to the shift
// buffer must come after a barrier of the warp.
template <bool near, class Rows>
__device__ __forceinline__ void scores(Scores& s, const Rows& x, const Lane& lane, u32 shared, u32 z, int strip,
                                       u32 shift) {
    if constexpr (near && has_t1) {
        scores_t1(x, lane, shared + t1_offset, strip, shift);
        __syncwarp();
        read_shifted<false>(s, lane, shift);
        if constexpr (has_t2) __syncwarp();  // before the next stores to the shift buffer
    } else {
        clear(s);
    }
    if constexpr (near && has_t2) {
#pragma unroll
        for (int block = 0; block < key_blocks; block += key_group) {
            const SharedBlocks from{lane, z + block * 16 * row_bytes};
            HeldBlocks<key_group> held;
#pragma unroll
            for (int i = 0; i < key_group; ++i)
#pragma unroll
                for (int step = 0; step < dim_steps; ++step) add_block(s, x, from, held.word[i][step], block, i, step);
            if constexpr (holds_blocks)
                scores_t2(held, lane, shared + t2_offset, strip, shift, block);
            else
                scores_t2(from, lane, shared + t2_offset, strip, shift, block);
        }
    } else {
        const SharedBlocks from{lane, z};
#pragma unroll
        for (int step = 0; step < dim_steps; ++step)
#pragma unroll
            for (int block = 0; block < key_blocks; ++block) {
                u32 b[4];
                add_block(s, x, from, b, 0, block, step);
            }
    }
    if constexpr (near && has_t2) {
        __syncwarp();
        read_shifted<true>(s, lane, shift);
    }
}
