// Disentangled attention, forward, on tensor cores through mma.sync (sm_80 and newer).
//
//   s_ij = q_i.k_j + [c2p] q_i.PK[slot(i-j)] + [p2c] k_j.PQ[slot(i-j)],   O = softmax_j(scale * s) V
//
// q, k, v, out: [length, head_dim] rows of one (batch, head), 16-bit. PK, PQ: [slots, head_dim] rows of one head.
// A block of `warps` warps owns block_m query rows and walks over tiles of block_n keys. A tile is
//   far   when every |i-j| >= band: all its pairs share one end slot e, so that the bias is q_i.PK_e (a constant of the
//         row) + k_j.PQ_e, and the latter is folded into the operand: (q_i + PQ_e).k_j. It costs what plain attention
//         does.
//   near  otherwise: the rows of PK and PQ for its block_m + block_n - 1 distances, the strip, lie in shared memory in
//         the order of j-i. Q.PKstrip and PQstrip.K are matrix products, and the shift "column = distance" is undone
//         on the way through a per-warp fp32 buffer, whose address is affine in row and key.
// The strip is a ring: the next tile's strip is this one's moved by block_n rows.
//
// Dynamic shared memory, in this order:
//   K      [stages][block_n][head_dim]       16-bit, 16-byte chunks swizzled by row, keys in accumulator order (key_of)
//   V      [stages][block_n][head_dim]       likewise
//   PK     [ring_rows][head_dim]             when c2p, likewise, in the order of j-i
//   PQ     [ring_rows][head_dim]             when p2c
//   shift  [warps][warp_rows][shift_pitch]   fp32, when c2p or p2c
//   range  [2]                               int, when mask
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

#include "disentangled_attention/mma_rows.cuh"

constexpr bool has_bias = c2p || p2c;
constexpr int threads = 32 * warps;
constexpr int warp_rows = block_m / warps;
constexpr int row_tiles = warp_rows / 16;  // accumulator tiles of a warp, one above the other
constexpr int key_blocks = block_n / 16;
constexpr int key_group = head_dim <= 64 ? 2 : 1;  // key blocks whose fragments a warp holds at a time
constexpr int tile_bytes = block_n * row_bytes;

constexpr int strip_chunks = (block_m + block_n - 1) / block_n + 1;  // pieces of block_n distances under one tile
constexpr int ring_chunks = strip_chunks + stages - 1;
constexpr int ring_rows = ring_chunks * block_n;
constexpr int ring_bytes = ring_rows * row_bytes;
// A pitch of 4 mod 32 words: the reads and the stores of PQstrip.K touch every bank once.
constexpr int shift_pitch = block_n + 4;

constexpr int k_offset = 0;
constexpr int v_offset = k_offset + stages * tile_bytes;
constexpr int pk_offset = v_offset + stages * tile_bytes;
constexpr int pq_offset = pk_offset + (c2p ? ring_bytes : 0);
constexpr int shift_offset = pq_offset + (p2c ? ring_bytes : 0);
constexpr int range_offset = shift_offset + (has_bias ? block_m * shift_pitch * 4 : 0);

static_assert(range_offset + (mask ? 8 : 0) == shared_bytes, "the launch asks for another size of shared memory");
static_assert(block_m % (16 * warps) == 0, "each warp owns whole tiles of 16 rows");
static_assert(!dropout || block_n <= 64, "a patch of dropped weights spans 64 keys");
static_assert(block_n % 32 == 0 && block_n <= 128, "key masks are 32-bit words; shared offsets are immediates");
static_assert(threads % (8 * row_chunks) == 0, "a thread's rows of a tile must be equal mod 8");
static_assert((block_n * row_chunks) % threads == 0, "every thread copies the same number of chunks of a tile");
static_assert(stages >= 1 && stages <= 4, "depth of the K and V ring");

// Finite, so that it survives differences; exp2 of it, scaled, is 0.
constexpr float masked_score = -1e30f;
constexpr float any_score = -1e29f;  // below it: no key seen yet
// Scores may exceed the subtracted maximum by 2^lazy before O is rescaled: P stays exact to 16 bits, and sums fit fp32.
constexpr float lazy = 8.0f;

// Key at accumulator column `position` of a group of 8: column 2c + b holds key c + 4b, which spreads a warp's
// accesses to the shift buffer over the banks.
__device__ __forceinline__ int key_of(int position) {
    return (position & ~7) | ((position & 7) >> 1) | ((position & 1) << 2);
}

struct Lane {
    int g, c;  // row and column pair of an accumulator
    // Offsets of this lane's row and chunk in a 16 x 16 block, for ldmatrix.
    u32 b_row, b_turn;  // rows = n (K, PK): matrices (rows 0-7, k 0-7), (0-7, 8-15), (8-15, 0-7), (8-15, 8-15)
    u32 a_row, a_turn;  // rows = m (PQ) or k (V): (rows 0-7, 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15)

    __device__ __forceinline__ explicit Lane(int lane) {
        g = lane >> 2, c = lane & 3;
        const int b = (lane >> 4) * 8 + (lane & 7), a = ((lane >> 3) & 1) * 8 + (lane & 7);
        b_row = b * row_bytes, b_turn = swizzled(b, (lane >> 3) & 1) - b_row;
        a_row = a * row_bytes, a_turn = swizzled(a, lane >> 4) - a_row;
    }
    // `base`: address of a block of 16 rows; `step`: which 16 columns.
    __device__ __forceinline__ u32 b_address(u32 base, int step) const { return base + b_row + (b_turn ^ (step << 5)); }
    __device__ __forceinline__ u32 a_address(u32 base, int step) const { return base + a_row + (a_turn ^ (step << 5)); }
};

// What one warp keeps in registers.
struct WarpState {
    u32 q[row_tiles][dim_steps][4];  // A fragments of Q, or of Q + PQ_e in far tiles
    float o[row_tiles][head_dim / 8][4];
    float s[row_tiles][block_n / 8][4];      // columns: keys by key_of
    float row_bias[row_tiles][2];            // q_i.PK_e in far tiles, else 0; rows g and g + 8
    float m[row_tiles][2], l[row_tiles][2];  // subtracted maximum (unscaled), sum of this thread's columns
    u32 hidden;                              // bit 2 * tile + half: the query row is masked
};

// Issues the copies of one tile. Rows of K and V at or beyond `length` become zeros.
struct Loader {
    const ForwardParams& p;
    const u16 *k, *v, *pk, *pq;  // this head's row 0
    u32 shared;
    int row, chunk;         // this thread's first row of a tile, and its chunk of every row
    int length, distance0;  // distance i-j of ring row 0

    static constexpr int row_step = threads / row_chunks;
    static constexpr int copies = block_n / row_step;

    // A tile of K or V.
    __device__ __forceinline__ void rows(const u16* tensor, s64 row_stride, u32 offset, int tile) const {
        const int key0 = tile * block_n + key_of(row);
        const u32 to = shared + offset + swizzled(row, chunk);
        const u16* from = tensor + key0 * row_stride + chunk * 8;
#pragma unroll
        for (int i = 0; i < copies; ++i) {
            const bool valid = key0 + i * row_step < length;
            copy_chunk(to + i * row_step * row_bytes, valid ? from : tensor, valid);
            from += row_step * row_stride;
            asm volatile("" : "+l"(from));  // opaque, or the multiples of the stride are kept in registers
        }
    }

    // Distances distance0 - n * block_n and down.
    __device__ __forceinline__ void strip(int n) const {
        const u32 to = shared + (n % ring_chunks) * tile_bytes + swizzled(row, chunk);
        int slot[copies];
#pragma unroll
        for (int i = 0; i < copies; ++i) slot[i] = slot_of(p, distance0 - n * block_n - row - i * row_step);
#pragma unroll
        for (int i = 0; i < copies; ++i) {
            if constexpr (c2p)
                copy_chunk(to + pk_offset + i * row_step * row_bytes, pk + slot[i] * p.position_key_row + chunk * 8,
                           true);
            if constexpr (p2c)
                copy_chunk(to + pq_offset + i * row_step * row_bytes, pq + slot[i] * p.position_query_row + chunk * 8,
                           true);
        }
    }

    __device__ __forceinline__ void values(int t, int stage) const {
        rows(v, p.v_row, v_offset + stage * tile_bytes, t);
    }

    // K and, for near tiles, the part of the strip that the tile before did not need.
    __device__ __forceinline__ void keys(int t, int stage, const KeyTiles& tiles) const {
        rows(k, p.k_row, k_offset + stage * tile_bytes, t);
        if constexpr (has_bias) {
            if (t >= tiles.near_begin && t < tiles.near_end) {
                const int n = t - tiles.near_begin;
                if (n == 0)
                    for (int piece = 0; piece < strip_chunks - 1; ++piece) strip(piece);
                strip(n + strip_chunks - 1);
            }
        }
    }
};

// Q fragments straight from global memory; with `slot` >= 0 prepared for far tiles of that slot.
__device__ __forceinline__ void load_query(WarpState& w, const ForwardParams& p, const u16* q, const u16* pk,
                                           const u16* pq, const Lane& lane, int row, int length, int slot) {
#pragma unroll
    for (int t = 0; t < row_tiles; ++t) w.row_bias[t][0] = w.row_bias[t][1] = 0.0f;
#pragma unroll
    for (int step = 0; step < dim_steps; ++step) {
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int half = part & 1, dim = step * 16 + (part >> 1) * 8 + 2 * lane.c;
#pragma unroll
            for (int t = 0; t < row_tiles; ++t) {
                // Rows past the end repeat the last one, and are never stored.
                const int i = min(row + t * 16 + half * 8 + lane.g, length - 1);
                u32 pair = load_pair(q + i * p.q_row + dim);
                if (has_bias && slot >= 0) {
                    const float low = low_of<dtype>(pair), high = high_of<dtype>(pair);
                    if constexpr (c2p) {
                        const u32 key = load_pair(pk + slot * p.position_key_row + dim);
                        w.row_bias[t][half] += low * low_of<dtype>(key) + high * high_of<dtype>(key);
                    }
                    if constexpr (p2c) {
                        const u32 query = load_pair(pq + slot * p.position_query_row + dim);
                        pair = pack_operand(low + low_of<dtype>(query), high + high_of<dtype>(query));
                    }
                }
                w.q[t][step][part] = pair;
            }
        }
    }
    if (c2p && slot >= 0) {
#pragma unroll
        for (int t = 0; t < row_tiles; ++t)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float sum = w.row_bias[t][half];
                sum += __shfl_xor_sync(0xffffffffu, sum, 1);
                sum += __shfl_xor_sync(0xffffffffu, sum, 2);
                w.row_bias[t][half] = w.hidden >> (2 * t + half) & 1 ? 0.0f : sum;
            }
    }
}

// Address of the 16 ring rows that start `block` blocks after the tile's first.
__device__ __forceinline__ u32 ring_block(u32 ring, int first_row, int block) {
    int row = first_row + block * 16;
    // Opaque, or every block's address is kept in registers from one key block to the next.
    asm volatile("" : "+r"(row));
    row -= row >= ring_rows ? ring_rows : 0;
    return ring + row * row_bytes;
}

// S = Q.PKstrip, shifted: element (row, t) of a 16-row tile belongs to key t + row - 15.
// `strip`: ring row of this warp's strip (the strip of its last 16 rows starts there).
__device__ __forceinline__ void position_scores_c2p(WarpState& w, const Lane& lane, u32 ring, int strip, u32 shift) {
    const int x = 2 * lane.c + lane.g;
    const u32 store = shift + 4 * (lane.g * (shift_pitch + 1) + 2 * lane.c - 15);
#pragma unroll
    for (int block = 0; block < key_blocks + row_tiles; ++block) {
        const u32 base = ring_block(ring, strip, block);
        float c[row_tiles][2][4] = {};
#pragma unroll
        for (int step = 0; step < dim_steps; ++step) {
            u32 b[4];
            load_matrices(b, lane.b_address(base, step));
#pragma unroll
            for (int t = 0; t < row_tiles; ++t) {
                const int own = block - (row_tiles - 1 - t);  // block within this tile's strip
                if (own < 0 || own > key_blocks) continue;
                multiply<dtype>(c[t][0], w.q[t][step], b[0], b[1]);
                multiply<dtype>(c[t][1], w.q[t][step], b[2], b[3]);
            }
        }
#pragma unroll
        for (int t = 0; t < row_tiles; ++t) {
            const int own = block - (row_tiles - 1 - t);
            if (own < 0 || own > key_blocks) continue;
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int half = e >> 1, odd = e & 1;
                    // key = x + 8 * (n + half) + odd - 15 + 16 * own
                    const bool from_zero = x + 8 * (n + half) + odd >= 15;
                    if (own == 0 ? from_zero : own == key_blocks ? !from_zero : true)
                        store_shared(
                            store + 4 * ((16 * t + 8 * half) * shift_pitch + 16 * own + 8 * n + 8 * half + odd),
                            c[t][n][e]);
                }
        }
    }
}

// PQstrip.K for a group of key blocks, shifted: element (t, key) of strip block `block`, both counted from the group's
// first, belongs to row key - t + warp_rows - 1 - 16 * block. Each strip block is loaded once for the whole group.
__device__ __forceinline__ void position_scores_p2c(const Lane& lane, u32 ring, int strip, u32 shift, int first_block,
                                                    const u32 (&k)[key_group][dim_steps][4]) {
    const int x = lane.g - lane.c;
    const u32 store = shift + 4 * (lane.c * (shift_pitch + 1) - lane.g * shift_pitch);
#pragma unroll
    for (int block = 0; block < key_group + row_tiles; ++block) {
        const u32 base = ring_block(ring, strip, first_block + block);
        float c[key_group][2][4] = {};
#pragma unroll
        for (int step = 0; step < dim_steps; ++step) {
            u32 a[4];
            load_matrices(a, lane.a_address(base, step));
#pragma unroll
            for (int i = 0; i < key_group; ++i) {
                if (block < i || block > i + row_tiles) continue;
                multiply<dtype>(c[i][0], a, k[i][step][0], k[i][step][1]);
                multiply<dtype>(c[i][1], a, k[i][step][2], k[i][step][3]);
            }
        }
#pragma unroll
        for (int i = 0; i < key_group; ++i) {
            const int own = block - i;  // block within the strip of these 16 keys
            if (own < 0 || own > row_tiles) continue;
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int half = e >> 1, odd = e & 1;
                    const int key = 8 * n + 4 * odd;                            // + c
                    const int row = key - 8 * half + warp_rows - 1 - 16 * own;  // + c - g
                    const bool in_last_row = x >= key - 8 * half;               // row <= warp_rows - 1 when own is 0
                    if (own == 0 ? in_last_row : own == row_tiles ? !in_last_row : true)
                        store_shared(store + 4 * (row * shift_pitch + 16 * (first_block + i) + key), c[i][n][e]);
                }
        }
    }
}

// s += or = the shifted scores of this warp.
template <bool accumulate>
__device__ __forceinline__ void read_shifted(WarpState& w, const Lane& lane, u32 shift) {
    const u32 from = shift + 4 * (lane.g * shift_pitch + lane.c);
#pragma unroll
    for (int t = 0; t < row_tiles; ++t)
#pragma unroll
        for (int n = 0; n < block_n / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float bias =
                    load_shared(from + 4 * ((16 * t + 8 * (e >> 1)) * shift_pitch + 8 * n + 4 * (e & 1)));
                w.s[t][n][e] = accumulate ? w.s[t][n][e] + bias : bias;
            }
}

// Bit j: key j of the tile is attended by kept rows (keep) or by masked ones (in_range).
struct KeyBits {
    u32 keep[block_n / 32], in_range[block_n / 32];
    bool all;  // every key is kept and in range
};

__device__ __forceinline__ KeyBits key_bits(const u8 (&kept)[block_n / 32], int keys_left) {
    KeyBits bits;
    bits.all = true;
#pragma unroll
    for (int i = 0; i < block_n / 32; ++i) {
        const int left = keys_left - 32 * i;
        bits.in_range[i] = left >= 32 ? 0xffffffffu : left <= 0 ? 0u : (1u << left) - 1;
        bits.keep[i] = mask ? __ballot_sync(0xffffffffu, kept[i] != 0) & bits.in_range[i] : bits.in_range[i];
        bits.all = bits.all && bits.keep[i] == 0xffffffffu;
    }
    return bits;
}

__device__ __forceinline__ void apply_mask(WarpState& w, const Lane& lane, const KeyBits& bits) {
#pragma unroll
    for (int t = 0; t < row_tiles; ++t)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const bool hidden = mask && (w.hidden >> (2 * t + half) & 1);
#pragma unroll
            for (int i = 0; i < block_n / 32; ++i) {
                const u32 word = (hidden ? bits.in_range[i] : bits.keep[i]) >> lane.c;
#pragma unroll
                for (int n = 0; n < 4; ++n)
#pragma unroll
                    for (int odd = 0; odd < 2; ++odd) {
                        float& s = w.s[t][4 * i + n][2 * half + odd];
                        s = word >> (8 * n + 4 * odd) & 1 ? (hidden ? 0.0f : s) : masked_score;
                    }
            }
        }
}

// Online softmax: turns s into P (fp32) and moves O to the new maximum when it grew much.
__device__ __forceinline__ void softmax(WarpState& w, float scale) {
    float top[row_tiles][2];
    bool grew = false;
#pragma unroll
    for (int t = 0; t < row_tiles; ++t)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float x = fmaxf(w.s[t][0][2 * half], w.s[t][0][2 * half + 1]);
#pragma unroll
            for (int n = 1; n < block_n / 8; ++n) x = fmaxf(x, fmaxf(w.s[t][n][2 * half], w.s[t][n][2 * half + 1]));
            x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
            x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
            top[t][half] = x + w.row_bias[t][half];
            grew = grew || (top[t][half] - w.m[t][half]) * scale > lazy;
        }
    if (__any_sync(0xffffffffu, grew)) {
#pragma unroll
        for (int t = 0; t < row_tiles; ++t)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float m = fmaxf(w.m[t][half], top[t][half]);
                const float ratio = exp2_approx((w.m[t][half] - m) * scale);
                w.m[t][half] = m;
                w.l[t][half] *= ratio;
#pragma unroll
                for (int n = 0; n < head_dim / 8; ++n) w.o[t][n][2 * half] *= ratio, w.o[t][n][2 * half + 1] *= ratio;
            }
    }
#pragma unroll
    for (int t = 0; t < row_tiles; ++t)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            // A row that has seen no key subtracts nothing: the difference of two scaled masked scores is rounding
            // noise.
            const float seen = w.m[t][half] < any_score ? 0.0f : w.m[t][half];
            const float offset = (w.row_bias[t][half] - seen) * scale;
            float sum = 0.0f;
#pragma unroll
            for (int n = 0; n < block_n / 8; ++n)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; ++e) {
                    w.s[t][n][e] = exp2_approx(w.s[t][n][e] * scale + offset);
                    sum += w.s[t][n][e];
                }
            w.l[t][half] += sum;
        }
}

// Which weights of one tile are dropped: word t for 16-row tile t, bit 16b + 8 * half + n for the element (half, n, b)
// of this thread's accumulator. A group of 8 keys is in the order of key_of, so that the bits of a thread come from two
// patches (dropout.h), which its neighbour needs too: each computes one.
__device__ __forceinline__ void dropped_words(u32 (&dropped)[row_tiles], const ForwardParams& p, const Lane& lane,
                                              unsigned batch_head, int row, int tile) {
    const int odd = lane.c & 1, key0 = tile * block_n;
#pragma unroll
    for (int t = 0; t < row_tiles; ++t) {
        const int row_group = (row / 16 + t) * 8 + lane.g, column_group = key0 / 64 * 4 + (lane.c >> 1) + 2 * odd;
        const u32 own = dropped_patch(p.dropout, batch_head, row_group, column_group);
        const u32 other = __shfl_xor_sync(0xffffffffu, own, 1);
        dropped[t] = odd ? __byte_perm(other, own, 0x7632) : __byte_perm(own, other, 0x5410);
        dropped[t] >>= key0 % 64 / 8;
    }
}

// O += P V
__device__ __forceinline__ void accumulate_values(WarpState& w, const Lane& lane, u32 v,
                                                  const u32 (&dropped)[row_tiles]) {
#pragma unroll
    for (int block = 0; block < key_blocks; ++block) {
        u32 a[row_tiles][4];
#pragma unroll
        for (int t = 0; t < row_tiles; ++t)
#pragma unroll
            for (int part = 0; part < 4; ++part) {
                const float* s = &w.s[t][2 * block + (part >> 1)][2 * (part & 1)];
                a[t][part] = pack2<dtype>(s[0], s[1]);
                if constexpr (dropout)
                    a[t][part] &= ~((dropped[t] >> (8 * (part & 1) + 2 * block + (part >> 1)) & 0x10001u) * 0xffffu);
            }
#pragma unroll
        for (int n = 0; n < dim_steps; ++n) {
            u32 b[4];
            load_matrices_transposed(b, lane.a_address(v + block * 16 * row_bytes, n));
#pragma unroll
            for (int t = 0; t < row_tiles; ++t) {
                multiply<dtype>(w.o[t][2 * n], a[t], b[0], b[1]);
                multiply<dtype>(w.o[t][2 * n + 1], a[t], b[2], b[3]);
            }
        }
    }
}

// S of one tile, without mask. `strip`: ring row where this warp's strip starts (near tiles).
template <bool near>
__device__ __forceinline__ void scores(WarpState& w, const Lane& lane, u32 shared, int stage, int strip, u32 shift) {
    if constexpr (near && c2p) {
        position_scores_c2p(w, lane, shared + pk_offset, strip, shift);
        __syncwarp();
        read_shifted<false>(w, lane, shift);
        if constexpr (p2c) __syncwarp();  // before the next stores to the shift buffer
    } else {
#pragma unroll
        for (int t = 0; t < row_tiles; ++t)
#pragma unroll
            for (int n = 0; n < block_n / 8; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) w.s[t][n][e] = 0.0f;
    }
    const u32 k_tile = shared + k_offset + stage * tile_bytes;
#pragma unroll
    for (int block = 0; block < key_blocks; block += key_group) {
        u32 k[key_group][dim_steps][4];
#pragma unroll
        for (int i = 0; i < key_group; ++i)
#pragma unroll
            for (int step = 0; step < dim_steps; ++step) {
                load_matrices(k[i][step], lane.b_address(k_tile + (block + i) * 16 * row_bytes, step));
#pragma unroll
                for (int t = 0; t < row_tiles; ++t) {
                    multiply<dtype>(w.s[t][2 * (block + i)], w.q[t][step], k[i][step][0], k[i][step][1]);
                    multiply<dtype>(w.s[t][2 * (block + i) + 1], w.q[t][step], k[i][step][2], k[i][step][3]);
                }
            }
        if constexpr (near && p2c) position_scores_p2c(lane, shared + pq_offset, strip, shift, block, k);
    }
    if constexpr (near && p2c) {
        __syncwarp();
        read_shifted<true>(w, lane, shift);
    }
    // The next tile's first stores to the shift buffer come after a barrier of the block.
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

__device__ __forceinline__ void store_rows(const WarpState& w, const ForwardParams& p, const Sequence& s,
                                           const Lane& lane, int row) {
    u16* out = static_cast<u16*>(p.out) + s.out;
#pragma unroll
    for (int t = 0; t < row_tiles; ++t)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float l = w.l[t][half];
            l += __shfl_xor_sync(0xffffffffu, l, 1);
            l += __shfl_xor_sync(0xffffffffu, l, 2);
            const int i = row + 16 * t + 8 * half + lane.g;
            if (i >= s.length) continue;
            const float inverse = (dropout ? p.dropout.scale : 1.0f) / l;
            u16* to = out + i * p.out_row + 2 * lane.c;
#pragma unroll
            for (int n = 0; n < head_dim / 8; ++n) {
                const u32 pair = pack2<dtype>(w.o[t][n][2 * half] * inverse, w.o[t][n][2 * half + 1] * inverse);
                if constexpr (aligned) {
                    *reinterpret_cast<u32*>(to + 8 * n) = pair;
                } else {
                    to[8 * n] = u16(pair & 0xffffu);
                    to[8 * n + 1] = u16(pair >> 16);
                }
            }
            if (lse && lane.c == 0) p.lse[s.lse + i] = w.m[t][half] * p.scale_log2 + log2_approx(l);
        }
}

}  // namespace

extern "C" __global__ __launch_bounds__(threads, blocks_per_sm) void disentangled_attention_forward_mma(
    const __grid_constant__ ForwardParams p) {
    extern __shared__ __align__(128) unsigned char memory[];
    const Sequence s = locate<block_m, packed>(p);
    if (s.row0 >= s.length) return;

    const u32 shared = shared_address(memory);
    const int warp = int(threadIdx.x) / 32;
    const Lane lane(int(threadIdx.x) % 32);
    const int row = s.row0 + warp * warp_rows;  // first query row of this warp
    const u16* q = static_cast<const u16*>(p.q) + s.q;
    const u16* pk = static_cast<const u16*>(p.position_key) + s.head * p.position_key_head;
    const u16* pq = static_cast<const u16*>(p.position_query) + s.head * p.position_query_head;

    const u8* keep = mask ? p.mask + s.batch * p.mask_batch : nullptr;
    int first_key = 0, key_count = s.length;
    if constexpr (mask)
        kept_range(keep, s.row0, s.length, reinterpret_cast<int*>(memory + range_offset), first_key, key_count);
    const KeyTiles tiles = key_tiles<block_m, block_n, has_bias>(p, s.row0, first_key, key_count);

    WarpState w;
    w.hidden = 0;
#pragma unroll
    for (int t = 0; t < row_tiles; ++t)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = row + 16 * t + 8 * half + lane.g;
            if (mask && i < s.length && !keep[i]) w.hidden |= 1u << (2 * t + half);
            w.m[t][half] = masked_score;
            w.l[t][half] = 0.0f;
#pragma unroll
            for (int n = 0; n < head_dim / 8; ++n) w.o[t][n][2 * half] = w.o[t][n][2 * half + 1] = 0.0f;
        }

    const Loader loader{p,
                        static_cast<const u16*>(p.k) + s.k,
                        static_cast<const u16*>(p.v) + s.v,
                        pk,
                        pq,
                        shared,
                        int(threadIdx.x) / row_chunks,
                        int(threadIdx.x) % row_chunks,
                        s.length,
                        s.row0 + block_m - 1 - tiles.near_begin * block_n};
    if constexpr (stages == 1) {
        loader.keys(tiles.begin, 0, tiles);
        copy_async_commit();
    }
#pragma unroll
    for (int i = 0; i < stages - 1; ++i) {
        if (tiles.begin + i < tiles.end) {
            loader.keys(tiles.begin + i, i, tiles);
            loader.values(tiles.begin + i, i);
        }
        copy_async_commit();
    }

    const u32 shift = shared + shift_offset + warp * warp_rows * shift_pitch * 4;
    const int strip_in_tile = block_m - (warp + 1) * warp_rows;
    for (int t = tiles.begin; t < tiles.end; ++t) {
        const int stage = (t - tiles.begin) % stages;
        u32 dropped[row_tiles] = {};
        if constexpr (dropout) dropped_words(dropped, p, lane, unsigned(s.batch * p.heads + s.head), row, t);
        copy_async_wait<(stages > 1 ? stages - 2 : 0)>();
        __syncthreads();
        if constexpr (stages == 1) {
            loader.values(t, 0);
        } else if (t + stages - 1 < tiles.end) {
            loader.keys(t + stages - 1, (t + stages - 1 - tiles.begin) % stages, tiles);
            loader.values(t + stages - 1, (t + stages - 1 - tiles.begin) % stages);
        }
        copy_async_commit();
        if (t == tiles.begin || (has_bias && (t == tiles.near_begin || t == tiles.near_end))) {
            int slot = -1;
            if (t < tiles.near_begin) slot = slot_of(p, p.band);
            if (t >= tiles.near_end) slot = slot_of(p, -p.band);
            load_query(w, p, q, pk, pq, lane, row, s.length, has_bias ? slot : -1);
        }
        const int keys_left = s.length - t * block_n;
        u8 kept[block_n / 32] = {};
        if constexpr (mask) {
            const int l = int(threadIdx.x) % 32;
#pragma unroll
            for (int i = 0; i < block_n / 32; ++i)
                kept[i] = 32 * i + l < keys_left ? keep[t * block_n + 32 * i + l] : 0;
        }

        if (has_bias && t >= tiles.near_begin && t < tiles.near_end) {
            int strip = (t - tiles.near_begin) % ring_chunks * block_n + strip_in_tile;
            strip -= strip >= ring_rows ? ring_rows : 0;
            scores<true>(w, lane, shared, stage, strip, shift);
        } else {
            scores<false>(w, lane, shared, stage, 0, shift);
        }
        if constexpr (stages == 1) {  // K and the strip are read: the next ones may come while V is used
            __syncthreads();
            if (t + 1 < tiles.end) loader.keys(t + 1, 0, tiles);
            copy_async_commit();
        }

        const KeyBits bits = key_bits(kept, keys_left);
        if (!bits.all || (mask && __any_sync(0xffffffffu, w.hidden != 0))) apply_mask(w, lane, bits);
        softmax(w, p.scale_log2);
        if constexpr (stages == 1) {
            copy_async_wait<1>();
            __syncthreads();
        }
        accumulate_values(w, lane, shared + v_offset + stage * tile_bytes, dropped);
    }
    store_rows(w, p, s, lane, row);
}
