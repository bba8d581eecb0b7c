// What one warp of backward_mma_kv.cu does with the queries of a step.
// needs: backward_mma_kv_load.cuh, mma_shear.cuh, mma_gradient.cuh

struct KvWarp {
    int lane, g, c, warp;
    BlockOffsets score;                        // rows = n, in accumulator order: Q, dO, PQ
    BlockOffsets values;                       // rows = k, in accumulator order: Q, dO, PQ
    BlockOffsets reversed;                     // rows = n, from the block's end: PK
    BlockOffsets plain;                        // rows = m: K, V
    Shear keys, queries;                       // of rows that are keys, and rows that are queries in accumulator order
    u32 strip[strip_kept ? dim_steps : 1][4];  // PK's operands of the distances that the next group shares
    u32 identity;                              // operand [8 positions, 8 positions] of ones on the diagonal
    u32 natural;                               // operand [8 keys, 8 positions]: ones where a position is that key
    u32 k[resident ? dim_steps : 1][4], v[resident ? dim_steps : 1][4];
    float dk[head_dim / 8][4], dv[head_dim / 8][4];
    float constant[2];          // k_j.PQ_e of rows g and g + 8
    float sums[4];              // of dS over the far tiles of one end: rows g (0, 1) and g + 8 (2, 3)
    bool in_range[2], keep[2];  // of keys g and g + 8
    bool special;               // a key of this warp is hidden or beyond the end
    int ring;                   // ring block of the first distance of the current group

    __device__ __forceinline__ explicit KvWarp(int tid)
        : lane(tid % 32),
          g(lane >> 2),
          c(lane & 3),
          warp(tid / 32),
          score((lane >> 4) * 8 + order_of(lane & 7), (lane >> 3) & 1),
          values(((lane >> 3) & 1) * 8 + order_of(lane & 7), lane >> 4),
          reversed(15 - (lane >> 4) * 8 - order_of(lane & 7), (lane >> 3) & 1),
          plain(((lane >> 3) & 1) * 8 + (lane & 7), lane >> 4),
          keys(lane, g),
          queries(lane, order_of(g)) {
        identity = g == 2 * c ? 0x3c00u : g == 2 * c + 1 ? 0x3c000000u : 0u;
        natural = g == c ? 0x3c00u : g == c + 4 ? 0x3c000000u : 0u;
#pragma unroll
        for (int n = 0; n < head_dim / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) dk[n][e] = dv[n][e] = 0.0f;
        constant[0] = constant[1] = 0.0f;
        sums[0] = sums[1] = sums[2] = sums[3] = 0.0f;
        ring = 0;
    }
    __device__ __forceinline__ void key_operand(u32 (&a)[4], u32 shared, int step) const {
        if constexpr (resident)
            a[0] = k[step][0], a[1] = k[step][1], a[2] = k[step][2], a[3] = k[step][3];
        else
            load_matrices(a, plain.address(shared + k_offset + warp * 16 * row_bytes, step));
    }
    __device__ __forceinline__ void value_operand(u32 (&a)[4], u32 shared, int step) const {
        if constexpr (resident)
            a[0] = v[step][0], a[1] = v[step][1], a[2] = v[step][2], a[3] = v[step][3];
        else
            load_matrices(a, plain.address(shared + v_offset + warp * 16 * row_bytes, step));
    }
    __device__ __forceinline__ int next_ring() const {
        return ring + 1 == ring_blocks ? 0 : ring + 1;
    }
};

// K.PQ^T of the 16 distances that two neighbouring groups of queries share, packed.
struct ScoreCarry {
    u32 low, high[2];  // rows 0 to 7: the second group of 8 distances; rows 8 to 15: both
};

// K.PQ^T of 16 distances.
__device__ __forceinline__ void distance_scores(u32 (&packed_scores)[4], const float (&u)[2][4]) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        packed_scores[2 * n] = pack_scores(u[n][0], u[n][1]);
        packed_scores[2 * n + 1] = pack_scores(u[n][2], u[n][3]);
    }
}

__device__ __forceinline__ void first_strip(KvWarp& w, u32 shared) {
#pragma unroll
    for (int step = 0; step < dim_steps; ++step)
        load_matrices(w.strip[step], w.reversed.address(shared + pk_offset + w.ring * 16 * row_bytes, step));
}

__device__ __forceinline__ void first_scores(const KvWarp& w, ScoreCarry& scores, u32 shared) {
    float u[2][4] = {};
#pragma unroll
    for (int step = 0; step < dim_steps; ++step) {
        u32 a[4], b[4];
        w.key_operand(a, shared, step);
        load_matrices(b, w.score.address(shared + pq_offset + w.ring * 16 * row_bytes, step));
        multiply<dtype>(u[0], a, b[0], b[1]);
        multiply<dtype>(u[1], a, b[2], b[3]);
    }
    u32 words[4];
    distance_scores(words, u);
    scores.low = words[2], scores.high[0] = words[1], scores.high[1] = words[3];
}

// dK += dS by distance * PQ, for one block of 16 distances.
__device__ __forceinline__ void add_distances(KvWarp& w, const u32 (&a)[4], u32 shared) {
#pragma unroll
    for (int n = 0; n < dim_steps; ++n) {
        u32 b[4];
        load_matrices_transposed(b, w.values.address(shared + pq_offset + w.ring * 16 * row_bytes, n));
        multiply<dtype>(w.dk[2 * n], a, b[0], b[1]);
        multiply<dtype>(w.dk[2 * n + 1], a, b[2], b[3]);
    }
}

// k_j.PQ of one slot, for this lane's two rows.
__device__ __forceinline__ void key_constants(KvWarp& w, const KvLoader& load, int slot) {
    const u16* pq = load.pq + slot * load.p.position_query_row;
    w.constant[0] = w.constant[1] = 0.0f;
#pragma unroll
    for (int step = 0; step < dim_steps; ++step) {
        u32 a[4];
        w.key_operand(a, load.shared, step);
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const u32 pair = load_word(pq + step * 16 + (part >> 1) * 8 + 2 * w.c);
            w.constant[part & 1] +=
                low_of<dtype>(a[part]) * low_of<dtype>(pair) + high_of<dtype>(a[part]) * high_of<dtype>(pair);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        w.constant[half] += __shfl_xor_sync(0xffffffffu, w.constant[half], 1);
        w.constant[half] += __shfl_xor_sync(0xffffffffu, w.constant[half], 2);
    }
}

// S and dP of `count` groups of 16 queries from `group` on.
template <bool near, int count>
__device__ __forceinline__ void scores_of(KvWarp& w, float (&s)[count][2][4], float (&dp)[count][2][4],
                                          ScoreCarry& scores, u32 shared, u32 q, u32 dout) {
    float u[2][4] = {}, v[4][4] = {};
#pragma unroll
    for (int i = 0; i < count; ++i)
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) s[i][n][e] = near || !p2c ? 0.0f : w.constant[e >> 1], dp[i][n][e] = 0.0f;
    const u32 first = w.ring * 16 * row_bytes, second = w.next_ring() * 16 * row_bytes;
#pragma unroll
    for (int step = 0; step < dim_steps; ++step) {
        u32 a[4], b[4];
        w.key_operand(a, shared, step);
#pragma unroll
        for (int i = 0; i < count; ++i) {
            load_matrices(b, w.score.address(q + i * 16 * row_bytes, step));
            multiply<dtype>(s[i][0], a, b[0], b[1]);
            multiply<dtype>(s[i][1], a, b[2], b[3]);
        }
        if constexpr (near && c2p) {
            const u32 rows[4] = {b[0], b[2], b[1], b[3]};  // the same matrices as an operand of rows
            if constexpr (strip_kept) {
                multiply<dtype>(v[2], rows, w.strip[step][0], w.strip[step][1]);
                multiply<dtype>(v[3], rows, w.strip[step][2], w.strip[step][3]);
                load_matrices(w.strip[step], w.reversed.address(shared + pk_offset + second, step));
                multiply<dtype>(v[0], rows, w.strip[step][0], w.strip[step][1]);
                multiply<dtype>(v[1], rows, w.strip[step][2], w.strip[step][3]);
            } else {
                load_matrices(b, w.reversed.address(shared + pk_offset + second, step));
                multiply<dtype>(v[0], rows, b[0], b[1]);
                multiply<dtype>(v[1], rows, b[2], b[3]);
                load_matrices(b, w.reversed.address(shared + pk_offset + first, step));
                multiply<dtype>(v[2], rows, b[0], b[1]);
                multiply<dtype>(v[3], rows, b[2], b[3]);
            }
        }
        if constexpr (near && p2c) {
            load_matrices(b, w.score.address(shared + pq_offset + second, step));
            multiply<dtype>(u[0], a, b[0], b[1]);
            multiply<dtype>(u[1], a, b[2], b[3]);
        }
        w.value_operand(a, shared, step);
#pragma unroll
        for (int i = 0; i < count; ++i) {
            load_matrices(b, w.score.address(dout + i * 16 * row_bytes, step));
            multiply<dtype>(dp[i][0], a, b[0], b[1]);
            multiply<dtype>(dp[i][1], a, b[2], b[3]);
        }
    }
    if constexpr (near && p2c) {
        u32 words[4];
        distance_scores(words, u);
        const Shear& shear = w.keys;
        multiply_half_step(s[0][0], shear.gather(scores.low, words[0]), shear.gather(scores.high[0], scores.high[1]),
                           w.identity);
        multiply_half_step(s[0][1], shear.gather(words[0], words[2]), shear.gather(scores.high[1], words[1]),
                           w.identity);
        scores.low = words[2], scores.high[0] = words[1], scores.high[1] = words[3];
    }
    if constexpr (near && c2p) {
        const u32 rows[4] = {w.natural, 0, 0, w.natural};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int skip = 1 - half;  // rows 0 to 7 start one group of 8 distances later
            u32 words[3];
#pragma unroll
            for (int m = 0; m < 3; ++m) words[m] = pack_scores(v[m + skip][2 * half], v[m + skip][2 * half + 1]);
            multiply<dtype_f16>(s[0][half], rows, w.queries.gather(words[0], words[1]),
                                w.queries.gather(words[1], words[2]));
        }
    }
}

// P and dS of one group as operands [16 keys, 16 queries]. `dropped`: words of its columns c and c + 4, already shifted
// to this lane's keys; bit 8 * (query half) + (key half).
__device__ __forceinline__ void gradients_of(const KvWarp& w, const BackwardParams& p, u32 (&pa)[4], u32 (&dsa)[4],
                                             float (&s)[2][4], const float (&dp)[2][4], u32 statistics, bool special,
                                             u32 hidden, const u32 (&dropped)[2]) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        float ds[4];
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
            const RowStatistics row = load_statistics(statistics + (8 * n + w.c + 4 * odd) * 8);
            const bool is_hidden = mask && special && (hidden >> (8 * n + 4 * odd + w.c) & 1);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int e = 2 * half + odd;
                const bool drop = dropout && (dropped[odd] >> (8 * n + half) & 1);
                float weight = probability(is_hidden ? 0.0f : s[n][e], p.scale_log2, row.lse);
                if (special) weight = (is_hidden ? w.in_range[half] : w.keep[half]) ? weight : 0.0f;
                const float gradient = dropout ? (drop ? 0.0f : dp[n][e] * p.dropout.scale) : dp[n][e];
                ds[e] = is_hidden ? 0.0f : weight * (gradient - row.delta);
                s[n][e] = drop ? 0.0f : weight;
            }
        }
        pa[2 * n] = pack2<dtype>(s[n][0], s[n][1]), pa[2 * n + 1] = pack2<dtype>(s[n][2], s[n][3]);
        dsa[2 * n] = pack_gradient(ds[0], ds[1]), dsa[2 * n + 1] = pack_gradient(ds[2], ds[3]);
    }
}

// One step's groups from `group` on: near tiles take one at a time, far tiles far_groups.
template <bool near>
__device__ __forceinline__ void take_groups(KvWarp& w, const KvLoader& load, int t, int group, bool special,
                                            const u32 (&hidden)[hidden_words], u16* near_rows, ScatterCarry& carry,
                                            ScoreCarry& scores) {
    constexpr int count = near ? 1 : far_groups;
    const BackwardParams& p = load.p;
    const int stage = t % stages;
    const u32 shared = load.shared, row = (stage * block_q + group * 16) * row_bytes;
    const u32 q = shared + q_offset + row, dout = shared + dout_offset + row;
    float s[count][2][4], dp[count][2][4];
    scores_of<near, count>(w, s, dp, scores, shared, q, dout);
#pragma unroll
    for (int i = 0; i < count; ++i) {
        u32 dropped[2] = {0, 0};
        if constexpr (dropout) {
#pragma unroll
            for (int odd = 0; odd < 2; ++odd) {
                const int patch = 32 * (group + i) + 4 * (w.c + 4 * odd) + (w.g >> 1);
                asm volatile("ld.shared.b32 %0, [%1];"
                             : "=r"(dropped[odd])
                             : "r"(shared + dropped_offset + ((t & 1) * patches + patch) * 4)
                             : "memory");
                dropped[odd] >>= (w.g & 1) * 16 + 2 * w.warp;
            }
        }
        u32 pa[4], dsa[4];
        const int at = 16 * (group + i);
        gradients_of(w, p, pa, dsa, s[i], dp[i], shared + statistics_offset + (stage * block_q + at) * 8, special,
                     (at < 32 ? hidden[0] : hidden[hidden_words - 1]) >> (at % 32), dropped);
        if constexpr (near) {
            // Matrices [key group][query group] of 64 elements.
#pragma unroll
            for (int word = 0; word < 4; ++word)
                *reinterpret_cast<u32*>(near_rows + ((word & 1) * 8 + 2 * group + (word >> 1)) * 64) = dsa[word];
        }
#pragma unroll
        for (int n = 0; n < dim_steps; ++n) {
            u32 b[4];
            load_matrices_transposed(b, w.values.address(dout + i * 16 * row_bytes, n));
            multiply<dtype>(w.dv[2 * n], pa, b[0], b[1]);
            multiply<dtype>(w.dv[2 * n + 1], pa, b[2], b[3]);
            load_matrices_transposed(b, w.values.address(q + i * 16 * row_bytes, n));
            multiply<dtype>(w.dk[2 * n], dsa, b[0], b[1]);
            multiply<dtype>(w.dk[2 * n + 1], dsa, b[2], b[3]);
        }
        if constexpr (!near && p2c) multiply<dtype>(w.sums, dsa, pair_of_ones, pair_of_ones);
        if constexpr (near && p2c) {
            u32 by_distance[4];
            carry.next(by_distance, dsa, w.keys);
            add_distances(w, by_distance, shared);
        }
    }
    if constexpr (near) w.ring = w.next_ring();
}
