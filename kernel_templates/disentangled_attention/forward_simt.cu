// Disentangled attention, forward, in IEEE fp32 on the ordinary arithmetic units; 16-bit inputs are widened on the way
// in.
//
//   s_ij = q_i.k_j + [c2p] q_i.PK[slot(i-j)] + [p2c] k_j.PQ[slot(i-j)],   O = softmax_j(scale * s) V
//
// A block owns block_m query rows and walks over tiles of block_n keys. The 2 * micro - 1 distances of a thread's pairs
// (simt_tile.cuh) have their rows of PK and PQ in shared memory like those of Q and K, and all three products go into
// one register tile. Far tiles (every |i-j| >= band, one end slot e) use (q_i + PQ_e).k_j + q_i.PK_e instead: the sum
// replaces Q in shared memory, and the second term is a constant of the row.
//
// Dynamic shared memory, fp32, in this order:
//   Q        [block_m][head_dim + 4]                 Q, or Q + PQ_e in far tiles
//   then, one after the other in the same place:
//   scores:  K [block_n][dim_step + 4], strips of PK and PQ [block_m + block_n][dim_step + 4], dim_step columns a time
//   values:  V [block_n][head_dim + 4], P [block_m][block_n + 4]
//   then:
//   range    [2] int, when mask
//   dropped  [block_m * 2] words, when dropout
#include "config"
#include "disentangled_attention/params.h"
#include "common/types.cuh"
#include "common/math.cuh"
#include "common/philox.h"
#include "disentangled_attention/dropout.h"
#include "disentangled_attention/sequence.cuh"

namespace {

using namespace config;

constexpr bool has_bias = c2p || p2c;
constexpr int side = threads == 256 ? 16 : 8;
constexpr int micro = block_m / side;
constexpr int strip_rows = block_m + block_n;
constexpr int wide_pitch = head_dim + 4;  // a row moves by 4 banks: 16-byte reads of 8 rows touch every bank once
constexpr int step_pitch = dim_step + 4;
constexpr int p_pitch = block_n + 4;
constexpr int columns = head_dim / side;  // of O, of one thread
constexpr int column_width = columns < 4 ? columns : 4;
constexpr int column_groups = columns / column_width;

constexpr int q_floats = block_m * wide_pitch;
constexpr int pk_offset = block_n * step_pitch;
constexpr int pq_offset = pk_offset + (c2p ? strip_rows * step_pitch : 0);
constexpr int scores_floats = pq_offset + (p2c ? strip_rows * step_pitch : 0);
constexpr int p_offset = block_n * wide_pitch;
constexpr int values_floats = p_offset + block_m * p_pitch;
constexpr int range_offset = q_floats + (scores_floats > values_floats ? scores_floats : values_floats);
constexpr int dropped_offset = range_offset + (mask ? 2 : 0);
constexpr int all_floats = dropped_offset + (dropout ? 2 * block_m : 0);

static_assert(4 * all_floats == shared_bytes, "the launch asks for another size of shared memory");
static_assert(head_dim == 32 || head_dim == 64 || head_dim == 128, "head_dim must be 32, 64 or 128");
static_assert(threads == 64 || threads == 256, "threads form a square whose side divides a warp");
static_assert(block_m == block_n && block_m % side == 0, "rows and keys of a thread have the same stride");
static_assert(dim_step % 4 == 0 && head_dim % dim_step == 0, "columns are taken four at a time");

constexpr float masked_score = -1e30f;  // finite: what a tile without visible keys adds is later multiplied by 0

#include "disentangled_attention/simt_dropout.cuh"
#include "disentangled_attention/simt_row_sum.cuh"
#include "disentangled_attention/simt_tile.cuh"

static_assert(!dropout || dropped_words<block_m> == 2 * block_m, "two words for each query row");

__device__ __forceinline__ float max_of_row(float x) {
#pragma unroll
    for (int step = 2; step <= side; step *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

// Fills Q; with `slot` >= 0 for far tiles of that slot. Ends with a barrier.
__device__ __forceinline__ void load_query(const ForwardParams& p, const Sequence& s, const Grid& at, float* q, s64 pk,
                                           s64 pq, int slot, u32 hidden, float (&row_bias)[micro]) {
    load_rows<block_m, head_dim, wide_pitch>(q, p.q, s.q, p.q_row, s.row0, s.length);
    __syncthreads();
#pragma unroll
    for (int a = 0; a < micro; ++a) {
        row_bias[a] = 0.0f;
        if (slot < 0) continue;
        float* row = q + (at.ty + side * a) * wide_pitch;
        for (int d = at.tx; d < head_dim; d += side) {
            if (c2p) row_bias[a] += row[d] * load_element<dtype>(p.position_key, pk + slot * p.position_key_row + d);
            if (p2c) row[d] += load_element<dtype>(p.position_query, pq + slot * p.position_query_row + d);
        }
        const float sum = sum_of_row(row_bias[a]);  // by every lane, whatever its row
        row_bias[a] = hidden >> a & 1 ? 0.0f : sum;
    }
    __syncthreads();
}

// O += P V
__device__ __forceinline__ void add_values(float (&o)[micro][columns], const Grid& at, const float* tile) {
    const float* weights = tile + p_offset + at.ty * p_pitch;
#pragma unroll 2
    for (int j = 0; j < block_n; j += 4) {
        Float4 w[micro];
#pragma unroll
        for (int a = 0; a < micro; ++a) w[a] = read4(weights + side * a * p_pitch + j);
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int group = 0; group < column_groups; ++group) {
                const float* from = tile + (j + n) * wide_pitch + (at.tx + side * group) * column_width;
                float v[column_width];
                if constexpr (column_width == 4) {
                    const Float4 x = read4(from);
                    v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
                } else {
#pragma unroll
                    for (int i = 0; i < column_width; ++i) v[i] = from[i];
                }
#pragma unroll
                for (int a = 0; a < micro; ++a) {
                    const float weight = n == 0 ? w[a].x : n == 1 ? w[a].y : n == 2 ? w[a].z : w[a].w;
#pragma unroll
                    for (int i = 0; i < column_width; ++i)
                        o[a][group * column_width + i] = fmaf(weight, v[i], o[a][group * column_width + i]);
                }
            }
    }
}

// First kept key and one past the last, of a block whose rows are all kept; everything when a row is masked.
__device__ __forceinline__ void kept_range(const u8* keep, int row0, int length, int* range, int& first, int& count) {
    const int tid = int(threadIdx.x);
    bool hidden = false;
    for (int r = tid; r < block_m && row0 + r < length; r += threads) hidden = hidden || !keep[row0 + r];
    if (tid == 0) range[0] = length, range[1] = 0;
    first = 0, count = length;
    if (__syncthreads_or(hidden)) return;
    int low = length, high = 0;
    for (int j = tid; j < length; j += threads)
        if (keep[j]) low = min(low, j), high = j + 1;
    atomicMin(&range[0], low);
    atomicMax(&range[1], high);
    __syncthreads();
    first = range[0], count = range[1];
}

}  // namespace

extern "C" __global__ __launch_bounds__(threads, blocks_per_sm) void disentangled_attention_forward_simt(
    const __grid_constant__ ForwardParams p) {
    extern __shared__ __align__(16) float memory[];
    const Sequence s = locate<block_m, packed>(p);
    if (s.row0 >= s.length) return;
    const Grid at = place_in_grid();
    float* const q = memory;
    float* const tile = memory + q_floats;
    u32* const dropped = reinterpret_cast<u32*>(memory + dropped_offset);
    const s64 pk = s.head * p.position_key_head, pq = s.head * p.position_query_head;

    const u8* keep = mask ? p.mask + s.batch * p.mask_batch : nullptr;
    int first_key = 0, key_count = s.length;
    if constexpr (mask)
        kept_range(keep, s.row0, s.length, reinterpret_cast<int*>(memory + range_offset), first_key, key_count);
    const KeyTiles tiles = key_tiles<block_m, block_n, has_bias>(p, s.row0, first_key, key_count);

    u32 hidden = 0;  // bit a: row a of this thread is masked
    float m[micro], l[micro], row_bias[micro], o[micro][columns] = {};
#pragma unroll
    for (int a = 0; a < micro; ++a) {
        const int i = s.row0 + at.ty + side * a;
        if (mask && i < s.length && !keep[i]) hidden |= 1u << a;
        m[a] = masked_score, l[a] = 0.0f;
    }

    for (int t = tiles.begin; t < tiles.end; ++t) {
        const int key0 = t * block_n;
        const bool near = has_bias && t >= tiles.near_begin && t < tiles.near_end;
        if (t == tiles.begin || (has_bias && (t == tiles.near_begin || t == tiles.near_end))) {
            int slot = -1;
            if (has_bias && t < tiles.near_begin) slot = slot_of(p, p.band);
            if (has_bias && t >= tiles.near_end) slot = slot_of(p, -p.band);
            load_query(p, s, at, q, pk, pq, slot, hidden, row_bias);
        }

        if constexpr (dropout) load_dropped<block_m>(p.dropout, dropped, u32(s.batch * p.heads + s.head), s.row0, key0);
        float score[micro][micro] = {};
        for (int d = 0; d < head_dim; d += dim_step) {
            load_rows<block_n, dim_step, step_pitch>(tile, p.k, s.k + d, p.k_row, key0, s.length);
            if (near) {
                const int first_distance = s.row0 - key0 - (block_n - 1);
                if constexpr (c2p)
                    load_strip<strip_rows, dim_step, step_pitch, 1>(p, tile + pk_offset, p.position_key, pk + d,
                                                                    p.position_key_row, first_distance);
                if constexpr (p2c)
                    load_strip<strip_rows, dim_step, step_pitch, 1>(p, tile + pq_offset, p.position_query, pq + d,
                                                                    p.position_query_row, first_distance);
            }
            __syncthreads();
            if (near)
                add_scores<true, c2p, p2c, dim_step, wide_pitch, step_pitch, step_pitch>(
                    score, at, q + d, tile, tile + pk_offset, tile + pq_offset, block_n - 1);
            else
                add_scores<false, c2p, p2c, dim_step, wide_pitch, step_pitch, step_pitch>(score, at, q + d, tile,
                                                                                          nullptr, nullptr, 0);
            __syncthreads();
        }
        load_rows<block_n, head_dim, wide_pitch>(tile, p.v, s.v, p.v_row, key0, s.length);

        bool key_kept[micro];
#pragma unroll
        for (int b = 0; b < micro; ++b) {
            const int j = key0 + at.tx + side * b;
            key_kept[b] = j < s.length && (!mask || keep[j]);
        }
#pragma unroll
        for (int a = 0; a < micro; ++a) {
            const bool row_hidden = mask && (hidden >> a & 1);
            float top = m[a];
#pragma unroll
            for (int b = 0; b < micro; ++b) {
                const bool attended = row_hidden ? key0 + at.tx + side * b < s.length : key_kept[b];
                const float value = row_hidden ? 0.0f : score[a][b] + row_bias[a];
                score[a][b] = attended ? value : masked_score;
                top = fmaxf(top, score[a][b]);
            }
            top = max_of_row(top);
            const float ratio = exp2f((m[a] - top) * p.scale_log2);
            m[a] = top;
            l[a] *= ratio;
#pragma unroll
            for (int i = 0; i < columns; ++i) o[a][i] *= ratio;
#pragma unroll
            for (int b = 0; b < micro; ++b) {
                const float weight = exp2f((score[a][b] - top) * p.scale_log2);
                l[a] += weight;
                const int row = at.ty + side * a, column = at.tx + side * b;
                const bool drop = dropout && dropped_in_tile(dropped, row, key0 + column);
                tile[p_offset + row * p_pitch + column] = drop ? 0.0f : weight;
            }
        }
        __syncthreads();
        add_values(o, at, tile);
        __syncthreads();
    }

#pragma unroll
    for (int a = 0; a < micro; ++a) {
        const float total = sum_of_row(l[a]);
        const int i = s.row0 + at.ty + side * a;
        if (i >= s.length) continue;
        const float inverse = (dropout ? p.dropout.scale : 1.0f) / total;
#pragma unroll
        for (int n = 0; n < columns; ++n) {
            const int column = (at.tx + side * (n / column_width)) * column_width + n % column_width;
            store_element<dtype>(p.out, s.out + i * p.out_row + column, o[a][n] * inverse);
        }
        if (lse && at.tx == 0) p.lse[s.lse + i] = m[a] * p.scale_log2 + log2f(total);
    }
}
