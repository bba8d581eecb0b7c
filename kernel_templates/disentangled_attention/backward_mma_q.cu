// Disentangled attention, backward: dQ, through mma.sync (sm_80 and newer).
//
//   dQ_i = sum_j dS_ij (k_j + [c2p] PK[slot(i-j)])
//
// A block owns 64 queries and walks over steps of block_k keys. Near tiles: dS comes from the workspace as an operand,
// once as it is and once moved from columns to distances (mma_shear.cuh). Far tiles: S and dP are computed again, with
// q_i + PQ_e in place of q_i, and the row sums of dS give the part of PK_e at the end.
//
// Dynamic shared memory, in this order:
//   K        [stages][block_k][head_dim]  16-byte chunks swizzled by row
//   other    [stages]: V [block_k][head_dim] of a far step, likewise; dS [block_k][64] of a near one, as in the
//   workspace PK       [ring_rows][head_dim]        when c2p, in the order of j-i
// At the end K is where gradients are staged.
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
#include "disentangled_attention/backward_mma_q_step.cuh"

// q_i + PQ_slot (slot < 0: q_i), and the statistics of this lane's two rows.
__device__ __forceinline__ void load_query(QWarp& w, const QLoader& load, const u16* q, int row, int end) {
    const BackwardParams& p = load.p;
    const int slot = p2c && end >= 0 ? slot_at(p, end == end_high ? p.band : -p.band) : -1;
    const u16* pq = static_cast<const u16*>(p.position_query) + load.rows.head * p.position_query_head;
#pragma unroll
    for (int step = 0; step < dim_steps; ++step) {
        query_operand(w.q[step], q, p.q_row, row, load.rows.length, step, w.c);
        if (slot < 0) continue;
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const u32 pair = load_word(pq + slot * p.position_query_row + step * 16 + (part >> 1) * 8 + 2 * w.c);
            u32& own = w.q[step][part];
            own = pack_operand(low_of<dtype>(own) + low_of<dtype>(pair), high_of<dtype>(own) + high_of<dtype>(pair));
        }
    }
    const RowStatistics* statistics = statistics_plane(p, end) + load.rows.statistics;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int i = row + 8 * half;
        w.row[half].lse = i < load.rows.length ? statistics[i].lse : __int_as_float(0x7f800000);
        w.row[half].delta = i < load.rows.length ? statistics[i].delta : 0.0f;
    }
}

// Waits for step t and starts the copy of a later one.
__device__ __forceinline__ void advance(const QLoader& load, int& issued, int steps) {
    copy_async_wait<stages - 2>();
    __syncthreads();
    if (issued < steps) load.step(issued);
    ++issued;
    copy_async_commit();
}

__device__ __forceinline__ void walk_near(QWarp& w, const QLoader& load, int begin, int end, int& issued, int steps) {
    ScatterCarry carry;
    carry.clear();
    w.ring = block_rows / 16 - 1 - w.warp;
    for (int t = begin; t < end; ++t) {
        advance(load, issued, steps);
#pragma unroll
        for (int group = 0; group < step_groups; ++group) near_group(w, load, t, group, carry);
    }
    if (c2p && begin < end) {
        u32 by_distance[4];
        const u32 none[4] = {0, 0, 0, 0};
        carry.next(by_distance, none, w.queries);
        add_distances(w, by_distance, load.shared);
    }
}

__device__ __forceinline__ void walk_far(QWarp& w, const QLoader& load, int begin, int end, int& issued, int steps) {
    for (int t = begin; t < end; ++t) {
        KeyBits bits;
        read_bits(bits, load, t);
        u32 dropped = 0;
        if constexpr (dropout) dropped = step_patch(w, load, t);
        advance(load, issued, steps);
        const bool special = !bits.all || (mask && w.any_hidden);
#pragma unroll 1
        for (int group = 0; group < step_groups; group += far_groups)
            far_step(w, load, t, group, special, bits, dropped);
    }
}

}  // namespace

// Grid: one block per 64 queries of every (batch, head), those of a head side by side.
extern "C" __global__ __launch_bounds__(threads, blocks_per_sm) void disentangled_attention_backward_mma_q(
    const __grid_constant__ BackwardParams p) {
    extern __shared__ __align__(128) unsigned char memory[];
    const int query_blocks = tiles_of(p.length), query_tile = int(blockIdx.x) % query_blocks;
    const int batch_head = int(blockIdx.x) / query_blocks;
    const HeadRows rows(p, batch_head / p.heads, batch_head % p.heads);
    const int tiles = tiles_of(rows.length), steps = tiles * tile_steps;
    if (query_tile >= tiles) return;
    const QLoader load(p, rows, shared_address(memory), query_tile, NearRange(p, query_tile, tiles));

    int issued = 0;
    for (; issued < stages - 1; ++issued) {
        if (issued < steps) load.step(issued);
        copy_async_commit();
    }
    const int tid = int(threadIdx.x);
    QWarp w(tid);
    const u16* q = static_cast<const u16*>(p.q) + rows.offset(p.q_batch, p.q_row, p.q_head);
    const u16* dout = static_cast<const u16*>(p.dout) + rows.offset(p.dout_batch, p.dout_row, p.dout_head);
    const int row0 = query_tile * block_rows + 16 * w.warp, row = row0 + order_of(w.g);  // row: of this lane
    bool hidden = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int i = row + 8 * half;
        w.hidden[half] = mask && i < rows.length && !p.mask[rows.batch * p.mask_batch + i];
        hidden = hidden || w.hidden[half];
    }
    w.any_hidden = mask && __any_sync(0xffffffffu, hidden);
    if (!has_bias || load.near_begin > 0 || load.near_end < steps)
#pragma unroll
        for (int step = 0; step < dim_steps; ++step)
            query_operand(w.dout[step], dout, p.dout_row, row, rows.length, step, w.c);

    float sums[2][2] = {};  // of the rows g and g + 8, by end
#pragma unroll 1
    for (int segment = 0; segment < (has_bias ? 3 : 1); ++segment) {
        if (segment == 1) {
            walk_near(w, load, load.near_begin, load.near_end, issued, steps);
            continue;
        }
        const int begin = segment == 0 ? 0 : load.near_end, end = has_bias && segment == 0 ? load.near_begin : steps;
        if (begin < end) load_query(w, load, q, row, !has_bias ? -1 : segment == 0 ? end_high : end_low);
        walk_far(w, load, begin, end, issued, steps);
        if (segment == 0) sums[end_high][0] = w.sums[0], sums[end_high][1] = w.sums[2];
        if (segment == 2) sums[end_low][0] = w.sums[0], sums[end_low][1] = w.sums[2];
        w.sums[0] = w.sums[1] = w.sums[2] = w.sums[3] = 0.0f;
    }

    copy_async_wait<0>();
    __syncthreads();
    if (c2p && has_far_tiles(p))
        finish_ends(
            p, w.dq, sums, load.pk, p.position_key_row, load.shared, tid,
            [&](u32(&a)[4], int step) { query_operand(a, q, p.q_row, row, rows.length, step, w.c); },
            end_vector(p, table_key, rows.tiles + query_tile, 0));
    u16* dq = static_cast<u16*>(p.dq) + rows.offset(p.dq_batch, p.dq_row, p.dq_head) + row0 * p.dq_row;
    store_gradient(w.dq, p.scale, load.shared + w.warp * 16 * row_bytes, w.lane, order_of(w.g), dq, p.dq_row,
                   rows.length - row0);
}
