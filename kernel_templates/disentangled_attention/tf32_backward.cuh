// What the tf32 kernels of the backward pass share. A block holds block_m rows of its own (x, y) and looks at tiles of
// block_n others (z, w): queries own (q, dO) and keys others (k, v), or with own_keys keys own (k, v) and queries
// others (q, dO). Either way
//   score = x.z + x.T1[slot] + z.T2[slot],   dP = y.w
// with T1 the table that own rows meet (PK for queries, PQ for keys) and T2 the other one. Gradients are summed without
// their factors (scale, dropout.scale), which come with the store. What is far or near goes by tiles of `block` rows of
// either side, as in simt_backward.cuh, whose workspace these kernels fill.
// needs: common/types.cuh, common/math.cuh, common/async_copy.cuh, common/mma.cuh, common/philox.h,
// disentangled_attention/params.h, disentangled_attention/dropout.h, disentangled_attention/sequence.cuh, config;
// column_warps of the includer

constexpr bool has_bias = c2p || p2c;
constexpr bool has_t1 = own_keys ? p2c : c2p, has_t2 = own_keys ? c2p : p2c;
constexpr int sign = own_keys ? -1 : 1;  // i - j = sign * (own - other)

static_assert(dtype == dtype_f32, "elements are fp32, multiplied as tf32");
static_assert(!lse, "the backward pass reads lse, it writes none");

// Each needs those before it.
// clang-format off
#include "disentangled_attention/mma_rows.cuh"
#include "disentangled_attention/mma_tiles.cuh"
#include "disentangled_attention/mma_scores.cuh"
#include "disentangled_attention/mma_tf32_values.cuh"
#include "disentangled_attention/backward_place.cuh"
#include "disentangled_attention/simt_dropout.cuh"
// clang-format on

constexpr int block = block_m;
constexpr int tile_words = block_n / 32;

static_assert(row_tiles == 1, "a warp owns 16 rows");
static_assert(block % block_n == 0 && block <= 64, "whole tiles of others in a tile of `block` rows");

__device__ __forceinline__ const Element* elements(const Rows& rows) {
    return static_cast<const Element*>(rows.tensor) + rows.base;
}

// A row's lse and Delta.
__device__ __forceinline__ Float2 statistics_of(const BackwardParams& p, const Place& place, int row) {
    if (row >= place.length) return {0.0f, 0.0f};
    const float* delta = reinterpret_cast<const float*>(static_cast<const char*>(p.workspace) + p.regions[0]);
    return {p.lse[place.position + row], delta[place.position + row]};
}

// Rows g and g + 8 of a warp.
struct OwnRows {
    bool inside[2], kept[2];
    float bias[2];         // x.T1_e in far tiles, else 0
    Float2 statistics[2];  // of queries
};

// Bit j of word i: row 32 * i + j of a tile is in the sequence; and is not masked.
struct OtherRows {
    u32 inside[tile_words], kept[tile_words];
    bool any_kept;

    __device__ __forceinline__ OtherRows(const u8* keep, int first, int length) {
        const int l = int(threadIdx.x) % 32;
        any_kept = false;
#pragma unroll
        for (int i = 0; i < tile_words; ++i) {
            const int left = length - first - 32 * i;
            inside[i] = left >= 32 ? 0xffffffffu : left <= 0 ? 0u : (1u << left) - 1;
            kept[i] = inside[i];
            if constexpr (mask)
                kept[i] = __ballot_sync(0xffffffffu, l < left && keep[first + 32 * i + l] != 0) & inside[i];
            any_kept = any_kept || kept[i] != 0;
        }
    }
};

// On entry s = x.z + ... and dp = y.w; on return s = dS / scale, and dp = P / dropout.scale as dV takes it. `own0`: the
// warp's first row, `own_in_block` of the block; `other0`: the tile's first. own_keys: `statistics` are those of the
// tile's rows, in shared memory.
__device__ __forceinline__ void finish_pairs(Scores& s, Scores& dp, const BackwardParams& p, int length,
                                             const Lane& lane, const OwnRows& own, const OtherRows& other,
                                             u32 statistics, const u32* dropped, int own0, int own_in_block,
                                             int other0) {
    const float equal_weight = 1.0f / float(length);
#pragma unroll
    for (int n = 0; n < block_n / 8; ++n)
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
            const int bit = 8 * (n % 4) + 4 * odd, column = 8 * n + 4 * odd + lane.c;
            const bool inside = other.inside[n / 4] >> lane.c >> bit & 1, kept = other.kept[n / 4] >> lane.c >> bit & 1;
            Float2 of_column;
            if constexpr (own_keys)
                of_column = {load_shared(statistics + 8 * column), load_shared(statistics + 8 * column + 4)};
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float& score = s[0][n][2 * half + odd];
                float& d = dp[0][n][2 * half + odd];
                const Float2 query = own_keys ? of_column : own.statistics[half];
                const float weight =
                    kept && own.kept[half] ? exp2_approx((score + own.bias[half]) * p.scale_log2 - query.x) : 0.0f;
                bool drop = false;
                if constexpr (dropout) {
                    const int row = lane.g + 8 * half;
                    drop = own_keys ? dropped_in_tile(dropped, column, own0 + row)
                                    : dropped_in_tile(dropped, own_in_block + row, other0 + column);
                    d = drop ? 0.0f : d * p.dropout.scale;
                }
                // A masked query weighs every key alike.
                const bool equal = own_keys && mask && inside && !kept && own.inside[half];
                score = weight * (d - query.y);
                d = drop ? 0.0f : equal ? equal_weight : weight;
            }
        }
}
