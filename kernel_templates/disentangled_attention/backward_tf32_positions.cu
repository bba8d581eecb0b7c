// Gradients of the position tables from near tiles, by distance: products in tf32, sums in fp32. As in
// backward_simt_positions.cu, whose sums these are, a block walks along one diagonal of tiles, through every batch, so
// that its strips of PK and PQ never change; `splits` blocks take turns with the tiles.
//
//   dPK[delta] += dS_ij q_i,   dPQ[delta] += dS_ij k_j,   delta = i - j
//
// Distance block * diagonal - (block - 1) + r has row r. Four rows of warps share the tile's queries, and the two warps
// of a row its keys. Then dS lies in shared memory, the first column of warps sums PK and the second PQ, and a warp
// holds rows rho and rho + block of the sums for 16 values of rho: of the two exactly one meets a given query row i,
// rho while i <= rho (of PQ a given key row j, while block - 1 - j <= rho).
//
// Dynamic shared memory: the tiles (mma_tiles.cuh; stages hold the two halves of the keys), with
//   dS       [block][pairs_pitch]               where the shift buffers are
// then
//   q, dO    [block][head_dim] each, likewise, in their own order
//   dropped  [block * 2] words                  when dropout
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

constexpr int column_warps = 2;

#include "disentangled_attention/tf32_backward.cuh"

static_assert(has_bias && !own_keys, "queries are the block's own rows");
static_assert(block == 64 && block_n == 32 && stages == 2 && warps == 8,
              "two halves of 64 keys, each met by four warps");
static_assert(ring_rows == 2 * block, "the strips of a diagonal fit the ring");

// 2 * (pitch + 1) is 8 mod 32: what a warp reads along a distance touches every bank once.
constexpr int pairs_pitch = block + 3;
constexpr int q_offset = tiles_end;
constexpr int dout_offset = q_offset + block * row_bytes;
constexpr int dropped_offset = dout_offset + block * row_bytes;
constexpr int all_bytes = dropped_offset + (dropout ? dropped_words<block> * 4 : 0);

static_assert(all_bytes == shared_bytes, "the launch asks for another size of shared memory");
static_assert(block * pairs_pitch * 4 <= warps * shift_bytes, "dS must fit where the shift buffers are");

// A fragments of 16 own rows in shared memory, in their own order.
struct SharedRows {
    const Lane& lane;
    u32 rows;

    __device__ __forceinline__ void load(u32 (&a)[4], int, int step) const {
        load_operand(a, lane.a_address(rows, step));
    }
};

using Sums = Sum[2];  // rows rho and rho + block, rho = 16 * (row of warps) + g and + 8

enum : int { table_key, table_query };

// Eight rows of q or k, the ones of step `step`; low and high tell which sums they meet.
template <int table, bool low, bool high>
__device__ __forceinline__ void add_step(Sums& sum, const Lane& lane, const ValueLane<head_dim>& values, u32 pairs,
                                         u32 rows, int rho0, int step) {
    u32 a[2][4];
#pragma unroll
    for (int part = 0; part < 4; ++part) {
        const int rho = rho0 + lane.g + 8 * (part & 1), odd = part >> 1;
        int i, j, turn;  // the pair of this distance, and whether it comes before rho + block
        if constexpr (table == table_key) {
            i = 8 * step + 2 * lane.c + odd, j = (i - rho - 1) & (block - 1), turn = i;
        } else {
            j = 8 * step + lane.c + 4 * odd, i = (rho + j + 1) & (block - 1), turn = block - 1 - j;
        }
        const u32 value = round_tf32(__float_as_uint(load_shared(pairs + 4 * (i * pairs_pitch + j))));
        a[0][part] = !high || turn <= rho ? value : 0u;
        a[1][part] = !low || turn > rho ? value : 0u;
    }
    values.add<(low ? 0 : 1), (high ? 2 : 1)>(sum, a, rows + step * 8 * row_bytes);
}

// All rows of the tile, in the order of i, or of -j.
template <int table>
__device__ __forceinline__ void add_tile(Sums& sum, const Lane& lane, const ValueLane<head_dim>& values, u32 pairs,
                                         u32 rows, int warp_row) {
    auto step_of = [](int n) { return table == table_key ? n : block / 8 - 1 - n; };
    const int turn = 2 * warp_row, rho0 = 16 * warp_row;
#pragma unroll 1
    for (int n = 0; n < turn; ++n)
        add_step<table, true, false>(sum, lane, values, pairs, rows, rho0, step_of(n));
#pragma unroll 1
    for (int n = turn; n < turn + 2; ++n)
        add_step<table, true, true>(sum, lane, values, pairs, rows, rho0, step_of(n));
#pragma unroll 1
    for (int n = turn + 2; n < block / 8; ++n)
        add_step<table, false, true>(sum, lane, values, pairs, rows, rho0, step_of(n));
}

}  // namespace

// Grid: diagonals * splits * heads, the longest diagonals first.
extern "C" __global__ __launch_bounds__(threads, 1) void disentangled_attention_backward_tf32_positions(
    const __grid_constant__ BackwardParams p) {
    extern __shared__ __align__(128) unsigned char memory[];
    const u32 shared = shared_address(memory);
    u32* const dropped = reinterpret_cast<u32*>(memory + dropped_offset);
    const int warp = int(threadIdx.x) / 32, warp_row = warp / 2, half_tile = warp % 2;
    const Lane lane(int(threadIdx.x) % 32);
    const ValueLane<head_dim> values(lane);

    const int splits = int(p.regions[4]), diagonals = int(p.regions[5]);
    const int head = int(blockIdx.x) % p.heads, split = int(blockIdx.x) / p.heads % splits;
    const int number = int(blockIdx.x) / p.heads / splits;
    const int diagonal = number % 2 ? (number + 1) / 2 : -number / 2;
    const int most_tiles = (p.length + block - 1) / block;
    const int tiles = most_tiles - (diagonal < 0 ? -diagonal : diagonal);  // of a diagonal of one batch

    const Rows t1 = table_of(p, head, true), t2 = table_of(p, head, false);
    const u32 shift = shared + shift_offset + warp * shift_bytes, pairs = shared + shift_offset;
    const SharedRows q{lane, shared + q_offset + warp_row * 16 * row_bytes};
    const SharedRows dout{lane, shared + dout_offset + warp_row * 16 * row_bytes};
    const u32 k = shared + z_offset + half_tile * tile_bytes, v = shared + w_offset + half_tile * tile_bytes;
    const int strip = block - (warp_row + 1) * 16 + half_tile * block_n;
    Sums sum = {};
    bool has_strips = false;
    for (s64 n = split; n < s64(p.batch) * tiles; n += splits) {
        const int tile = int(n % tiles) + (diagonal > 0 ? diagonal : 0);
        const int row0 = tile * block, key0 = (tile - diagonal) * block;
        const Place place = place_of(p, int(n / tiles), head);
        if (packed && (row0 >= place.length || key0 >= place.length)) continue;
        const u8* const keep = mask ? p.mask + place.batch * p.mask_batch : nullptr;
        const OtherRows keys(keep, key0 + half_tile * block_n, place.length);
        if constexpr (mask) {
            const OtherRows low(keep, row0, place.length), high(keep, row0 + block_n, place.length);
            if (!__syncthreads_or(keys.any_kept) || !(low.any_kept || high.any_kept)) continue;
        }
        const Sides sides = sides_of(p, place);
        const TileLoader<BackwardParams> loader{p,
                                                elements(sides.k),
                                                elements(sides.v),
                                                elements(t1),
                                                elements(t2),
                                                sides.k.row,
                                                sides.v.row,
                                                t1.row,
                                                t2.row,
                                                shared,
                                                int(threadIdx.x) / row_chunks,
                                                int(threadIdx.x) % row_chunks,
                                                place.length,
                                                row0 - key0 + block - 1};
        if (!has_strips)
            for (int piece = 0; piece < ring_chunks; ++piece) loader.strip(piece);
        has_strips = true;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            loader.rows(elements(sides.k), sides.k.row, z_offset + half * tile_bytes, key0 / block_n + half);
            loader.rows(elements(sides.v), sides.v.row, w_offset + half * tile_bytes, key0 / block_n + half);
            loader.rows<true>(elements(sides.q), sides.q.row, q_offset + half * tile_bytes, row0 / block_n + half);
            loader.rows<true>(elements(sides.dout), sides.dout.row, dout_offset + half * tile_bytes,
                              row0 / block_n + half);
        }
        copy_async_commit();
        if constexpr (dropout) load_dropped<block>(p.dropout, dropped, u32(place.batch * p.heads + head), row0, key0);
        OwnRows own;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = row0 + warp_row * 16 + lane.g + 8 * half;
            own.inside[half] = i < place.length;
            own.kept[half] = i < place.length && (!mask || keep[i]);
            own.bias[half] = 0.0f;
            own.statistics[half] = statistics_of(p, place, i);
        }
        copy_async_wait<0>();
        __syncthreads();

        Scores s, dp;
        scores<true>(s, q, lane, shared, k, strip, shift);
        scores<false>(dp, dout, lane, shared, v, 0, shift);
        finish_pairs(s, dp, p, place.length, lane, own, keys, 0, dropped, row0 + warp_row * 16, warp_row * 16,
                     key0 + half_tile * block_n);
        __syncthreads();
#pragma unroll
        for (int m = 0; m < block_n / 8; ++m)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                store_shared(pairs + 4 * ((warp_row * 16 + lane.g + 8 * (e >> 1)) * pairs_pitch + half_tile * block_n +
                                          8 * m + lane.c + 4 * (e & 1)),
                             s[0][m][e]);
        __syncthreads();
        if (half_tile == 0) {
            if constexpr (c2p) add_tile<table_key>(sum, lane, values, pairs, shared + q_offset, warp_row);
        } else {
            if constexpr (p2c) add_tile<table_query>(sum, lane, values, pairs, shared + z_offset, warp_row);
        }
        __syncthreads();
    }

    if (half_tile == 0 ? !c2p : !p2c) return;
    const int tables = int(c2p) + int(p2c), table = half_tile == 0 ? 0 : tables - 1;
    float* const to = reinterpret_cast<float*>(static_cast<char*>(p.workspace) + p.regions[3]) +
                      (((s64(split) * p.heads + head) * diagonals + number) * tables + table) * 2 * block * head_dim;
#pragma unroll
    for (int part = 0; part < 2; ++part)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            store_row<float, true>(to + (part * block + warp_row * 16 + lane.g + 8 * half) * head_dim, sum[part], half,
                                   lane.c, 1.0f);
}
