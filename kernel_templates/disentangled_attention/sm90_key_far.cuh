// Scores to P and dS of 64 keys, and the far tiles, which are those of plain attention.
// needs: sm90_key_tiles.cuh

struct KeyFar : KeyTiles {
    using KeyTiles::KeyTiles;

    // Masked query rows attend every key in range equally; kept ones no masked key. `dp` of hidden rows comes later.
    __device__ __forceinline__ void hide(float (&s)[32], u32 hidden) const {
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int b = 0; b < 2; ++b) {
                    const bool row = mask && (hidden >> (2 * n + b) & 1);
                    float& score = s[4 * n + 2 * half + b];
                    score = (row ? outside[half] : dead[half]) ? -__int_as_float(0x7f800000) : row ? 0.0f : score;
                }
    }

    // This thread's 16 queries that are masked.
    __device__ __forceinline__ u32 hidden_queries(int stage) const {
        if constexpr (!mask) return 0;
        const u32 word = reinterpret_cast<const u32*>(statistics_of(stage) + statistics_bytes)[lane.c >> 1];
        return word >> 16 * (lane.c & 1) & 0xffffu;
    }
    __device__ __forceinline__ bool any_hidden(int stage) const {
        if constexpr (!mask) return false;
        const u32* words = reinterpret_cast<const u32*>(statistics_of(stage) + statistics_bytes);
        return (words[0] | words[1]) != 0;
    }

    struct Dropped {
        u32 words[8];  // of query 2n + b, n mod 4; bit 8 * (n / 4) + half of the shifted word
        float scale;

        __device__ __forceinline__ bool at(int n, int half, int b) const {
            return words[2 * (n & 3) + b] >> (8 * (n >> 2) + half) & 1;
        }
    };

    __device__ __forceinline__ void load_dropped(Dropped& d, int stage) const {
        if constexpr (dropout) {
            const u32 from = shared + dropped_offset + 512 * stage + 4 * (32 * (lane.g >> 1) + 8 * lane.c);
            const Words4 low = load_shared16(from), high = load_shared16(from + 16);
            d.words[0] = low.x, d.words[1] = low.y, d.words[2] = low.z, d.words[3] = low.w;
            d.words[4] = high.x, d.words[5] = high.y, d.words[6] = high.z, d.words[7] = high.w;
#pragma unroll
            for (int i = 0; i < 8; ++i) d.words[i] >>= 16 * (lane.g & 1) + 2 * lane.warp;
            d.scale = p.dropout.scale;
        }
    }

    // Of this thread's queries.
    __device__ __forceinline__ void load_lse(float (&lse)[16], int stage) const {
        const u32 from = shared + statistics_offset + stage * statistics_slot + lane.c * value_group;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const Words4 words = load_shared16(from + 16 * n);
            lse[4 * n] = __uint_as_float(words.x), lse[4 * n + 1] = __uint_as_float(words.y);
            lse[4 * n + 2] = __uint_as_float(words.z), lse[4 * n + 3] = __uint_as_float(words.w);
        }
    }

    // Scores to P, and P as an operand of dV.
    __device__ __forceinline__ void probabilities(float (&s)[32], u32 (&a)[4][4], const float (&lse)[16],
                                                  const Dropped& dropped) const {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float kept[2];
#pragma unroll
                for (int b = 0; b < 2; ++b) {
                    float& x = s[4 * n + 2 * half + b];
                    x = exp2_approx(x * p.scale_log2 - lse[2 * n + b]);
                    kept[b] = x;
                    if constexpr (dropout) kept[b] = dropped.at(n, half, b) ? 0.0f : x * dropped.scale;
                }
                a[n >> 1][2 * (n & 1) + half] = pack2<dtype>(kept[0], kept[1]);
            }
        }
    }

    // What rounding left of P, as an operand of dV.
    __device__ __forceinline__ void remainders(const float (&s)[32], const u32 (&a)[4][4], u32 (&rest)[4][4],
                                               const Dropped& dropped) const {
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const u32 word = a[n >> 1][2 * (n & 1) + half];
                float left[2] = {-low_of<dtype>(word), -high_of<dtype>(word)};
#pragma unroll
                for (int b = 0; b < 2; ++b) {
                    const float x = s[4 * n + 2 * half + b];
                    if constexpr (dropout)
                        left[b] = dropped.at(n, half, b) ? 0.0f : x * dropped.scale + left[b];
                    else
                        left[b] += x;
                }
                rest[n >> 1][2 * (n & 1) + half] = pack2<dtype>(left[0], left[1]);
            }
    }

    // What dP's accumulators start with.
    __device__ __forceinline__ void start_gradients(float (&dp)[32], int stage) const {
        const u32 from = shared + statistics_offset + stage * statistics_slot + lse_bytes + lane.c * value_group;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            Words4 words = {0, 0, 0, 0};
            if constexpr (!dropout) words = load_shared16(from + 16 * n);
            dp[8 * n] = dp[8 * n + 2] = __uint_as_float(words.x);
            dp[8 * n + 1] = dp[8 * n + 3] = __uint_as_float(words.y);
            dp[8 * n + 4] = dp[8 * n + 6] = __uint_as_float(words.z);
            dp[8 * n + 5] = dp[8 * n + 7] = __uint_as_float(words.w);
        }
    }

    // dP - Delta, with dropout dP, to dS = P (dP - Delta), as an operand of dK.
    __device__ __forceinline__ void score_gradients(const float (&s)[32], const float (&dp)[32], u32 (&a)[4][4],
                                                    int stage, const Dropped& dropped, u32 hidden) const {
        const u32 from = shared + statistics_offset + stage * statistics_slot + lse_bytes + lane.c * value_group;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            float delta[2] = {0.0f, 0.0f};
            if constexpr (dropout) {
                const Words4 words = load_shared16(from + 16 * (n >> 1));
                delta[0] = __uint_as_float(n & 1 ? words.z : words.x),
                delta[1] = __uint_as_float(n & 1 ? words.w : words.y);
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float ds[2];
#pragma unroll
                for (int b = 0; b < 2; ++b) {
                    const int at = 4 * n + 2 * half + b;
                    float x = dp[at];
                    if constexpr (dropout) x = (dropped.at(n, half, b) ? 0.0f : x * dropped.scale) - delta[b];
                    ds[b] = s[at] * x;
                    if constexpr (mask) ds[b] = hidden >> (2 * n + b) & 1 ? 0.0f : ds[b];
                }
                a[n >> 1][2 * (n & 1) + half] = pack2<dtype>(ds[0], ds[1]);
            }
        }
    }

    // From scores, and dP that is still in flight, to dV and dS. `exact`: what rounding left of P goes into dV, too.
    template <bool exact>
    __device__ __forceinline__ void attend(float (&dk)[out_dim / 2], float (&dv)[out_dim / 2], float (&s)[32],
                                           float (&dp)[32], const float (&lse)[16], u32 (&ds)[4][4], int t) const {
        const int stage = t & 1;
        u32 a[4][4];
        Dropped dropped;
        load_dropped(dropped, stage);
        u32 hidden = 0;
        if (special || any_hidden(stage)) {
            hidden = hidden_queries(stage);
            hide(s, hidden);
        }
        probabilities(s, a, lse, dropped);
        wgmma_wait<0>();
        settle(dp);
        settle(dk);
        wgmma_fence();
        add_rows_product(dv, a, own_columns(dout_operand(slot)));
        wgmma_commit();
        u32 rest[4][4];
        if constexpr (exact) {
            remainders(s, a, rest, dropped);
            wgmma_fence();
            add_rows_product(dv, rest, own_columns(dout_operand(slot)));
            wgmma_commit();
        }
        score_gradients(s, dp, ds, stage, dropped, hidden);
    }

    // Far tiles keep the warpgroup's keys and values in registers, where there is room: with both operands in shared
    // memory it is the bandwidth of the latter that limits a product of 64 columns.
    static constexpr bool far_in_registers = warpgroups == 1 && tiled;

    // d (+)= a . b
    template <bool fresh>
    static __device__ __forceinline__ void held_product(float (&d)[32], const u32 (&a)[dim_steps][4], u32 b) {
        wgmma<dtype, operand_high, !fresh, false>(d, a[0], key_operand<block_rows>(b, 0));
#pragma unroll
        for (int step = 1; step < dim_steps; ++step)
            wgmma<dtype, operand_high, true, false>(d, a[step], key_operand<block_rows>(b, step));
    }

    // A far tile, up to dS. dK of the tile before runs under its exponentials.
    template <bool first>
    __device__ __forceinline__ void far_tile(const u32 (&keys)[dim_steps][4], const u32 (&values)[dim_steps][4],
                                             float (&dk)[out_dim / 2], float (&dv)[out_dim / 2], u32 (&ds)[4][4],
                                             int t) {
        float s[32], dp[32];
        const int behind = slot;
        if constexpr (!first) slot = after(slot, false);
        begin_tile(t);
        wgmma_fence();
        if constexpr (far_in_registers)
            held_product<true>(s, keys, q_operand(slot));
        else
            scores_product(s, operand(k_offset, 0), q_operand(slot));
        wgmma_commit();
        float lse[16];
        start_gradients(dp, t & 1);
        load_lse(lse, t & 1);
        wgmma_fence();
        if constexpr (!first) add_rows_product(dk, ds, own_columns(q_operand(behind)));
        if constexpr (far_in_registers)
            held_product<false>(dp, values, dout_operand(slot));
        else
            add_scores_product(dp, operand(v_offset, 0), dout_operand(slot));
        wgmma_commit();
        wgmma_wait<1>();
        settle(s);
        attend<false>(dk, dv, s, dp, lse, ds, t);
        wgmma_wait<0>();
        settle(dv);
    }

    __device__ __forceinline__ void far_tiles(float (&dk)[out_dim / 2], float (&dv)[out_dim / 2], int begin, int end) {
        u32 ds[4][4], keys[dim_steps][4], values[dim_steps][4];
        if constexpr (far_in_registers) {
            __syncthreads();  // begin_tile() would come too late
            load_operand<block_rows, false>(keys, shared + k_offset, 16 * lane.warp, lane);
            load_operand<block_rows, false>(values, shared + v_offset, 16 * lane.warp, lane);
        }
        far_tile<true>(keys, values, dk, dv, ds, begin);
#pragma unroll 1
        for (int t = begin + 1; t < end; ++t) far_tile<false>(keys, values, dk, dv, ds, t);
        wgmma_fence();
        add_rows_product(dk, ds, own_columns(q_operand(slot)));
        wgmma_commit();
        wgmma_wait<0>();
        settle(dk);
        slot = after(slot, false);
    }
};
