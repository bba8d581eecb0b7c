// Sizes, copies and the work of one step of backward_mma_q.cu.
// needs: backward_layout.cuh, backward_sequence.cuh, mma_rows.cuh, mma_shear.cuh, mma_gradient.cuh, config

constexpr bool has_bias = c2p || p2c;
constexpr int block_rows = 16 * warps;
constexpr int step_groups = block_k / 16;
constexpr int tile_steps = tile_rows / block_k;
constexpr int step_bytes = block_k * row_bytes;
constexpr int near_bytes = block_k * tile_rows * 2;  // dS of a step
constexpr int other_bytes = has_bias && near_bytes > step_bytes ? near_bytes : step_bytes;

constexpr int strip_chunks = block_rows / block_k + 1;  // pieces of block_k distances under one step
constexpr int ring_chunks = strip_chunks + stages - 1;
constexpr int ring_blocks = ring_chunks * step_groups;  // of 16 distances

constexpr int k_offset = 0;
constexpr int other_offset = k_offset + stages * step_bytes;
constexpr int pk_offset = other_offset + stages * other_bytes;

static_assert(pk_offset + (c2p ? ring_chunks * step_bytes : 0) == shared_bytes,
              "the launch asks for another size of shared memory");
static_assert(block_rows == tile_rows, "near tiles are told apart by 64 queries");
static_assert(block_k == 32 || block_k == 64, "keys of a step");
static_assert(step_groups % far_groups == 0, "far tiles take far_groups groups of 16 keys at a time");
static_assert(stages >= 2 && stages <= 4, "depth of the K ring");
static_assert(pk_offset >= block_rows * row_bytes, "gradients are staged where K was");
static_assert(threads % (8 * row_chunks) == 0, "a thread's rows of a step must be equal mod 8");
static_assert((block_k * row_chunks) % threads == 0, "every thread copies the same number of chunks of a step");

struct QLoader {
    const BackwardParams& p;
    const HeadRows& rows;
    const u16 *k, *v, *pk;  // this head's row 0
    u32 shared;
    int query_tile;
    int near_begin, near_end;  // steps
    int row, chunk;            // this thread's first row of a step, and its chunk of every row

    static constexpr int row_step = threads / row_chunks;
    static constexpr int copies = block_k / row_step;

    __device__ __forceinline__ QLoader(const BackwardParams& p_, const HeadRows& rows_, u32 shared_, int query_tile_,
                                       NearRange near)
        : p(p_), rows(rows_), shared(shared_), query_tile(query_tile_) {
        k = static_cast<const u16*>(p.k) + rows.offset(p.k_batch, p.k_row, p.k_head);
        v = static_cast<const u16*>(p.v) + rows.offset(p.v_batch, p.v_row, p.v_head);
        pk = static_cast<const u16*>(p.position_key) + rows.head * p.position_key_head;
        near_begin = near.begin * tile_steps, near_end = near.end * tile_steps;
        row = int(threadIdx.x) / row_chunks, chunk = int(threadIdx.x) % row_chunks;
    }

    // The rows of a step; zeros at or beyond the end of the sequence.
    __device__ __forceinline__ void copy_rows(const u16* tensor, s64 row_stride, int first, u32 to) const {
        to += swizzled(row, chunk);
        const u16* from = tensor + (first + row) * row_stride + chunk * 8;
#pragma unroll
        for (int i = 0; i < copies; ++i) {
            const bool valid = first + row + i * row_step < rows.length;
            copy_chunk(to + i * row_step * row_bytes, valid ? from : tensor, valid);
            from += row_step * row_stride;
            asm volatile("" : "+l"(from));  // opaque, or the multiples of the stride are kept in registers
        }
    }

    // Piece n of the strip: row r of it belongs to the distance i - j = `first` - r.
    __device__ __forceinline__ void strip(int n) const {
        const int first = query_tile * block_rows + block_rows - 1 - near_begin * block_k - n * block_k - row;
        const u32 to = shared + pk_offset + (n % ring_chunks) * step_bytes + swizzled(row, chunk);
#pragma unroll
        for (int i = 0; i < copies; ++i)
            copy_chunk(to + i * row_step * row_bytes,
                       pk + slot_at(p, first - i * row_step) * p.position_key_row + chunk * 8, true);
    }

    __device__ __forceinline__ void step(int t) const {
        const int stage = t % stages;
        const u32 other = shared + other_offset + stage * other_bytes;
        copy_rows(k, p.k_row, t * block_k, shared + k_offset + stage * step_bytes);
        if (has_bias && t >= near_begin && t < near_end) {
            const u16* from = near_tile(p, rows.tiles, query_tile, t / tile_steps) + t % tile_steps * (near_bytes / 2);
#pragma unroll
            for (int i = 0; i < near_bytes / 16; i += threads) {
                const int piece = i + int(threadIdx.x);
                copy_async16(other + piece * 16, from + piece * 8, true);
            }
            if constexpr (c2p) {
                const int n = t - near_begin;
                if (n == 0)
                    for (int piece = 0; piece < strip_chunks - 1; ++piece) strip(piece);
                strip(n + strip_chunks - 1);
            }
        } else {
            copy_rows(v, p.v_row, t * block_k, other);
        }
    }
};

struct QWarp {
    int lane, g, c, warp;
    BlockOffsets score;        // rows = n: K, V of far steps
    BlockOffsets values;       // rows = k: K of far steps
    BlockOffsets near_values;  // rows = k, in accumulator order: K, PK of near steps
    Shear queries;             // rows are queries in accumulator order
    u32 near_operand;          // where this lane's row of four matrices of dS lies
    u32 q[dim_steps][4], dout[dim_steps][4];
    float dq[head_dim / 8][4];
    float sums[4];         // of dS over the far tiles of one end: rows g (0, 1) and g + 8 (2, 3)
    RowStatistics row[2];  // of rows g and g + 8
    bool hidden[2], any_hidden;
    int ring;  // ring block of the first distance of the current group

    __device__ __forceinline__ explicit QWarp(int tid)
        : lane(tid % 32),
          g(lane >> 2),
          c(lane & 3),
          warp(tid / 32),
          score((lane >> 4) * 8 + (lane & 7), (lane >> 3) & 1),
          values(((lane >> 3) & 1) * 8 + (lane & 7), lane >> 4),
          near_values(((lane >> 3) & 1) * 8 + order_of(lane & 7), lane >> 4),
          queries(lane, order_of(g)) {
        near_operand = ((lane >> 4) * 8 + 2 * warp + ((lane >> 3) & 1)) * 128 + order_of(lane & 7) * 16;
#pragma unroll
        for (int n = 0; n < head_dim / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) dq[n][e] = 0.0f;
        sums[0] = sums[1] = sums[2] = sums[3] = 0.0f;
        ring = 0;
    }
};

// Operand of rows `row` and `row` + 8 from global memory; zeros beyond the end.
__device__ __forceinline__ void query_operand(u32 (&a)[4], const u16* tensor, s64 row_stride, int row, int length,
                                              int step, int c) {
#pragma unroll
    for (int part = 0; part < 4; ++part) {
        const int i = row + 8 * (part & 1);
        a[part] = i < length ? load_word(tensor + i * row_stride + step * 16 + (part >> 1) * 8 + 2 * c) : 0u;
    }
}

// dQ += dS by distance * PK, for one block of 16 distances.
__device__ __forceinline__ void add_distances(QWarp& w, const u32 (&a)[4], u32 shared) {
#pragma unroll
    for (int n = 0; n < dim_steps; ++n) {
        u32 b[4];
        load_matrices_transposed(b, w.near_values.address(shared + pk_offset + w.ring * 16 * row_bytes, n));
        multiply<dtype>(w.dq[2 * n], a, b[0], b[1]);
        multiply<dtype>(w.dq[2 * n + 1], a, b[2], b[3]);
    }
}

// 16 keys of a near step.
__device__ __forceinline__ void near_group(QWarp& w, const QLoader& load, int t, int group, ScatterCarry& carry) {
    const int stage = t % stages;
    const u32 k = load.shared + k_offset + stage * step_bytes + group * 16 * row_bytes;
    u32 ds[4];
    load_matrices_transposed(ds, load.shared + other_offset + stage * other_bytes + group * 2048 + w.near_operand);
#pragma unroll
    for (int n = 0; n < dim_steps; ++n) {
        u32 b[4];
        load_matrices_transposed(b, w.near_values.address(k, n));
        multiply<dtype>(w.dq[2 * n], ds, b[0], b[1]);
        multiply<dtype>(w.dq[2 * n + 1], ds, b[2], b[3]);
    }
    if constexpr (c2p) {
        u32 by_distance[4];
        carry.next(by_distance, ds, w.queries);
        add_distances(w, by_distance, load.shared);
        w.ring = w.ring + 1 == ring_blocks ? 0 : w.ring + 1;
    }
}

// Keys of a step: bit j is key j.
struct KeyBits {
    u32 keep[step_groups / 2], in_range[step_groups / 2];
    bool all;  // every key is kept and in range
};

__device__ __forceinline__ void read_bits(KeyBits& bits, const QLoader& load, int t) {
    const int lane = int(threadIdx.x) % 32;
    bits.all = true;
#pragma unroll
    for (int word = 0; word < step_groups / 2; ++word) {
        const int left = load.rows.length - t * block_k - 32 * word;
        bits.in_range[word] = left >= 32 ? 0xffffffffu : left <= 0 ? 0u : (1u << left) - 1;
        bits.keep[word] = bits.in_range[word];
        if constexpr (mask) {
            const u8* keep = load.p.mask + load.rows.batch * load.p.mask_batch + t * block_k + 32 * word;
            bits.keep[word] = __ballot_sync(0xffffffffu, lane < left && keep[lane]);
        }
        bits.all = bits.all && bits.keep[word] == 0xffffffffu;
    }
}

// The patch of this lane's elements of far step t: keys 8n + 2c + b of its 64-key tile, rows g and g + 8.
__device__ __forceinline__ u32 step_patch(const QWarp& w, const QLoader& load, int t) {
    const int row_group = (load.query_tile * (block_rows / 16) + w.warp) * 8 + order_of(w.g);
    const u32 patch = dropped_patch(load.p.dropout, unsigned(load.rows.batch * load.p.heads + load.rows.head),
                                    row_group, t / tile_steps * 4 + w.c);
    return patch >> (t % tile_steps * (block_k / 8));
}

// far_groups times 16 keys of a far step.
__device__ __forceinline__ void far_step(QWarp& w, const QLoader& load, int t, int group, bool special,
                                         const KeyBits& bits, u32 dropped) {
    const BackwardParams& p = load.p;
    const int stage = t % stages;
    const u32 k = load.shared + k_offset + stage * step_bytes + group * 16 * row_bytes;
    const u32 v = load.shared + other_offset + stage * other_bytes + group * 16 * row_bytes;
    float s[far_groups][2][4] = {}, dp[far_groups][2][4] = {};
#pragma unroll
    for (int step = 0; step < dim_steps; ++step)
#pragma unroll
        for (int i = 0; i < far_groups; ++i) {
            u32 b[4];
            load_matrices(b, w.score.address(k + i * 16 * row_bytes, step));
            multiply<dtype>(s[i][0], w.q[step], b[0], b[1]);
            multiply<dtype>(s[i][1], w.q[step], b[2], b[3]);
            load_matrices(b, w.score.address(v + i * 16 * row_bytes, step));
            multiply<dtype>(dp[i][0], w.dout[step], b[0], b[1]);
            multiply<dtype>(dp[i][1], w.dout[step], b[2], b[3]);
        }
#pragma unroll
    for (int i = 0; i < far_groups; ++i) {
        const int at = 16 * (group + i);
        const u32 kept = (at < 32 ? bits.keep[0] : bits.keep[step_groups / 2 - 1]) >> (at % 32 + 2 * w.c);
        const u32 in_range = (at < 32 ? bits.in_range[0] : bits.in_range[step_groups / 2 - 1]) >> (at % 32 + 2 * w.c);
        u32 ds[4];
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const bool hidden = mask && special && w.hidden[half];
                float value[2];
#pragma unroll
                for (int odd = 0; odd < 2; ++odd) {
                    const int e = 2 * half + odd;
                    float weight = probability(s[i][n][e], p.scale_log2, w.row[half].lse);
                    if (special) weight = (hidden ? 0u : (mask ? kept : in_range) >> (8 * n + odd) & 1) ? weight : 0.0f;
                    float gradient = dp[i][n][e];
                    if constexpr (dropout) {
                        const int bit = 16 * odd + 8 * half + n;
                        gradient = dropped >> (bit + 2 * (group + i)) & 1 ? 0.0f : gradient * p.dropout.scale;
                    }
                    value[odd] = weight * (gradient - w.row[half].delta);
                }
                ds[2 * n + half] = pack_gradient(value[0], value[1]);
            }
#pragma unroll
        for (int n = 0; n < dim_steps; ++n) {
            u32 b[4];
            load_matrices_transposed(b, w.values.address(k + i * 16 * row_bytes, n));
            multiply<dtype>(w.dq[2 * n], ds, b[0], b[1]);
            multiply<dtype>(w.dq[2 * n + 1], ds, b[2], b[3]);
        }
        if constexpr (c2p && has_bias) multiply<dtype>(w.sums, ds, pair_of_ones, pair_of_ones);
    }
}
