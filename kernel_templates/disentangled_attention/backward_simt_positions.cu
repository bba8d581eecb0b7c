// Gradients of the position tables from near tiles, by distance, in IEEE fp32. All tiles with the same difference
// between query tile and key tile (a diagonal) hold the same 2 * block - 1 distances, so that a block walks along one
// diagonal, through every batch, and keeps the sums in registers; `splits` blocks take turns with the tiles.
//
//   dPK[delta] += dS_ij q_i,   dPQ[delta] += dS_ij k_j,   delta = i - j
//
// Distance block * diagonal - (block - 1) + r has row r. Of rows rho and rho + block exactly one meets a given query
// row i of the tile: rho while i <= rho, else rho + block (and likewise for the key row counted from the tile's end).
// So dS lies in shared memory as [row][rho], full.
//
// Workspace, at regions[]: 0 Delta; 3 the sums, fp32 [splits][heads][diagonals][c2p + p2c][2 * block][head_dim], with
// diagonals 0, 1, -1, 2, -2, ...; regions[4], [5] are the numbers of splits and diagonals.
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

static_assert(has_bias && !own_keys, "queries are the block's own rows");

constexpr int rho_pitch = block + 4;
constexpr int part_columns = columns / parts;  // of a sum, of one thread
constexpr int part_width = part_columns < 4 ? part_columns : 4;
constexpr int part_groups = part_columns / part_width;
constexpr int part_dims = head_dim / parts;

static_assert(block * rho_pitch <= far_offset - pairs_offset, "dS must fit where the strips were");
static_assert(columns % parts == 0, "parts share the columns of head_dim evenly");

using Sums = float[2][micro][part_columns];  // rows rho, rho + block

// Rows first .. last - 1 of the tile, taken from `rows` in steps of row_step; low and high tell which sums they meet.
template <bool low, bool high>
__device__ __forceinline__ void add_rows_between(Sums& sum, const Grid& at, const float* pairs, const float* rows,
                                                 int row_step, int first, int last) {
    const int rho = micro * at.ty;
#pragma unroll 4
    for (int i = first; i < last; ++i) {
        const Float4 ds = read4(pairs + i * rho_pitch + rho);
        const float weight[micro] = {ds.x, ds.y, ds.z, ds.w};
#pragma unroll
        for (int group = 0; group < part_groups; ++group) {
            float value[part_width];
            read_columns(value, rows + i * row_step + (at.tx + side * group) * part_width);
#pragma unroll
            for (int a = 0; a < micro; ++a) {
                const float for_low = !high || i <= rho + a ? weight[a] : 0.0f;
                const float for_high = !low || i > rho + a ? weight[a] : 0.0f;
#pragma unroll
                for (int n = 0; n < part_width; ++n) {
                    float& to_low = sum[0][a][group * part_width + n];
                    float& to_high = sum[1][a][group * part_width + n];
                    if constexpr (low) to_low = fmaf(for_low, value[n], to_low);
                    if constexpr (high) to_high = fmaf(for_high, value[n], to_high);
                }
            }
        }
    }
}

__device__ __forceinline__ void add_tile(Sums& sum, const Grid& at, const float* pairs, const float* rows,
                                         int row_step) {
    const int turn = micro * at.ty / warp_rows * warp_rows;  // the same in a warp
    add_rows_between<true, false>(sum, at, pairs, rows, row_step, 0, turn);
    add_rows_between<true, true>(sum, at, pairs, rows, row_step, turn, turn + warp_rows);
    add_rows_between<false, true>(sum, at, pairs, rows, row_step, turn + warp_rows, block);
}

__device__ __forceinline__ void store_sums(float* to, const Grid& at, const Sums& sum) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int a = 0; a < micro; ++a)
#pragma unroll
            for (int n = 0; n < part_columns; ++n)
                to[(half * block + micro * at.ty + a) * head_dim + (at.tx + side * (n / part_width)) * part_width +
                   n % part_width] = sum[half][a][n];
}

}  // namespace

// Grid: diagonals * splits * heads * parts, the longest diagonals first.
extern "C" __global__ __launch_bounds__(threads, blocks_per_sm) void disentangled_attention_backward_simt_positions(
    const __grid_constant__ BackwardParams p) {
    extern __shared__ __align__(16) float memory[];
    float* const q = memory;
    float* const dout = q + wide_floats;
    float* const k = dout + wide_floats;
    float* const v = k + wide_floats;
    float* const pairs = memory + pairs_offset;
    u32* const dropped = reinterpret_cast<u32*>(memory + dropped_offset);
    const Grid at = place_in_grid();

    const int splits = int(p.regions[4]), diagonals = int(p.regions[5]);
    int index = int(blockIdx.x);
    const int part = index % parts;
    index /= parts;
    const int head = index % p.heads;
    index /= p.heads;
    const int split = index % splits, number = index / splits;
    const int diagonal = number % 2 ? (number + 1) / 2 : -number / 2;
    const int most_tiles = (p.length + block - 1) / block;
    const int tiles = most_tiles - (diagonal < 0 ? -diagonal : diagonal);  // of a diagonal of one batch

    const Rows t1 = table_of(p, head, true), t2 = table_of(p, head, false);
    Sums pk = {}, pq = {};
    for (s64 n = split; n < s64(p.batch) * tiles; n += splits) {
        const int tile = int(n % tiles) + (diagonal > 0 ? diagonal : 0);
        const int row0 = tile * block, key0 = (tile - diagonal) * block;
        const Place place = place_of(p, int(n / tiles), head);
        if (packed && (row0 >= place.length || key0 >= place.length)) continue;
        const u8* const keep = mask ? p.mask + place.batch * p.mask_batch : nullptr;
        const Sides sides = sides_of(p, place);
        const Kept query = look_up(keep, row0 + at.ty, place.length);
        const Kept key = look_up(keep, key0 + at.tx, place.length);
        if constexpr (mask) {
            const bool row_live = __syncthreads_or(query.kept != 0), key_live = __syncthreads_or(key.kept != 0);
            if (!row_live || !key_live) continue;
        }
        load_wide(q, sides.q, row0, place.length);
        load_wide(dout, sides.dout, row0, place.length);
        load_wide(k, sides.k, key0, place.length);
        load_wide(v, sides.v, key0, place.length);
        if constexpr (dropout) load_dropped<block>(p.dropout, dropped, u32(place.batch * p.heads + head), row0, key0);
        __syncthreads();

        float score[micro][micro] = {}, dp[micro][micro] = {};
        add_near_scores(score, p, at, memory, t1, t2, row0, key0);
        add_far_products(dp, at, dout, v);
        finish_pairs(score, dp, p, place, at, nullptr, query, key, dropped, row0, key0);
#pragma unroll
        for (int table = c2p ? 0 : 1; table < (p2c ? 2 : 1); ++table) {
#pragma unroll
            for (int a = 0; a < micro; ++a)
#pragma unroll
                for (int b = 0; b < micro; ++b) {
                    const int i = at.ty + side * a, j = at.tx + side * b;
                    const int row = table == 0 ? i : block - 1 - j;
                    pairs[row * rho_pitch + (i - j + block - 1) % block] = score[a][b];
                }
            __syncthreads();
            if (table == 0)
                add_tile(pk, at, pairs, q + part * part_dims, wide_pitch);
            else
                add_tile(pq, at, pairs, k + (block - 1) * wide_pitch + part * part_dims, -wide_pitch);
            __syncthreads();
        }
    }

    float* to = reinterpret_cast<float*>(static_cast<char*>(p.workspace) + p.regions[3]) + part * part_dims +
                ((s64(split) * p.heads + head) * diagonals + number) * (int(c2p) + int(p2c)) * 2 * block * head_dim;
    if constexpr (c2p) {
        store_sums(to, at, pk);
        to += 2 * block * head_dim;
    }
    if constexpr (p2c) store_sums(to, at, pq);
}
