// Disentangled attention, backward, of fp32 tensors on tensor cores (sm_80 and newer): products in tf32, sums and
// everything else in fp32. A block owns block_m query rows and gives their dQ (own_keys false), or key rows and gives
// their dK and dV; it walks over tiles of the other side (tf32_backward.cuh), and a warp over 16 rows of its own:
//
//   dX = sum over others of dS (z + T1[slot]),   dV = sum over others of P w
//
// dS and P stay in registers: accumulators are left operands as they are. For T1, dS of a near tile goes through the
// warp's shift buffer and comes back by distance. Of far tiles the row sums of dS stay, [high, low] by the sign of
// i - j: times T1_e they complete dX, and times x they are the block's share of the end slots' gradients.
//
// The workspace is that of backward_simt.cu. Dynamic shared memory: the tiles (mma_tiles.cuh), then
//   x, y        [block_m][head_dim] each, likewise   unless resident, when registers hold them
//   statistics  [stages][block_n] lse and Delta      when own_keys
//   far         [2][block_m]                         row sums of dS over far tiles
//   dropped     [stages][dropped_tile] words         when dropout
#include "config"
#include "disentangled_attention/params.h"
#include "common/types.cuh"
#include "common/math.cuh"
#include "common/async_copy.cuh"
#include "common/mma.cuh"
#include "common/philox.h"
#include "disentangled_attention/dropout.h"
#include "disentangled_attention/sequence.cuh"

namespace {

using namespace config;

constexpr int column_warps = 1;

#include "disentangled_attention/tf32_backward.cuh"

constexpr int own_bytes = block * row_bytes;
constexpr int dropped_tile = dropped_words<(own_keys ? block_n : block)>;

constexpr int x_offset = tiles_end;
constexpr int y_offset = x_offset + (resident ? 0 : own_bytes);
constexpr int statistics_offset = y_offset + (resident ? 0 : own_bytes);
constexpr int statistics_bytes = own_keys ? block_n * 8 : 0;  // of a tile
constexpr int far_offset = statistics_offset + stages * statistics_bytes;
constexpr int dropped_offset = far_offset + 2 * block * 4;
constexpr int all_bytes = dropped_offset + (dropout ? stages * dropped_tile * 4 : 0);

static_assert(all_bytes == shared_bytes, "the launch asks for another size of shared memory");

// A fragments of the warp's 16 rows of x or y, rounded: in registers, or in shared memory at `rows`.
struct Own {
    const Lane& lane;
    u32 rows;
    u32 word[resident ? dim_steps : 1][4];

    __device__ __forceinline__ Own(const Lane& lane_, u32 rows_) : lane(lane_), rows(rows_) {}
    // Word `part` of this lane's fragment of a step.
    __device__ __forceinline__ void put(int step, int part, u32 value) {
        if constexpr (resident)
            word[step][part] = value;
        else
            store_shared(rows + swizzled(lane.g + 8 * (part & 1), 2 * step + (part >> 1)) + 4 * lane.c,
                         __uint_as_float(value));
    }
    __device__ __forceinline__ void load(u32 (&a)[4], int, int step) const {
        if constexpr (resident)
#pragma unroll
            for (int i = 0; i < 4; ++i) a[i] = word[step][i];
        else
            load_matrices(a, lane.a_address(rows, step));
    }
};

// The warp's rows of x or y from global memory; with `slot` >= 0 for far tiles of that slot: x + T2_e, and
// bias = x.T1_e. Rows past the end repeat the last one, and are never stored.
__device__ __forceinline__ void load_own(Own& own, float (&bias)[2], const Lane& lane, const Rows& from, int row,
                                         int length, const Rows& t1, const Rows& t2, int slot) {
    bias[0] = bias[1] = 0.0f;
    const Element* first = elements(t1) + slot * t1.row;
    const Element* second = elements(t2) + slot * t2.row;
    if constexpr (!resident) __syncwarp();
#pragma unroll
    for (int step = 0; step < dim_steps; ++step)
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int half = part & 1, dim = step * 8 + (part >> 1) * 4 + lane.c;
            float value = elements(from)[min(row + half * 8 + lane.g, length - 1) * from.row + dim];
            if (has_t1 && slot >= 0) bias[half] = fmaf(value, first[dim], bias[half]);
            if (has_t2 && slot >= 0) value += second[dim];
            own.put(step, part, round_tf32(__float_as_uint(value)));
        }
    if constexpr (!resident) __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        bias[half] += __shfl_xor_sync(0xffffffffu, bias[half], 1);
        bias[half] += __shfl_xor_sync(0xffffffffu, bias[half], 2);
    }
}

// Delta of the warp's query rows, into the workspace and `to`.
__device__ __forceinline__ void compute_delta(const BackwardParams& p, const Place& place, const Rows& dout, int row0,
                                              float* to) {
    const int lane = int(threadIdx.x) % 32;
    float* delta = reinterpret_cast<float*>(static_cast<char*>(p.workspace) + p.regions[0]);
    const Element* out = static_cast<const Element*>(p.out) + place.offset(p.out_batch, p.out_row, p.out_head);
#pragma unroll 4
    for (int r = 0; r < 16; ++r) {
        const int row = min(row0 + r, place.length - 1);
        float sum = 0.0f;
#pragma unroll
        for (int d = lane; d < head_dim; d += 32)
            sum = fmaf(out[row * p.out_row + d], elements(dout)[row * dout.row + d], sum);
#pragma unroll
        for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (lane == 0) {
            to[r] = sum;
            if (row0 + r < place.length) delta[place.position + row0 + r] = sum;
        }
    }
    __syncwarp();
}

using Gradient = Sum[1];

// dx += dS T1 of a near tile; `strip`: ring row where this warp's strip starts. Row m of the warp meets other row
// t + m - 15 at strip row t.
__device__ __forceinline__ void add_strip(Gradient& dx, const Scores& ds, const Lane& lane,
                                          const ValueLane<head_dim>& values, u32 ring, int strip, u32 shift) {
    __syncwarp();
#pragma unroll
    for (int n = 0; n < block_n / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            store_shared(shift + 4 * ((lane.g + 8 * (e >> 1)) * shift_pitch + 8 * n + lane.c + 4 * (e & 1)),
                         ds[0][n][e]);
    __syncwarp();
    const u32 from = shift + 4 * (lane.g * (shift_pitch + 1) + 2 * lane.c - 15);
    const int first = 2 * lane.c + lane.g - 15;
#pragma unroll
    for (int step = 0; step < block_n / 8 + 2; ++step) {
        u32 a[1][4];
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int half = part & 1, odd = part >> 1, other = first + 8 * step + odd + 8 * half;
            a[0][part] = other >= 0 && other < block_n
                             ? round_tf32(__float_as_uint(
                                   load_shared(from + 4 * (8 * half * (shift_pitch + 1) + 8 * step + odd))))
                             : 0u;
        }
        values.add<0, 1>(dx, a, ring_block(ring, strip, step / 2) + step % 2 * 8 * row_bytes);
    }
}

__device__ __forceinline__ void store_gradient(void* to, s64 base, s64 row_stride, const Lane& lane, int row,
                                               int length, const Gradient& sum, float factor) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int i = row + 8 * half + lane.g;
        if (i >= length) continue;
        store_row(static_cast<Element*>(to) + base + i * row_stride, sum[0], half, lane.c, factor);
    }
}

}  // namespace

// Grid: batch * heads * tiles of `block` rows of the longest sequence.
extern "C" __global__ __launch_bounds__(threads, blocks_per_sm) void disentangled_attention_backward_tf32(
    const __grid_constant__ BackwardParams p) {
    extern __shared__ __align__(128) unsigned char memory[];
    const u32 shared = shared_address(memory);
    float* const far = reinterpret_cast<float*>(memory + far_offset);
    const int warp = int(threadIdx.x) / 32;
    const Lane lane(int(threadIdx.x) % 32);
    const ValueLane<head_dim> values(lane);

    const int most_tiles = (p.length + block - 1) / block;
    const int batch_head = int(blockIdx.x) / most_tiles, own_tile = int(blockIdx.x) % most_tiles;
    const Place place = place_of(p, batch_head / p.heads, batch_head % p.heads);
    const int length = place.length, own0 = own_tile * block, row0 = own0 + warp * 16;
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

    constexpr int ratio = block / block_n;
    const int tiles = (length + block_n - 1) / block_n, near = has_bias ? (p.band + block - 2) / block : 0;
    const int near_begin = has_bias ? min(max(own_tile - near, 0) * ratio, tiles) : tiles;
    const int near_end = has_bias ? min((own_tile + near + 1) * ratio, tiles) : tiles;

    const TileLoader<BackwardParams> loader{p,
                                            elements(other_z),
                                            elements(other_w),
                                            elements(t1),
                                            elements(t2),
                                            other_z.row,
                                            other_w.row,
                                            t1.row,
                                            t2.row,
                                            shared,
                                            int(threadIdx.x) / row_chunks,
                                            int(threadIdx.x) % row_chunks,
                                            length,
                                            own0 + block - 1 - near_begin * block_n};
    auto load_tile = [&](int t, int stage) {
        loader.others(t, stage, near_begin, near_end);
        loader.partners(t, stage);
        if constexpr (own_keys)
            if (int(threadIdx.x) < block_n)
                *reinterpret_cast<Float2*>(memory + statistics_offset + stage * statistics_bytes + threadIdx.x * 8) =
                    statistics_of(p, place, t * block_n + int(threadIdx.x));
        if constexpr (dropout)
            load_dropped<(own_keys ? block_n : block)>(
                p.dropout, reinterpret_cast<u32*>(memory + dropped_offset) + stage * dropped_tile, u32(batch_head),
                own_keys ? t * block_n : own0, own_keys ? own0 : t * block_n);
    };
#pragma unroll
    for (int i = 0; i < stages - 1; ++i) {
        if (i < tiles) load_tile(i, i);
        copy_async_commit();
    }

    OwnRows own;
    if constexpr (!own_keys) compute_delta(p, place, own_y, row0, far + warp * 16);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int i = row0 + lane.g + 8 * half;
        own.inside[half] = i < length;
        own.kept[half] = i < length && (!mask || keep[i]);
        if constexpr (!own_keys)
            own.statistics[half] = {i < length ? p.lse[place.position + i] : 0.0f, far[warp * 16 + lane.g + 8 * half]};
    }
    const bool own_live = !mask || __any_sync(0xffffffffu, own.kept[0] || own.kept[1]);
    Own x(lane, shared + x_offset + warp * 16 * row_bytes), y(lane, shared + y_offset + warp * 16 * row_bytes);
    load_own(y, own.bias, lane, own_y, row0, length, t1, t2, -1);

    Gradient dx = {}, dv = {};
    float far_sum[2][2] = {};                 // [high, low] of rows g and g + 8, of this thread's columns
    constexpr int before = own_keys ? 1 : 0;  // the end of the first far tiles, own rows beyond the others
    const u32 shift = shared + shift_offset + warp * shift_bytes;
    const int strip_in_tile = block - (warp + 1) * 16;

    for (int t = 0; t < tiles; ++t) {
        const int stage = t % stages;
        if constexpr (stages == 1) {
            load_tile(t, 0);
            copy_async_commit();
        }
        copy_async_wait<(stages > 1 ? stages - 2 : 0)>();
        __syncthreads();
        if constexpr (stages > 1) {
            if (t + stages - 1 < tiles) load_tile(t + stages - 1, (t + stages - 1) % stages);
            copy_async_commit();
        }
        const bool is_near = has_bias && t >= near_begin && t < near_end;
        if (t == 0 || (has_bias && (t == near_begin || t == near_end))) {
            int slot = -1;
            if (has_bias && t < near_begin) slot = slot_of(p, sign * p.band);
            if (has_bias && t >= near_end) slot = slot_of(p, -sign * p.band);
            load_own(x, own.bias, lane, own_x, row0, length, t1, t2, slot);
        }
        const OtherRows other(keep, t * block_n, length);
        const bool live = !mask || (own_live && other.any_kept);  // some pair of the warp has a gradient
        if (live || own_keys) {
            const u32 z = shared + z_offset + stage * tile_bytes, w = shared + w_offset + stage * tile_bytes;
            int strip = (t - near_begin) % ring_chunks * block_n + strip_in_tile;
            strip -= strip >= ring_rows ? ring_rows : 0;
            Scores s, dp;
            if (is_near)
                scores<true>(s, x, lane, shared, z, strip, shift);
            else
                scores<false>(s, x, lane, shared, z, 0, shift);
            scores<false>(dp, y, lane, shared, w, 0, shift);
            finish_pairs(s, dp, p, length, lane, own, other,
                         shared + statistics_offset + stage * statistics_bytes,
                         reinterpret_cast<const u32*>(memory + dropped_offset) + stage * dropped_tile, row0, warp * 16,
                         t * block_n);
            if constexpr (own_keys) add_rows(dv, dp, values, w);
            if (live) {
                add_rows(dx, s, values, z);
                if (has_t1 && is_near) {
                    add_strip(dx, s, lane, values, shared + t1_offset, strip, shift);
                } else if (has_t1) {
                    const bool high = (t < near_begin) == (before == 0);
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        float sum = 0.0f;
#pragma unroll
                        for (int n = 0; n < block_n / 8; ++n) sum += s[0][n][2 * half] + s[0][n][2 * half + 1];
                        far_sum[0][half] += high ? sum : 0.0f;
                        far_sum[1][half] += high ? 0.0f : sum;
                    }
                }
            }
            __syncwarp();  // before the next stores to the shift buffer
        }
        if constexpr (stages == 1) __syncthreads();
    }

    if constexpr (has_t1) {
#pragma unroll
        for (int end = 0; end < 2; ++end) {
            const Element* row = elements(t1) + slot_of(p, end == 0 ? p.band : -p.band) * t1.row;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float sum = far_sum[end][half];
                sum += __shfl_xor_sync(0xffffffffu, sum, 1);
                sum += __shfl_xor_sync(0xffffffffu, sum, 2);
#pragma unroll
                for (int n = 0; n < head_dim / 8; ++n)
#pragma unroll
                    for (int odd = 0; odd < 2; ++odd)
                        dx[0][n][2 * half + odd] =
                            fmaf(sum, row[ValueLane<head_dim>::column(n, lane.c, odd)], dx[0][n][2 * half + odd]);
                if (lane.c == 0) far[end * block + warp * 16 + lane.g + 8 * half] = sum;
            }
        }
        __syncthreads();
        for (int n = int(threadIdx.x); n < 2 * head_dim; n += threads) {
            const float* weight = far + n / head_dim * block;
            const Element* from = elements(own_x) + n % head_dim;
            float sum = 0.0f;
#pragma unroll 4
            for (int m = 0; m < min(block, length - own0); ++m)
                sum = fmaf(weight[m], from[(own0 + m) * own_x.row], sum);
            share[n] = sum;
        }
    }
    if constexpr (own_keys) {
        store_gradient(p.dk, place.offset(p.dk_batch, p.dk_row, p.dk_head), p.dk_row, lane, row0, length, dx, p.scale);
        store_gradient(p.dv, place.offset(p.dv_batch, p.dv_row, p.dv_head), p.dv_row, lane, row0, length, dv,
                       dropout ? p.dropout.scale : 1.0f);
    } else {
        store_gradient(p.dq, place.offset(p.dq_batch, p.dq_row, p.dq_head), p.dq_row, lane, row0, length, dx, p.scale);
    }
}
