// Disentangled attention, forward, on tensor cores through mma.sync (sm_80 and newer).
//
//   s_ij = q_i.k_j + [c2p] q_i.PK[slot(i-j)] + [p2c] k_j.PQ[slot(i-j)],   O = softmax_j(scale * s) V
//
// q, k, v, out: [length, head_dim] rows of one (batch, head), of 16 bits, or fp32 multiplied as tf32 with fp32 sums.
// PK, PQ: [slots, head_dim] rows of one head. A block of `warps` warps owns block_m query rows and walks over tiles of
// block_n keys. A tile is
//   far   when every |i-j| >= band: all its pairs share one end slot e, so that the bias is q_i.PK_e (a constant of the
//         row) + k_j.PQ_e, and the latter is folded into the operand: (q_i + PQ_e).k_j. It costs what plain attention
//         does.
//   near  otherwise: the rows of PK and PQ for its block_m + block_n - 1 distances, the strip, lie in shared memory in
//         the order of j-i, and Q.PKstrip and PQstrip.K are matrix products (mma_scores.cuh).
//
// Dynamic shared memory: the tiles (mma_tiles.cuh), then
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
constexpr bool has_t1 = c2p, has_t2 = p2c;  // own rows x are Q, others z are K with partners V; T1 is PK, T2 is PQ
constexpr int sign = 1, column_warps = 1;

#include "disentangled_attention/mma_tiles.cuh"
#include "disentangled_attention/mma_scores.cuh"
#include "disentangled_attention/mma_tf32_values.cuh"

constexpr int range_offset = tiles_end;

static_assert(range_offset + (mask ? 8 : 0) == shared_bytes, "the launch asks for another size of shared memory");
static_assert(!dropout || block_n <= 64, "a patch of dropped weights spans 64 keys");

// Finite, so that it survives differences; exp2 of it, scaled, is 0.
constexpr float masked_score = -1e30f;
constexpr float any_score = -1e29f;  // below it: no key seen yet
// Scores may exceed the subtracted maximum by 2^lazy before O is rescaled: P stays exact to 16 bits, and sums fit fp32.
constexpr float lazy = 8.0f;

// A fragments of a warp's query rows.
struct RowFragments {
    u32 word[row_tiles][dim_steps][4];

    __device__ __forceinline__ void load(u32 (&a)[4], int tile, int step) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = word[tile][step][i];
    }
};

// What one warp keeps in registers.
struct WarpState {
    RowFragments q;  // or of Q + PQ_e in far tiles
    float o[row_tiles][head_dim / 8][4];
    Scores s;
    float row_bias[row_tiles][2];            // q_i.PK_e in far tiles, else 0; rows g and g + 8
    float m[row_tiles][2], l[row_tiles][2];  // subtracted maximum (unscaled), sum of this thread's columns
    u32 hidden;                              // bit 2 * tile + half: the query row is masked
};

// A word of Q as an operand; with `key` and `query`, the words of PK_e and PQ_e, as far tiles take it.
__device__ __forceinline__ u32 query_word(u32 word, bool far, u32 key, u32 query, float& row_bias) {
    if constexpr (dtype == dtype_f32) {
        float value = __uint_as_float(word);
        if (far) {
            if constexpr (c2p) row_bias += value * __uint_as_float(key);
            if constexpr (p2c) value += __uint_as_float(query);
        }
        return round_tf32(__float_as_uint(value));
    } else {
        if (!far) return word;
        const float low = low_of<dtype>(word), high = high_of<dtype>(word);
        if constexpr (c2p) row_bias += low * low_of<dtype>(key) + high * high_of<dtype>(key);
        return p2c ? pack_operand(low + low_of<dtype>(query), high + high_of<dtype>(query)) : word;
    }
}

// Q fragments straight from global memory; with `slot` >= 0 prepared for far tiles of that slot.
__device__ __forceinline__ void load_query(WarpState& w, const ForwardParams& p, const Element* q, const Element* pk,
                                           const Element* pq, const Lane& lane, int row, int length, int slot) {
    const bool far = has_bias && slot >= 0;
#pragma unroll
    for (int t = 0; t < row_tiles; ++t) w.row_bias[t][0] = w.row_bias[t][1] = 0.0f;
#pragma unroll
    for (int step = 0; step < dim_steps; ++step) {
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int half = part & 1, dim = (step * 8 + (part >> 1) * 4 + lane.c) * word_elements;
            u32 key = 0, query = 0;
            if (far) {
                if constexpr (c2p) key = load_word(pk + slot * p.position_key_row + dim);
                if constexpr (p2c) query = load_word(pq + slot * p.position_query_row + dim);
            }
#pragma unroll
            for (int t = 0; t < row_tiles; ++t) {
                // Rows past the end repeat the last one, and are never stored.
                const int i = min(row + t * 16 + half * 8 + lane.g, length - 1);
                w.q.word[t][step][part] =
                    query_word(load_word(q + i * p.q_row + dim), far, key, query, w.row_bias[t][half]);
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

// O += P V, tf32.
template <class State>
__device__ __forceinline__ void accumulate_f32(State& w, const Lane& lane, u32 v, const u32 (&dropped)[row_tiles]) {
    if constexpr (dropout)
#pragma unroll
        for (int t = 0; t < row_tiles; ++t)
#pragma unroll
            for (int n = 0; n < block_n / 8; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    if (dropped[t] >> (16 * (e & 1) + 8 * (e >> 1) + n) & 1u) w.s[t][n][e] = 0.0f;
    add_rows(w.o, w.s, ValueLane<head_dim>(lane), v);
}

// O += P V, 16-bit elements.
template <class State>
__device__ __forceinline__ void accumulate_halves(State& w, const Lane& lane, u32 v,
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

__device__ __forceinline__ void accumulate_values(WarpState& w, const Lane& lane, u32 v,
                                                  const u32 (&dropped)[row_tiles]) {
    if constexpr (dtype == dtype_f32)
        accumulate_f32(w, lane, v, dropped);
    else
        accumulate_halves(w, lane, v, dropped);
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

template <class Type>
__device__ __forceinline__ void store_row_halves(Type* to, const float (&o)[head_dim / 8][4], int half, int c,
                                                 float factor) {
#pragma unroll
    for (int n = 0; n < head_dim / 8; ++n) {
        const u32 pair = pack2<dtype>(o[n][2 * half] * factor, o[n][2 * half + 1] * factor);
        Type* at = to + 8 * n + 2 * c;
        if constexpr (aligned)
            *reinterpret_cast<u32*>(at) = pair;
        else
            at[0] = u16(pair & 0xffffu), at[1] = u16(pair >> 16);
    }
}

__device__ __forceinline__ void store_rows(const WarpState& w, const ForwardParams& p, const Sequence& s,
                                           const Lane& lane, int row) {
    Element* out = static_cast<Element*>(p.out) + s.out;
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
            if constexpr (dtype == dtype_f32)
                store_row(out + i * p.out_row, w.o[t], half, lane.c, inverse);
            else
                store_row_halves(out + i * p.out_row, w.o[t], half, lane.c, inverse);
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
    const Element* q = static_cast<const Element*>(p.q) + s.q;
    const Element* pk = static_cast<const Element*>(p.position_key) + s.head * p.position_key_head;
    const Element* pq = static_cast<const Element*>(p.position_query) + s.head * p.position_query_head;

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

    const TileLoader<ForwardParams> loader{p,
                                           static_cast<const Element*>(p.k) + s.k,
                                           static_cast<const Element*>(p.v) + s.v,
                                           pk,
                                           pq,
                                           p.k_row,
                                           p.v_row,
                                           p.position_key_row,
                                           p.position_query_row,
                                           shared,
                                           int(threadIdx.x) / row_chunks,
                                           int(threadIdx.x) % row_chunks,
                                           s.length,
                                           s.row0 + block_m - 1 - tiles.near_begin * block_n};
    auto load_keys = [&](int t, int stage) { loader.others(t, stage, tiles.near_begin, tiles.near_end); };
    if constexpr (stages == 1) {
        load_keys(tiles.begin, 0);
        copy_async_commit();
    }
#pragma unroll
    for (int i = 0; i < stages - 1; ++i) {
        if (tiles.begin + i < tiles.end) {
            load_keys(tiles.begin + i, i);
            loader.partners(tiles.begin + i, i);
        }
        copy_async_commit();
    }

    const u32 shift = shared + shift_offset + warp * shift_bytes;
    const int strip_in_tile = block_m - (warp + 1) * warp_rows;
    for (int t = tiles.begin; t < tiles.end; ++t) {
        const int stage = (t - tiles.begin) % stages;
        u32 dropped[row_tiles] = {};
        if constexpr (dropout) dropped_words(dropped, p, lane, unsigned(s.batch * p.heads + s.head), row, t);
        copy_async_wait<(stages > 1 ? stages - 2 : 0)>();
        __syncthreads();
        if constexpr (stages == 1) {
            loader.partners(t, 0);
        } else if (t + stages - 1 < tiles.end) {
            load_keys(t + stages - 1, (t + stages - 1 - tiles.begin) % stages);
            loader.partners(t + stages - 1, (t + stages - 1 - tiles.begin) % stages);
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

        // The next tile's first stores to the shift buffer come after a barrier of the block.
        const u32 k_tile = shared + z_offset + stage * tile_bytes;
        if (has_bias && t >= tiles.near_begin && t < tiles.near_end) {
            int strip = (t - tiles.near_begin) % ring_chunks * block_n + strip_in_tile;
            strip -= strip >= ring_rows ? ring_rows : 0;
            scores<true>(w.s, w.q, lane, shared, k_tile, strip, shift);
        } else {
            scores<false>(w.s, w.q, lane, shared, k_tile, 0, shift);
        }
        if constexpr (stages == 1) {  // K and the strip are read: the next ones may come while V is used
            __syncthreads();
            if (t + 1 < tiles.end) load_keys(t + 1, 0);
            copy_async_commit();
        }

        const KeyBits bits = key_bits(kept, keys_left);
        if (!bits.all || (mask && __any_sync(0xffffffffu, w.hidden != 0))) apply_mask(w, lane, bits);
        softmax(w, p.scale_log2);
        if constexpr (stages == 1) {
            copy_async_wait<1>();
            __syncthreads();
        }
        accumulate_values(w, lane, shared + w_offset + stage * tile_bytes, dropped);
    }
    store_rows(w, p, s, lane, row);
}
