// What the kernels of the backward pass on the ordinary arithmetic units share. A block holds `block` rows of its own
// (x, y) and looks at a tile of `block` others (z, w): queries own (q, dO) and keys others (k, v), or with own_keys
// keys own (k, v) and queries others (q, dO). Either way
//   score = x.z + x.T1[slot] + z.T2[slot],   dP = y.w
// with T1 the table that own rows meet (PK for queries, PQ for keys) and T2 the other one. Tiles of the two sides are
// numbered alike; own tile minus other tile beyond +-near_tiles(band): every |i-j| >= band, one end slot e, and
//   score = (x + T2_e).z + x.T1_e
// Gradients are summed without their factors (scale, dropout.scale), which come with the store.
//
// Dynamic shared memory, fp32, in this order (pitches in brackets):
//   x, y     [block][wide_pitch] each    the block's own rows
//   z, w     [block][wide_pitch] each    the others; then a strip [2 * block][wide_pitch]
//   pairs    P or dS [block][pair_pitch], or strips of T1 and T2 [2 * block][step_pitch] each, dim_step columns a time
//   far      [2][block] row sums of dS over far tiles, [block] x.T1_e
//   dropped  [block * 2] words, when dropout
// needs: common/types.cuh, common/math.cuh, common/philox.h, disentangled_attention/params.h,
// disentangled_attention/dropout.h, disentangled_attention/sequence.cuh, config

constexpr bool has_bias = c2p || p2c;
constexpr bool has_t1 = own_keys ? p2c : c2p, has_t2 = own_keys ? c2p : p2c;
constexpr int sign = own_keys ? -1 : 1;  // i - j = sign * (own - other)

constexpr int micro = 4, side = block / micro;
constexpr int wide_pitch = head_dim + 4;  // a row moves by 4 banks: 16-byte reads of 8 rows touch every bank once
constexpr int step_pitch = dim_step + 4;
// Where a thread owns four neighbouring rows, those of a warp lie side by side.
constexpr int warp_rows = 32 / side * micro;
constexpr int sheared_width = block + warp_rows;
constexpr int pair_pitch = sheared_width + 4;
constexpr int columns = head_dim / side;  // of a gradient, of one thread

constexpr int wide_floats = block * wide_pitch;
constexpr int strip_floats = 2 * block * step_pitch;
constexpr int pairs_offset = 4 * wide_floats;
constexpr int pair_floats = block * pair_pitch;
constexpr int strips_floats = (int(c2p) + int(p2c)) * strip_floats;
constexpr int far_offset = pairs_offset + (pair_floats > strips_floats ? pair_floats : strips_floats);
constexpr int dropped_offset = far_offset + 3 * block;
constexpr int all_floats = dropped_offset + (dropout ? 2 * block : 0);

static_assert(4 * all_floats == shared_bytes, "the launch asks for another size of shared memory");
static_assert(head_dim == 32 || head_dim == 64 || head_dim == 128, "head_dim must be 32, 64 or 128");
static_assert(threads == side * side, "threads form a square; each owns 4 x 4 pairs");
static_assert(dim_step % 4 == 0 && head_dim % dim_step == 0, "columns are taken four at a time");
static_assert(!lse, "the backward pass reads lse, it writes none");

#include "disentangled_attention/simt_dropout.cuh"
#include "disentangled_attention/simt_tile.cuh"

#include "disentangled_attention/backward_place.cuh"

static_assert(!dropout || dropped_words<block> == 2 * block, "two words for each query row");

__device__ __forceinline__ void load_wide(float* to, const Rows& rows, int first, int length) {
    load_rows<block, head_dim, wide_pitch>(to, rows.tensor, rows.base, rows.row, first, length);
}

// Which of `micro` rows are in the sequence, and which of those are not masked: bit n for row first + side * n.
struct Kept {
    u32 inside, kept;
};

__device__ __forceinline__ Kept look_up(const u8* keep, int first, int length) {
    Kept known = {0, 0};
#pragma unroll
    for (int n = 0; n < micro; ++n) {
        const int row = first + side * n;
        known.inside |= u32(row < length) << n;
        known.kept |= u32(row < length && (!mask || keep[row])) << n;
    }
    return known;
}

// Scores of a near tile, dim_step columns at a time through the strips. The strips' place must be free; ends with a
// barrier.
__device__ __forceinline__ void add_near_scores(float (&score)[micro][micro], const BackwardParams& p, const Grid& at,
                                                float* memory, const Rows& t1, const Rows& t2, int own0, int other0) {
    float* strip1 = memory + pairs_offset;
    float* strip2 = strip1 + (has_t1 ? strip_floats : 0);
    const int first_distance = sign * (own0 - other0 - (block - 1));
#pragma unroll 1
    for (int d = 0; d < head_dim; d += dim_step) {
        if constexpr (has_t1)
            load_strip<2 * block, dim_step, step_pitch, sign>(p, strip1, t1.tensor, t1.base + d, t1.row,
                                                              first_distance);
        if constexpr (has_t2)
            load_strip<2 * block, dim_step, step_pitch, sign>(p, strip2, t2.tensor, t2.base + d, t2.row,
                                                              first_distance);
        __syncthreads();
        add_scores<true, has_t1, has_t2, dim_step, wide_pitch, wide_pitch, step_pitch>(
            score, at, memory + d, memory + 2 * wide_floats + d, strip1, strip2, block - 1);
        __syncthreads();
    }
}

__device__ __forceinline__ void add_far_products(float (&sum)[micro][micro], const Grid& at, const float* x,
                                                 const float* z) {
    add_scores<false, false, false, head_dim, wide_pitch, wide_pitch, step_pitch>(sum, at, x, z, nullptr, nullptr, 0);
}

// On entry score = x.z + ... and dp = y.w; on return score = dS / scale, and dp = P / dropout.scale as dV takes it.
__device__ __forceinline__ void finish_pairs(float (&score)[micro][micro], float (&dp)[micro][micro],
                                             const BackwardParams& p, const Place& place, const Grid& at,
                                             const float* row_bias, const Kept& own, const Kept& other,
                                             const u32* dropped, int own0, int other0) {
    const Kept& query = own_keys ? other : own;
    const Kept& key = own_keys ? own : other;
    const int first_query = own_keys ? other0 + at.tx : own0 + at.ty;
    const float* lse_of = p.lse + place.position + first_query;
    const float* delta_of = reinterpret_cast<const float*>(static_cast<const char*>(p.workspace) + p.regions[0]) +
                            place.position + first_query;
    float lse_row[micro], delta_row[micro], bias[micro];
#pragma unroll
    for (int a = 0; a < micro; ++a) bias[a] = row_bias ? row_bias[at.ty + side * a] : 0.0f;
#pragma unroll
    for (int m = 0; m < micro; ++m) {
        const bool inside = query.inside >> m & 1;
        lse_row[m] = inside ? lse_of[side * m] : 0.0f;
        delta_row[m] = inside ? delta_of[side * m] : 0.0f;
    }
#pragma unroll
    for (int a = 0; a < micro; ++a)
#pragma unroll
        for (int b = 0; b < micro; ++b) {
            const int m = own_keys ? b : a, n = own_keys ? a : b;
            const bool inside = (query.inside >> m & 1) && (key.inside >> n & 1);
            const bool attended = inside && (query.kept >> m & 1) && (key.kept >> n & 1);
            const bool equal = mask && inside && !(query.kept >> m & 1);  // a masked query weighs every key alike
            const float weight = attended ? exp2f((score[a][b] + bias[a]) * p.scale_log2 - lse_row[m]) : 0.0f;
            bool drop = false;
            if constexpr (dropout) {
                const int x = at.ty + side * a, y = at.tx + side * b;
                drop = own_keys ? dropped_in_tile(dropped, y, own0 + x) : dropped_in_tile(dropped, x, other0 + y);
                dp[a][b] = drop ? 0.0f : dp[a][b] * p.dropout.scale;
            }
            score[a][b] = weight * (dp[a][b] - delta_row[m]);
            dp[a][b] = drop ? 0.0f : equal ? 1.0f / float(place.length) : weight;
        }
}
