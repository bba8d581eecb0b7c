// Disentangled attention, backward, in IEEE fp32 on the ordinary arithmetic units; 16-bit inputs are widened on the way
// in. A block owns `block` query rows and gives their dQ (own_keys false), or key rows and gives their dK and dV; it
// walks over tiles of the other side (simt_backward.cuh).
//
//   dX = sum over others of dS (z + T1[slot]),   dV = sum over others of P w
//
// Of far tiles the row sums of dS stay, [high, low] by the sign of i - j: times T1_e they complete dX, and times x they
// are the block's share of the end slots' gradients, which the last kernel adds up.
//
// Workspace, at regions[]:
//   0  Delta, fp32, laid out as lse: written with own_keys false, read with own_keys true, so that dQ comes first
//   1, 2  shares of the end slots of PK (own_keys false) and PQ (true): [batch * heads][tiles][high, low][head_dim]
#include "config"
#include "disentangled_attention/params.h"
#include "common/types.cuh"
#include "common/math.cuh"
#include "common/philox.h"
#include "disentangled_attention/dropout.h"
#include "disentangled_attention/sequence.cuh"

namespace {

using namespace config;

#include "disentangled_attention/simt_backward.cuh"
#include "disentangled_attention/simt_row_sum.cuh"

constexpr int column_width = columns < 4 ? columns : 4;
constexpr int column_groups = columns / column_width;

__device__ __forceinline__ int near_tiles(const BackwardParams& p) {
    return has_bias ? (p.band + block - 2) / block : 0;
}

// sum[a] += sum over n < width of weights[a][n] * rows[n], for the thread's columns. A thread owns neighbouring rows of
// a gradient; the weights of its first one lie at `weights`.
template <int width>
__device__ __forceinline__ void add_rows(float (&sum)[micro][columns], const Grid& at, const float* weights,
                                         const float* rows) {
#pragma unroll 2
    for (int j = 0; j < width; j += 4) {
        Float4 weight[micro];
#pragma unroll
        for (int a = 0; a < micro; ++a) weight[a] = read4(weights + a * pair_pitch + j);
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int group = 0; group < column_groups; ++group) {
                float value[column_width];
                read_columns(value, rows + (j + n) * wide_pitch + (at.tx + side * group) * column_width);
#pragma unroll
                for (int a = 0; a < micro; ++a) {
                    const float by = n == 0 ? weight[a].x : n == 1 ? weight[a].y : n == 2 ? weight[a].z : weight[a].w;
#pragma unroll
                    for (int i = 0; i < column_width; ++i) {
                        float& to = sum[a][group * column_width + i];
                        to = fmaf(by, value[i], to);
                    }
                }
            }
    }
}

// Delta of the block's query rows, into the workspace.
__device__ __forceinline__ void compute_delta(const BackwardParams& p, const Place& place, const Grid& at,
                                              const float* dout, int own0) {
    float* delta = reinterpret_cast<float*>(static_cast<char*>(p.workspace) + p.regions[0]);
    const s64 out = place.offset(p.out_batch, p.out_row, p.out_head);
#pragma unroll 1
    for (int row = at.ty; row < block; row += side) {
        const bool inside = own0 + row < place.length;
        float sum = 0.0f;
        for (int d = at.tx; inside && d < head_dim; d += side)
            sum = fmaf(load_element<dtype>(p.out, out + (own0 + row) * p.out_row + d), dout[row * wide_pitch + d], sum);
        sum = sum_of_row(sum);
        if (inside && at.tx == 0) delta[place.position + own0 + row] = sum;
    }
}

// The own rows x; with `slot` >= 0 for far tiles of that slot: x + T2_e, and row_bias = x.T1_e. Ends with a barrier.
__device__ __forceinline__ void load_own(const Grid& at, float* x, const Rows& from, int own0, int length,
                                         const Rows& t1, const Rows& t2, int slot, float* row_bias) {
    load_wide(x, from, own0, length);
    __syncthreads();
#pragma unroll 1
    for (int m = at.ty; m < block; m += side) {
        float* row = x + m * wide_pitch;
        float bias = 0.0f;
        for (int d = at.tx; slot >= 0 && d < head_dim; d += side) {
            if (has_t1) bias = fmaf(row[d], load_element<dtype>(t1.tensor, t1.base + slot * t1.row + d), bias);
            if (has_t2) row[d] += load_element<dtype>(t2.tensor, t2.base + slot * t2.row + d);
        }
        bias = sum_of_row(bias);
        if (at.tx == 0) row_bias[m] = bias;
    }
    __syncthreads();
}

__device__ __forceinline__ void store_pairs(float* pairs, const Grid& at, const float (&value)[micro][micro]) {
#pragma unroll
    for (int a = 0; a < micro; ++a)
#pragma unroll
        for (int b = 0; b < micro; ++b) pairs[(at.ty + side * a) * pair_pitch + at.tx + side * b] = value[a][b];
}

// Column c of row m: strip row c + (m rounded down to warp_rows), so that all rows of a warp read the same strip rows.
__device__ __forceinline__ void store_sheared(float* pairs, const Grid& at, const float (&value)[micro][micro]) {
    for (int n = int(threadIdx.x); n < block * warp_rows; n += threads) {
        const int m = n / warp_rows, c = n % warp_rows;
        pairs[m * pair_pitch + (c < m % warp_rows ? c : c + block)] = 0.0f;
    }
#pragma unroll
    for (int a = 0; a < micro; ++a)
#pragma unroll
        for (int b = 0; b < micro; ++b) {
            const int m = at.ty + side * a, n = at.tx + side * b;
            pairs[m * pair_pitch + m % warp_rows - n + block - 1] = value[a][b];
        }
}

__device__ __forceinline__ void add_far_sums(float* sums, const Grid& at, const float (&value)[micro][micro]) {
#pragma unroll
    for (int a = 0; a < micro; ++a) {
        float sum = 0.0f;
#pragma unroll
        for (int b = 0; b < micro; ++b) sum += value[a][b];
        sum = sum_of_row(sum);
        if (at.tx == 0) sums[at.ty + side * a] += sum;
    }
}

__device__ __forceinline__ void store_gradient(void* to, s64 base, s64 row_stride, const Grid& at, int own0, int length,
                                               const float (&sum)[micro][columns], float factor) {
#pragma unroll
    for (int a = 0; a < micro; ++a) {
        const int row = own0 + micro * at.ty + a;
        if (row >= length) continue;
#pragma unroll
        for (int n = 0; n < columns; ++n) {
            const int column = (at.tx + side * (n / column_width)) * column_width + n % column_width;
            store_element<dtype>(to, base + row * row_stride + column, sum[a][n] * factor);
        }
    }
}

}  // namespace

// Grid: batch * heads * tiles of the longest sequence.
extern "C" __global__ __launch_bounds__(threads, blocks_per_sm) void disentangled_attention_backward_simt(
    const __grid_constant__ BackwardParams p) {
    extern __shared__ __align__(16) float memory[];
    float* const x = memory;
    float* const y = x + wide_floats;
    float* const z = y + wide_floats;
    float* const w = z + wide_floats;
    float* const pairs = memory + pairs_offset;
    float* const far_sums = memory + far_offset;
    float* const row_bias = far_sums + 2 * block;
    u32* const dropped = reinterpret_cast<u32*>(memory + dropped_offset);
    const Grid at = place_in_grid();

    const int most_tiles = (p.length + block - 1) / block;
    const int batch_head = int(blockIdx.x) / most_tiles, own_tile = int(blockIdx.x) % most_tiles;
    const Place place = place_of(p, batch_head / p.heads, batch_head % p.heads);
    const int length = place.length, own0 = own_tile * block;
    float* const share = reinterpret_cast<float*>(static_cast<char*>(p.workspace) + p.regions[own_keys ? 2 : 1]) +
                         s64(blockIdx.x) * 2 * head_dim;
    if (own0 >= length) {
        if constexpr (has_t1)
            for (int n = int(threadIdx.x); n < 2 * head_dim; n += threads) share[n] = 0.0f;
        return;
    }
    const Sides sides = sides_of(p, place);
    const Rows own_x = own_keys ? sides.k : sides.q, own_y = own_keys ? sides.v : sides.dout;
    const Rows other_z = own_keys ? sides.q : sides.k, other_w = own_keys ? sides.dout : sides.v;
    const Rows t1 = table_of(p, place.head, true), t2 = table_of(p, place.head, false);
    const u8* const keep = mask ? p.mask + place.batch * p.mask_batch : nullptr;

    load_wide(y, own_y, own0, length);
    const Kept own = look_up(keep, own0 + at.ty, length);
    if constexpr (!own_keys) {
        __syncthreads();
        compute_delta(p, place, at, y, own0);
    }
    const bool own_live = !mask || __syncthreads_or(own.kept != 0);

    float dx[micro][columns] = {}, dv[micro][columns] = {};
    for (int n = int(threadIdx.x); n < 2 * block; n += threads) far_sums[n] = 0.0f;
    constexpr int before = own_keys ? 1 : 0;  // the end of the first far tiles, own rows beyond the others
    const int tiles = (length + block - 1) / block, near = near_tiles(p);
    const int near_begin = has_bias ? min(max(own_tile - near, 0), tiles) : tiles;
    const int near_end = has_bias ? min(own_tile + near + 1, tiles) : tiles;

    for (int t = 0; t < tiles; ++t) {
        const int other0 = t * block;
        const bool is_near = has_bias && t >= near_begin && t < near_end;
        if (t == 0 || (has_bias && (t == near_begin || t == near_end))) {
            int slot = -1;
            if (has_bias && t < near_begin) slot = slot_of(p, sign * p.band);
            if (has_bias && t >= near_end) slot = slot_of(p, -sign * p.band);
            load_own(at, x, own_x, own0, length, t1, t2, slot, row_bias);
        }
        const Kept other = look_up(keep, other0 + at.tx, length);
        load_wide(z, other_z, other0, length);
        load_wide(w, other_w, other0, length);
        if constexpr (dropout)
            load_dropped<block>(p.dropout, dropped, u32(batch_head), own_keys ? other0 : own0,
                                own_keys ? own0 : other0);
        bool live = true;  // some pair has a gradient
        if constexpr (mask)
            live = __syncthreads_or(other.kept != 0) && own_live;
        else
            __syncthreads();
        if (mask && !own_keys && !live) continue;

        float score[micro][micro] = {}, dp[micro][micro] = {};
        if (live) {
            if (is_near)
                add_near_scores(score, p, at, memory, t1, t2, own0, other0);
            else
                add_far_products(score, at, x, z);
            add_far_products(dp, at, y, w);
        }
        finish_pairs(score, dp, p, place, at, row_bias, own, other, dropped, own0, other0);
        const float* weights = pairs + micro * at.ty * pair_pitch;
        if constexpr (own_keys) {
            store_pairs(pairs, at, dp);
            __syncthreads();
            add_rows<block>(dv, at, weights, w);
            __syncthreads();
        }
        if (live) {
            store_pairs(pairs, at, score);
            __syncthreads();
            add_rows<block>(dx, at, weights, z);
            if (has_t1 && is_near) {
                __syncthreads();
                store_sheared(pairs, at, score);
                load_strip<2 * block, head_dim, wide_pitch, sign>(p, z, t1.tensor, t1.base, t1.row,
                                                                  sign * (own0 - other0 - (block - 1)));
                __syncthreads();
                add_rows<sheared_width>(dx, at, weights, z + micro * at.ty / warp_rows * warp_rows * wide_pitch);
            } else if (has_t1) {
                add_far_sums(far_sums + (t < near_begin ? before : 1 - before) * block, at, score);
            }
        }
        __syncthreads();
    }

    if constexpr (has_t1) {
        load_wide(x, own_x, own0, length);
        __syncthreads();
        for (int n = int(threadIdx.x); n < 2 * head_dim; n += threads) {
            const int d = n % head_dim;
            float sum = 0.0f;
#pragma unroll 4
            for (int m = 0; m < block; ++m) sum = fmaf(far_sums[n / head_dim * block + m], x[m * wide_pitch + d], sum);
            share[n] = sum;
        }
#pragma unroll
        for (int end = 0; end < 2; ++end) {
            const s64 row = t1.base + slot_of(p, end == 0 ? p.band : -p.band) * t1.row;
#pragma unroll
            for (int n = 0; n < columns; ++n) {
                const int column = (at.tx + side * (n / column_width)) * column_width + n % column_width;
                const float value = load_element<dtype>(t1.tensor, row + column);
#pragma unroll
                for (int a = 0; a < micro; ++a)
                    dx[a][n] = fmaf(far_sums[end * block + micro * at.ty + a], value, dx[a][n]);
            }
        }
    }
    if constexpr (own_keys) {
        store_gradient(p.dk, place.offset(p.dk_batch, p.dk_row, p.dk_head), p.dk_row, at, own0, length, dx, p.scale);
        store_gradient(p.dv, place.offset(p.dv_batch, p.dv_row, p.dv_head), p.dv_row, at, own0, length, dv,
                       dropout ? p.dropout.scale : 1.0f);
    } else {
        store_gradient(p.dq, place.offset(p.dq_batch, p.dq_row, p.dq_head), p.dq_row, at, own0, length, dx, p.scale);
    }
}
