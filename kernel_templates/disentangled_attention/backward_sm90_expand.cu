// Before the sm_90 backward kernels, after prepare: the position tables by distance, and the records of 64-row tiles or
// the shifted queries of far tiles (sm90_backward.cuh). Grid: heads * chunks blocks of tables, none without position
// terms, then one for each 64-row tile of each sequence and head; those only when tiled, or with far tiles and p2c.
#include "config"
#include "disentangled_attention/params.h"
#include "common/types.cuh"
#include "common/math.cuh"
#include "common/async_copy.cuh"
#include "common/shared_memory.cuh"
#include "common/mma.cuh"
#include "common/bulk_copy.cuh"
#include "common/mbarrier.cuh"
#include "common/wgmma.cuh"

namespace {

using namespace config;

#include "disentangled_attention/backward_layout.cuh"
#include "disentangled_attention/sm90_tiles.cuh"
#include "disentangled_attention/sm90_shift.cuh"
#include "disentangled_attention/sm90_backward.cuh"

static_assert(aligned, "rows must be 16-byte aligned");

__device__ __forceinline__ int clamped_slot(const BackwardParams& p, int delta) {
    return p.slots[min(max(delta, -p.band), p.band) + p.band];
}

__device__ __forceinline__ void expand_chunk(const BackwardParams& p, int head, int number) {
    const int e = number + first_chunk(p.band);
    unsigned char* to = const_cast<unsigned char*>(PositionTables(p, head).chunk(e, 0));
    for (int i = int(threadIdx.x); i < expanded_tables * block_rows * row_chunks; i += threads) {
        const int table = i / (block_rows * row_chunks), row = i / row_chunks % block_rows, chunk = i % row_chunks;
        const bool query = table == expanded_query;
        if (query ? !p2c : !c2p) continue;
        const int x = 16 * (row >> 1 & 3) + 2 * (row >> 3) + (row & 1);
        const s64 slot = clamped_slot(p, query ? 64 * e + x : 64 * e + 63 - x);
        const u16* from =
            query
                ? static_cast<const u16*>(p.position_query) + slot * p.position_query_row + head * p.position_query_head
                : static_cast<const u16*>(p.position_key) + slot * p.position_key_row + head * p.position_key_head;
        *reinterpret_cast<Words4*>(to + table * operand_bytes + chunk_address<block_rows>(0, row, chunk)) =
            *reinterpret_cast<const Words4*>(from + 8 * chunk);
    }
}

__device__ __forceinline__ u32 sum_of(u32 a, u32 b) {
    return pack2<dtype>(low_of<dtype>(a) + low_of<dtype>(b), high_of<dtype>(a) + high_of<dtype>(b));
}

__device__ __forceinline__ Words4 sum_of(Words4 a, Words4 b) {
    return {sum_of(a.x, b.x), sum_of(a.y, b.y), sum_of(a.z, b.z), sum_of(a.w, b.w)};
}

// A 64-row tile.
struct Tile {
    const BackwardParams& p;
    Block block;
    int row0, left;
    const u16 *q, *shift[2];

    __device__ __forceinline__ Tile(const BackwardParams& params, int index)
        : p(params), block(params, index), row0(block.tile * block_rows), left(block.length - row0) {
        q = block.rows(p.q, p.q_batch, p.q_row, p.q_head) + row0 * p.q_row;
        for (int end = 0; end < 2; ++end)
            shift[end] = static_cast<const u16*>(p.position_query) + block.head * p.position_query_head +
                         clamped_slot(p, end == end_high ? p.band : -p.band) * p.position_query_row;
    }

    __device__ __forceinline__ Words4 load(const u16* rows, s64 stride, int row, int chunk) const {
        if (row >= left) return {0, 0, 0, 0};
        return *reinterpret_cast<const Words4*>(rows + row * stride + chunk * 8);
    }

    __device__ __forceinline__ void shift_queries() const {
        for (int i = int(threadIdx.x); i < block_rows * row_chunks; i += threads) {
            const int row = i / row_chunks, chunk = i % row_chunks;
            if (row >= left) continue;
            const Words4 words = load(q, p.q_row, row, chunk);
            for (int end = 0; end < 2; ++end)
                *reinterpret_cast<Words4*>(shifted_tile(p, end, block.base + block.tile) + row * head_dim + chunk * 8) =
                    sum_of(words, *reinterpret_cast<const Words4*>(shift[end] + chunk * 8));
        }
    }

    __device__ __forceinline__ void write_record() const {
        unsigned char* to = record(p, block.base + block.tile);
        const u16* k = block.rows(p.k, p.k_batch, p.k_row, p.k_head) + row0 * p.k_row;
        const u16* v = block.rows(p.v, p.v_batch, p.v_row, p.v_head) + row0 * p.v_row;
        const u16* dout = block.rows(p.dout, p.dout_batch, p.dout_row, p.dout_head) + row0 * p.dout_row;
        const bool far = p2c && has_far_tiles(p);
        const int thread = int(threadIdx.x), chunk = thread % row_chunks;
#pragma unroll
        for (int i = 0; i < block_rows * row_chunks / threads; ++i) {
            const int row = (thread + i * threads) / row_chunks;
            const Words4 words = load(q, p.q_row, row, chunk);
            unsigned char* natural = to + chunk_address<block_rows>(0, row, chunk);
            unsigned char* runs = to + chunk_address<block_rows>(0, run_position(row), chunk);
            *reinterpret_cast<Words4*>(runs + record_q) = words;
            *reinterpret_cast<Words4*>(runs + record_dout) = load(dout, p.dout_row, row, chunk);
            *reinterpret_cast<Words4*>(natural + record_k) = load(k, p.k_row, row, chunk);
            *reinterpret_cast<Words4*>(natural + record_v) = load(v, p.v_row, row, chunk);
            for (int end = 0; far && end < 2; ++end)
                *reinterpret_cast<Words4*>(runs + record_shifted + end * operand_bytes) =
                    row < left ? sum_of(words, *reinterpret_cast<const Words4*>(shift[end] + chunk * 8)) : words;
        }
        if constexpr (c2p) {
            const Lane lane(thread);
            for (int step = 0; step < dim_steps; ++step) {
                u32 part[4];
                for (int i = 0; i < 4; ++i) {
                    const int row = 16 * lane.warp + 2 * lane.g + (i & 1);
                    part[i] = 0;
                    if (row < left)
                        part[i] =
                            *reinterpret_cast<const u32*>(q + row * p.q_row + 16 * step + 8 * (i >> 1) + 2 * lane.c);
                }
                reinterpret_cast<Words4*>(to + record_paired)[(lane.warp * dim_steps + step) * 32 + lane.lane] = {
                    part[0], part[1], part[2], part[3]};
            }
        }
        if (thread >= block_rows) return;
        const bool outside = thread >= left;
        bool hidden = false;
        if constexpr (mask)
            if (!outside) hidden = !p.mask[block.batch * p.mask_batch + row0 + thread];
        const u32 hidden_bits = __ballot_sync(nothing, hidden), dead_bits = __ballot_sync(nothing, hidden || outside);
        const bool planes = c2p && has_far_tiles(p);
        for (int plane = 0; plane < (planes ? 3 : 1); ++plane) {
            unsigned char* values = to + record_statistics + plane * statistics_stride;
            float2 statistics = {__int_as_float(0x7f800000), 0.0f};  // beyond the end P = 0
            if (!outside)
                statistics =
                    *reinterpret_cast<const float2*>(statistics_plane(p, plane - 1) + block.row0 + row0 + thread);
            store_statistics(values, thread, statistics.x, statistics.y);
            if (thread % 32 == 0) {
                u32* bits = reinterpret_cast<u32*>(values + statistics_bytes);
                bits[thread / 32] = hidden_bits, bits[2 + thread / 32] = dead_bits;
            }
        }
    }
};

}  // namespace

extern "C" __global__ __launch_bounds__(threads) void disentangled_attention_backward_sm90_expand(
    const __grid_constant__ BackwardParams p) {
    const int chunks = has_bias ? last_chunk(p.band) - first_chunk(p.band) + 1 : 0, index = int(blockIdx.x);
    if (index < p.heads * chunks) {
        expand_chunk(p, index / chunks, index % chunks);
    } else {
        const Tile tile(p, index - p.heads * chunks);
        if (!tile.block.exists) return;
        if constexpr (tiled)
            tile.write_record();
        else if constexpr (p2c)
            tile.shift_queries();
    }
}
