// Disentangled attention, backward: dK, dV and the near tiles of dS, through mma.sync (sm_80 and newer).
//
//   dV_j = sum_i P_ij dO_i,   dK_j = sum_i dS_ij (q_i + [p2c] PQ[slot(i-j)])
//
// A block of `warps` warps owns 16 * warps keys and walks over steps of block_q queries; all products are transposed
// (rows = keys), so that P and dS go from accumulators to operands without leaving registers. A warp takes 16 queries
// at a time. Far tiles: q_i.PK_e is in the row statistics, k_j.PQ_e is the accumulators' initial value, and the row
// sums of dS give dK its part of PQ_e at the end. Near tiles: the rows of PK and PQ for the distances of a step lie in
// shared memory in the order of i-j; K.PQ^T and Q.PK^T are matrix products over 32 distances of which 16 queries x 16
// keys use a parallelogram, and mma_shear.cuh moves it to its columns: K.PQ^T as rows of keys, Q.PK^T as rows of
// queries, which are the columns of an operand, so that a product with a permutation matrix adds it.
//
// Dynamic shared memory, in this order:
//   Q, dO       [stages][block_q][head_dim] each, 16-byte chunks swizzled by row
//   PK          [ring_rows][head_dim]     when c2p
//   PQ          [ring_rows][head_dim]     when p2c
//   K, V        [block_keys][head_dim]    each, unless resident
//   statistics  [stages][block_q]         RowStatistics
//   dropped     [2][patches]              u32, when dropout
// At the end Q and dO are where gradients are staged.
#include "config"
#include "disentangled_attention/params.h"
#include "common/types.cuh"
#include "common/math.cuh"
#include "common/async_copy.cuh"
#include "common/mma.cuh"
#include "common/philox.h"
#include "disentangled_attention/dropout.h"

namespace {

using namespace config;

#include "disentangled_attention/backward_layout.cuh"
#include "disentangled_attention/backward_sequence.cuh"
#include "disentangled_attention/mma_rows.cuh"
#include "disentangled_attention/mma_block.cuh"
#include "disentangled_attention/mma_shear.cuh"
#include "disentangled_attention/mma_gradient.cuh"
#include "disentangled_attention/backward_mma_kv_load.cuh"
#include "disentangled_attention/backward_mma_kv_step.cuh"

// Steps [begin, end) of near tiles, or of far tiles of one end. `issued`: the next step to copy, of `steps`.
template <bool near>
__device__ __forceinline__ void walk(KvWarp& w, const KvLoader& load, int begin, int end, int& issued, int steps) {
    ScatterCarry carry;
    ScoreCarry scores;
    carry.clear();
    if constexpr (near) w.ring = block_keys / 16 - 1 - w.warp;
    for (int t = begin; t < end; ++t) {
        u32 hidden[hidden_words];
        read_hidden(hidden, load, t);
        if constexpr (dropout) compute_patches(load, t);
        copy_async_wait<stages - 2>();
        __syncthreads();
        if (issued < steps) load.step(issued);
        ++issued;
        copy_async_commit();
        bool special = w.special;
#pragma unroll
        for (int word = 0; word < hidden_words; ++word) special = special || (mask && hidden[word]);
        u16* near_rows = nullptr;
        if constexpr (near) {
            if (p2c && t == begin) first_scores(w, scores, load.shared);
            if constexpr (c2p && strip_kept)
                if (t == begin) first_strip(w, load.shared);
            near_rows = near_tile(load.p, load.rows.tiles, t / tile_steps, load.key0 / tile_rows) +
                        (2 * w.warp * 8 + t % tile_steps * (block_q / 8)) * 64 + w.g * 8 + 2 * w.c;
        }
#pragma unroll 1
        for (int group = 0; group < step_groups; group += near ? 1 : far_groups)
            take_groups<near>(w, load, t, group, special, hidden, near_rows, carry, scores);
    }
    if constexpr (near && p2c) {  // the last 16 distances; their rows of PQ are still in the ring
        if (begin < end) {
            u32 by_distance[4];
            const u32 none[4] = {0, 0, 0, 0};
            carry.next(by_distance, none, w.keys);
            add_distances(w, by_distance, load.shared);
        }
    }
}

// Operands of this warp's 16 keys from global memory; zeros beyond the end.
__device__ __forceinline__ void load_operands(u32 (&a)[resident ? dim_steps : 1][4], const u16* tensor, s64 row_stride,
                                              int row, int length, int c) {
    if constexpr (resident) {
#pragma unroll
        for (int step = 0; step < dim_steps; ++step)
#pragma unroll
            for (int part = 0; part < 4; ++part) {
                const int j = row + 8 * (part & 1);
                a[step][part] =
                    j < length ? load_word(tensor + j * row_stride + step * 16 + (part >> 1) * 8 + 2 * c) : 0u;
            }
    }
}

}  // namespace

// Grid: one block per 64 keys of every (batch, head), those of a head side by side.
extern "C" __global__ __launch_bounds__(threads, blocks_per_sm) void disentangled_attention_backward_mma_kv(
    const __grid_constant__ BackwardParams p) {
    extern __shared__ __align__(128) unsigned char memory[];
    const int key_blocks = tiles_of(p.length), key_tile = int(blockIdx.x) % key_blocks;
    const int batch_head = int(blockIdx.x) / key_blocks;
    const HeadRows rows(p, batch_head / p.heads, batch_head % p.heads);
    const int tiles = tiles_of(rows.length), steps = tiles * tile_steps;
    if (key_tile >= tiles) return;
    const int tid = int(threadIdx.x), key0 = key_tile * block_keys;
    const KvLoader load(p, rows, shared_address(memory), key0, NearRange(p, key_tile, tiles));

    KvWarp w(tid);
    const u16* k = static_cast<const u16*>(p.k) + rows.offset(p.k_batch, p.k_row, p.k_head);
    const u16* v = static_cast<const u16*>(p.v) + rows.offset(p.v_batch, p.v_row, p.v_head);
    if constexpr (!resident) {
        load.copy_rows<block_keys>(k, p.k_row, key0, load.shared + k_offset);
        load.copy_rows<block_keys>(v, p.v_row, key0, load.shared + v_offset);
        copy_async_commit();
    }
    int issued = 0;
    for (; issued < stages - 1; ++issued) {
        if (issued < steps) load.step(issued);
        copy_async_commit();
    }
    const int row = key0 + 16 * w.warp;  // first key of this warp
    load_operands(w.k, k, p.k_row, row + w.g, rows.length, w.c);
    load_operands(w.v, v, p.v_row, row + w.g, rows.length, w.c);
    bool plain = true;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int j = row + 8 * half + w.g;
        w.in_range[half] = w.keep[half] = j < rows.length;
        if (mask && w.in_range[half]) w.keep[half] = p.mask[rows.batch * p.mask_batch + j];
        plain = plain && w.keep[half];
    }
    w.special = !__all_sync(0xffffffffu, plain);
    if constexpr (!resident) {
        copy_async_wait<stages - 1>();
        __syncthreads();
    }

    float sums[2][2] = {};  // of the rows g and g + 8, by end
#pragma unroll 1
    for (int segment = 0; segment < (has_bias ? 3 : 1); ++segment) {
        if (segment == 1) {
            walk<true>(w, load, load.near_begin, load.near_end, issued, steps);
            continue;
        }
        const int begin = segment == 0 ? 0 : load.near_end, end = has_bias && segment == 0 ? load.near_begin : steps;
        if (p2c && begin < end) key_constants(w, load, slot_at(p, segment == 0 ? -p.band : p.band));
        walk<false>(w, load, begin, end, issued, steps);
        if (segment == 0) sums[end_low][0] = w.sums[0], sums[end_low][1] = w.sums[2];
        if (segment == 2) sums[end_high][0] = w.sums[0], sums[end_high][1] = w.sums[2];
        w.sums[0] = w.sums[1] = w.sums[2] = w.sums[3] = 0.0f;
    }

    copy_async_wait<0>();
    __syncthreads();
    if (p2c && has_far_tiles(p))
        finish_ends(
            p, w.dk, sums, load.pq, p.position_query_row, load.shared, tid,
            [&](u32(&a)[4], int step) { w.key_operand(a, load.shared, step); },
            end_vector(p, table_query, rows.tiles + key_tile, 0));
    u16* dk = static_cast<u16*>(p.dk) + rows.offset(p.dk_batch, p.dk_row, p.dk_head) + row * p.dk_row;
    u16* dv = static_cast<u16*>(p.dv) + rows.offset(p.dv_batch, p.dv_row, p.dv_head) + row * p.dv_row;
    const u32 stage = load.shared + w.warp * 16 * row_bytes;
    store_gradient(w.dk, p.scale, stage, w.lane, w.g, dk, p.dk_row, rows.length - row);
    store_gradient(w.dv, dropout ? p.dropout.scale : 1.0f, stage, w.lane, w.g, dv, p.dv_row, rows.length - row);
}
