// Before the other sm_90 backward kernels: row statistics (backward_layout.cuh), the position tables by distance, and
// the records of 64-row tiles or the shifted queries of far tiles (sm90_backward.cuh).
//
//   Delta_i = sum_d O_id dO_id; planes for far tiles: lse_i - scale_log2 * q_i.PK_e, the same as lse in hidden rows
//
// Grid: heads * chunks blocks of tables, none without position terms, then one for each 64-row tile of each sequence
// and head.
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

constexpr int warpgroups = 1;

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

__device__ __forceinline__ float dot(const Words4& a, const Words4& b) {
    const u32 x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        sum += low_of<dtype>(x[i]) * low_of<dtype>(y[i]) + high_of<dtype>(x[i]) * high_of<dtype>(y[i]);
    return sum;
}

// Of the threads of a row, in each of them.
__device__ __forceinline__ float row_sum(float value) {
#pragma unroll
    for (int lanes = 1; lanes < row_chunks; lanes *= 2) value += __shfl_xor_sync(nothing, value, lanes);
    return value;
}

__device__ __forceinline__ void store16(unsigned char* to, const Words4& words) {
    *reinterpret_cast<Words4*>(to) = words;
}

// A tensor's rows of a 64-row tile, at this thread's 16 bytes.
struct Rows {
    const u16* from;
    s64 stride;

    __device__ __forceinline__ Rows(const Block& block, const void* tensor, s64 batch, s64 row, s64 head, int chunk)
        : from(block.rows(tensor, batch, row, head) + block.tile * block_rows * row + chunk * 8), stride(row) {}
    __device__ __forceinline__ Words4 load(int row, bool exists) const {
        return exists ? *reinterpret_cast<const Words4*>(from + row * stride) : Words4{0, 0, 0, 0};
    }
};

// A 64-row tile. row_chunks threads share a row.
struct Tile {
    const BackwardParams& p;
    const Block& block;
    int left, chunk;
    bool far;           // there are far tiles
    Words4 key[2];      // PK_end
    Words4 query[2];    // PQ_end
    unsigned char* to;  // its record

    __device__ __forceinline__ Tile(const BackwardParams& params, const Block& of)
        : p(params),
          block(of),
          left(of.length - of.tile * block_rows),
          chunk(int(threadIdx.x) % row_chunks),
          far(has_bias && has_far_tiles(params)),
          to(record(params, of.base + of.tile)) {
        if (!far) return;
#pragma unroll
        for (int end = 0; end < 2; ++end) {
            const s64 slot = clamped_slot(p, end == end_high ? p.band : -p.band);
            if constexpr (c2p) key[end] = end_row(p.position_key, slot * p.position_key_row, p.position_key_head);
            if constexpr (p2c)
                query[end] = end_row(p.position_query, slot * p.position_query_row, p.position_query_head);
        }
    }
    __device__ __forceinline__ Words4 end_row(const void* table, s64 row, s64 head) const {
        return *reinterpret_cast<const Words4*>(static_cast<const u16*>(table) + row + block.head * head + chunk * 8);
    }

    // The statistics of a row, into plane `plane` and the record; in one of the row's threads.
    __device__ __forceinline__ void store_values(int plane, int row, float lse, float delta) const {
        if (row < left)
            region<RowStatistics>(p, region_statistics)[plane * statistics_rows(p) + block.row0 +
                                                        block.tile * block_rows + row] = {lse, delta};
        if constexpr (tiled) store_statistics(to + record_statistics + plane * statistics_stride, row, lse, delta);
    }

    // The A operand of a row's pair: words 2c, 2c + 1 of 8 columns to four threads.
    __device__ __forceinline__ void store_paired(int row, const Words4& words) const {
        unsigned char* at = to + record_paired + ((row >> 4) * dim_steps + (chunk >> 1)) * 512 +
                            (row >> 1 & 7) * 64 + 8 * (chunk & 1) + 4 * (row & 1);
        const u32 part[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int c = 0; c < 4; ++c) *reinterpret_cast<u32*>(at + 16 * c) = part[c];
    }

    __device__ __forceinline__ void store_shifted(int row, const Words4& words) const {
#pragma unroll
        for (int end = 0; end < 2; ++end) {
            const Words4 sum = row < left ? sum_of(words, query[end]) : words;
            if constexpr (tiled)
                store16(to + record_shifted + end * operand_bytes +
                            chunk_address<block_rows>(0, run_position(row), chunk),
                        sum);
            else if (row < left)
                store16(reinterpret_cast<unsigned char*>(shifted_tile(p, end, block.base + block.tile) +
                                                         row * head_dim + chunk * 8),
                        sum);
        }
    }

    __device__ __forceinline__ void run() const {
        const Rows q(block, p.q, p.q_batch, p.q_row, p.q_head, chunk);
        const Rows k(block, p.k, p.k_batch, p.k_row, p.k_head, chunk);
        const Rows v(block, p.v, p.v_batch, p.v_row, p.v_head, chunk);
        const Rows out(block, p.out, p.out_batch, p.out_row, p.out_head, chunk);
        const Rows dout(block, p.dout, p.dout_batch, p.dout_row, p.dout_head, chunk);
        const s64 first = block.row0 + block.tile * block_rows;
#pragma unroll 2
        for (int i = 0; i < block_rows * row_chunks / threads; ++i) {
            const int row = (int(threadIdx.x) + i * threads) / row_chunks;
            const bool exists = row < left;
            Words4 words = {0, 0, 0, 0};
            if (tiled || far) words = q.load(row, exists);
            const Words4 gradient = dout.load(row, exists);
            const float delta = row_sum(dot(out.load(row, exists), gradient));
            const float lse = exists ? p.lse[first + row] : __int_as_float(0x7f800000);  // beyond the end P = 0
            if (chunk == 0) store_values(0, row, lse, delta);
            if (c2p && far) {
                const bool hidden =
                    mask && exists && !p.mask[block.batch * p.mask_batch + block.tile * block_rows + row];
                const float high = row_sum(dot(words, key[end_high])), low = row_sum(dot(words, key[end_low]));
                if (chunk == 1) store_values(1 + end_high, row, hidden ? lse : lse - p.scale_log2 * high, delta);
                if (chunk == 2) store_values(1 + end_low, row, hidden ? lse : lse - p.scale_log2 * low, delta);
            }
            if (p2c && far) store_shifted(row, words);
            if constexpr (tiled) {
                unsigned char* runs = to + chunk_address<block_rows>(0, run_position(row), chunk);
                store16(runs + record_q, words);
                store16(runs + record_dout, gradient);
                if constexpr (c2p) store_paired(row, words);
            }
            if constexpr (tiled_keys) {
                unsigned char* natural = to + record_keys(p) + chunk_address<block_rows>(0, row, chunk);
                store16(natural, k.load(row, exists));
                store16(natural + operand_bytes, v.load(row, exists));
            }
        }
        if constexpr (tiled) store_hidden();
    }

    // Masked rows and dead keys, in bits.
    __device__ __forceinline__ void store_hidden() const {
        const int row = int(threadIdx.x);
        if (row >= block_rows) return;
        const bool outside = row >= left;
        bool hidden = false;
        if constexpr (mask)
            if (!outside) hidden = !p.mask[block.batch * p.mask_batch + block.tile * block_rows + row];
        const u32 hidden_bits = __ballot_sync(nothing, hidden), dead_bits = __ballot_sync(nothing, hidden || outside);
        if (row % 32 != 0) return;
        for (int plane = 0; plane < (c2p && far ? 3 : 1); ++plane) {
            u32* bits = reinterpret_cast<u32*>(to + record_statistics + plane * statistics_stride + statistics_bytes);
            bits[row / 32] = hidden_bits, bits[2 + row / 32] = dead_bits;
        }
    }
};

}  // namespace

extern "C" __global__ __launch_bounds__(threads) void disentangled_attention_backward_sm90_prepare(
    const __grid_constant__ BackwardParams p) {
    const int chunks = has_bias ? last_chunk(p.band) - first_chunk(p.band) + 1 : 0, index = int(blockIdx.x);
    if (index < p.heads * chunks) {
        expand_chunk(p, index / chunks, index % chunks);
    } else {
        const Block block(p, index - p.heads * chunks);
        if (block.exists) Tile(p, block).run();
    }
}
