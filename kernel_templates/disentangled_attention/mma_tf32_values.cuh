// Products with rows of a tile of fp32 elements as the right operand, over the tile's rows. ldmatrix cannot transpose
// 32-bit elements, so that fragments are read by ordinary loads. A step takes eight rows in the order that accumulators
// have their columns in: thread c holds rows 2c and 2c + 1, and an accumulator tile is the left operand as it is.
// Columns are taken 32 at a time, four products, of which a thread gives four neighbouring columns to one product each:
// one load of 16 bytes serves four products, and touches every bank of rows swizzled by 16-byte chunks once. needs:
// mma_scores.cuh

using Sum = float[head_dim / 8][4];

template <int width>
struct ValueLane {
    static constexpr int groups = width / 32;
    u32 even, odd;  // offsets of this thread's chunks of rows 2c and 2c + 1

    __device__ __forceinline__ explicit ValueLane(const Lane& lane)
        : even(swizzled(2 * lane.c, lane.g)), odd(swizzled(2 * lane.c + 1, lane.g)) {}

    // Column of the rows of element `odd` of a thread's row in product n of a sum.
    static __device__ __forceinline__ int column(int n, int c, int odd) {
        return n / 4 * 32 + 4 * (2 * c + odd) + n % 4;
    }
    // sum[t] += a[t] * the eight rows at `rows`, a multiple of eight of them into a tile, for t in [first, end).
    template <int first, int end, int count>
    __device__ __forceinline__ void add(Sum (&sum)[count], const u32 (&a)[count][4], u32 rows) const {
#pragma unroll
        for (int group = 0; group < groups; ++group) {
            const Float4 x = load_shared_floats(rows + even + group * 128);
            const Float4 y = load_shared_floats(rows + odd + group * 128);
            const float low[4] = {x.x, x.y, x.z, x.w}, high[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const u32 b0 = round_tf32(__float_as_uint(low[i])), b1 = round_tf32(__float_as_uint(high[i]));
#pragma unroll
                for (int t = first; t < end; ++t) multiply<dtype>(sum[t][4 * group + i], a[t], b0, b1);
            }
        }
    }
};

// sum += weights * rows of the tile at `rows`.
template <class Values>
__device__ __forceinline__ void add_rows(Sum (&sum)[row_tiles], const Scores& weight, const Values& values, u32 rows) {
#pragma unroll
    for (int block = 0; block < block_n / 8; ++block) {
        u32 a[row_tiles][4];
#pragma unroll
        for (int t = 0; t < row_tiles; ++t)
#pragma unroll
            for (int part = 0; part < 4; ++part)  // the columns of an accumulator in the order of the operand's rows
                a[t][part] = round_tf32(__float_as_uint(weight[t][block][2 * (part & 1) + (part >> 1)]));
        values.template add<0, row_tiles>(sum, a, rows + block * 8 * row_bytes);
    }
}

// A row of a sum, times `factor`, to a row of a tensor.
template <class Type, bool is_aligned = aligned>
__device__ __forceinline__ void store_row(Type* to, const Sum& sum, int half, int c, float factor) {
#pragma unroll
    for (int group = 0; group < head_dim / 32; ++group)
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
            float value[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) value[i] = sum[4 * group + i][2 * half + odd] * factor;
            Type* at = to + ValueLane<head_dim>::column(4 * group, c, odd);
            if constexpr (is_aligned)
                *reinterpret_cast<Float4*>(at) = {value[0], value[1], value[2], value[3]};
            else
#pragma unroll
                for (int i = 0; i < 4; ++i) at[i] = value[i];
        }
}
