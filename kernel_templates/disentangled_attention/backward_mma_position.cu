// Disentangled attention, backward: sums of dS_ij q_i and dS_ij k_j by distance i - j over the near tiles of one
// diagonal, through mma.sync (sm_80 and newer).
//
// A block owns one (head, diagonal), one part of the sum over batch and tiles, and dim_part of the head_dim columns.
// Its first four warps sum for PK, with rows = queries and distances in the order of j - i; its last four for PQ, with
// rows = keys and distances in the order of i - j. Each warp owns two of the eight blocks of 16 distances, chosen such
// that all warps have five products to do per tile. dS is moved from columns to distances (mma_shear.cuh) and
// transposed.
//
// Dynamic shared memory: [stages] of
//   dS  [64][64]        as in the workspace
//   Q   [64][dim_part]  16-byte chunks swizzled by row
//   K   [64][dim_part]
#include "config"
#include "disentangled_attention/params.h"
#include "common/types.cuh"
#include "common/math.cuh"
#include "common/async_copy.cuh"
#include "common/mma.cuh"

namespace {

using namespace config;

#include "disentangled_attention/backward_layout.cuh"
#include "disentangled_attention/backward_sequence.cuh"
#include "disentangled_attention/mma_rows.cuh"
#include "disentangled_attention/mma_shear.cuh"

constexpr int threads = 256;
constexpr int parts = head_dim / dim_part;
constexpr int part_steps = dim_part / 16;
constexpr int rows_bytes = tile_rows * row_bytes;
constexpr int q_offset = tile_bytes_16;
constexpr int k_offset = q_offset + rows_bytes;
constexpr int stage_bytes = k_offset + rows_bytes;

static_assert(stages * stage_bytes == shared_bytes, "the launch asks for another size of shared memory");
static_assert(head_dim % dim_part == 0 && dim_part % 16 == 0, "columns of a block");
static_assert(stages >= 2 && stages <= 4, "depth of the tile ring");

// The tiles of a diagonal, numbered over batch and position.
struct Tiles {
    const BackwardParams& p;
    int head, diagonal, per_sequence;  // diagonal: query tile - key tile

    // Whether number n is a tile of this diagonal; fills its sequence and its query tile.
    __device__ __forceinline__ bool find(int n, int& batch, int& query_tile) const {
        batch = n / per_sequence;
        query_tile = n % per_sequence;
        const int length = packed ? p.cu_seqlens[batch + 1] - p.cu_seqlens[batch] : p.length;
        const int key_tile = query_tile - diagonal;
        return key_tile >= 0 && max(query_tile, key_tile) < tiles_of(length);
    }
};

__device__ __forceinline__ void copy_tile(const BackwardParams& p, const HeadRows& rows, int query_tile, int key_tile,
                                          u32 to) {
    const int tid = int(threadIdx.x), row = tid / row_chunks, chunk = tid % row_chunks;
    const u16* from = near_tile(p, rows.tiles, query_tile, key_tile);
#pragma unroll
    for (int i = 0; i < tile_bytes_16 / 16; i += threads) copy_async16(to + (i + tid) * 16, from + (i + tid) * 8, true);
    const u16* q = static_cast<const u16*>(p.q) + rows.offset(p.q_batch, p.q_row, p.q_head) + chunk * 8;
    const u16* k = static_cast<const u16*>(p.k) + rows.offset(p.k_batch, p.k_row, p.k_head) + chunk * 8;
    constexpr int row_step = threads / row_chunks;
#pragma unroll
    for (int r = 0; r < tile_rows; r += row_step) {
        const int i = query_tile * tile_rows + r + row, j = key_tile * tile_rows + r + row;
        const u32 at = to + swizzled(r + row, chunk);
        if (c2p) copy_chunk(at + q_offset, i < rows.length ? q + i * p.q_row : q, i < rows.length);
        if (p2c) copy_chunk(at + k_offset, j < rows.length ? k + j * p.k_row : k, j < rows.length);
    }
}

struct PositionWarp {
    int lane, g, c, table, column0;
    int block[2];         // of 16 distances
    Shear shear;          // rows in accumulator order
    BlockOffsets values;  // rows = k, in accumulator order
    float sum[2][dim_part / 8][4];

    __device__ __forceinline__ PositionWarp(int tid, int column)
        : lane(tid % 32),
          g(lane >> 2),
          c(lane & 3),
          table(tid / 128),
          column0(column),
          shear(lane, order_of(g)),
          values(((lane >> 3) & 1) * 8 + order_of(lane & 7), lane >> 4) {
        const int warp = tid / 32 % 4;
        block[0] = warp == 0 ? 0 : warp == 3 ? 4 : warp;
        block[1] = warp == 0 ? 3 : warp == 3 ? 7 : warp + 4;
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int n = 0; n < dim_part / 8; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[i][n][e] = 0.0f;
    }
};

// dS of 16 rows (queries for PK, keys for PQ) and 16 columns (the others), as an operand; zeros outside the tile.
template <int table>
__device__ __forceinline__ void load_block(u32 (&a)[4], const PositionWarp& w, u32 tile, int rows, int columns) {
    if (columns < 0 || columns > 3) {
        a[0] = a[1] = a[2] = a[3] = 0;
        return;
    }
    // Matrices: (rows 0-7, columns 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15).
    const int r = 2 * rows + (w.lane >> 3 & 1), c = 2 * columns + (w.lane >> 4);
    const u32 within = order_of(w.lane & 7) * 16;
    if constexpr (table == table_key)
        load_matrices_transposed(a, tile + (c * 8 + r) * 128 + within);
    else
        load_matrices(a, tile + (r * 8 + c) * 128 + within);
}

// One tile: for every block of 16 distances and every 16 rows that reach it, sum += (dS by distance)^T * rows.
template <int table>
__device__ __forceinline__ void add_tile(PositionWarp& w, u32 tile) {
    const u32 values = tile + (table == table_key ? q_offset : k_offset);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll 1
        for (int rows = 0; rows < 4; ++rows) {
            const int columns = w.block[i] + rows - 3;  // the later of the two blocks of columns
            if (columns < 0 || columns > 4) continue;
            u32 before[4], here[4], by_distance[4], a[4];
            load_block<table>(before, w, tile, rows, columns - 1);
            load_block<table>(here, w, tile, rows, columns);
            ScatterCarry carry;
            carry.top[0] = before[0], carry.top[1] = before[2], carry.bottom = before[3];
            carry.next(by_distance, here, w.shear);
            // Transposed: rows = distances.
            a[0] = transpose_matrix(by_distance[0]), a[1] = transpose_matrix(by_distance[2]);
            a[2] = transpose_matrix(by_distance[1]), a[3] = transpose_matrix(by_distance[3]);
#pragma unroll
            for (int n = 0; n < part_steps; ++n) {
                u32 b[4];
                load_matrices_transposed(b, w.values.address(values + rows * 16 * row_bytes, w.column0 / 16 + n));
                multiply<dtype>(w.sum[i][2 * n], a, b[0], b[1]);
                multiply<dtype>(w.sum[i][2 * n + 1], a, b[2], b[3]);
            }
        }
}

}  // namespace

// Grid: splits() * heads * diagonals() * (head_dim / dim_part) blocks.
extern "C" __global__ __launch_bounds__(threads, blocks_per_sm) void disentangled_attention_backward_mma_position(
    const __grid_constant__ BackwardParams p) {
    extern __shared__ __align__(128) unsigned char memory[];
    const u32 shared = shared_address(memory);
    const int tid = int(threadIdx.x), part = int(blockIdx.x) % parts;
    int rest = int(blockIdx.x) / parts;
    const int diagonal = rest % diagonals(p);
    rest /= diagonals(p);
    const int head = rest % p.heads, split = rest / p.heads;
    const Tiles tiles{p, head, diagonal - near_width(p), tiles_of(p.length)};
    const s64 count = s64(p.batch) * tiles.per_sequence;
    const int first = int(count * split / splits(p)), last = int(count * (split + 1) / splits(p));

    PositionWarp w(tid, part * dim_part);
    // `next`: the first number not yet looked at for copying; a stage is copied for every tile found.
    int next = first, copied = 0, taken = 0;
    auto copy_next = [&]() {
        int batch, query_tile;
        while (next < last && !tiles.find(next, batch, query_tile)) ++next;
        if (next < last) {
            copy_tile(p, HeadRows(p, batch, head), query_tile, query_tile - tiles.diagonal,
                      shared + copied % stages * stage_bytes);
            ++copied, ++next;
        }
        copy_async_commit();
    };
#pragma unroll 1
    for (int i = 0; i < stages - 1; ++i) copy_next();
    while (taken < copied) {
        copy_async_wait<stages - 2>();
        __syncthreads();
        copy_next();
        const u32 tile = shared + taken % stages * stage_bytes;
        if (w.table == table_key) {
            if constexpr (c2p) add_tile<table_key>(w, tile);
        } else {
            if constexpr (p2c) add_tile<table_query>(w, tile);
        }
        ++taken;
    }
    if (w.table == table_key ? !c2p : !p2c) return;
    float* to = distance_sums(p, split, head, diagonal, w.table) + w.column0 + 2 * w.c;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int t = 16 * w.block[i] + 8 * half + order_of(w.g), x = w.table == table_key ? 126 - t : t;
            if (t == 127) continue;
#pragma unroll
            for (int n = 0; n < dim_part / 8; ++n) {
                const RowStatistics pair{w.sum[i][n][2 * half], w.sum[i][n][2 * half + 1]};
                *reinterpret_cast<RowStatistics*>(to + x * head_dim + 8 * n) = pair;
            }
        }
}
