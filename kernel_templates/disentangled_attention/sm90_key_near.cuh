// Near tiles of 64 keys: products over distances, shifted through shared memory, for the scores and for dK.
// needs: sm90_key_far.cuh

struct KeyNear : KeyFar {
    using KeyFar::KeyFar;

    // A operand of 16 queries of a tile in pairs of rows, straight from memory: the tile's own rows are in another
    // order.
    __device__ __forceinline__ void load_queries(int t) {
        if constexpr (c2p && tiled) {
            const Words4* from = reinterpret_cast<const Words4*>(record(p, block.base + t) + record_paired) +
                                 lane.warp * dim_steps * 32 + lane.lane;
#pragma unroll
            for (int step = 0; step < dim_steps; ++step) {
                const Words4 words = from[32 * step];
                q_paired[step][0] = words.x, q_paired[step][1] = words.y;
                q_paired[step][2] = words.z, q_paired[step][3] = words.w;
            }
        } else if constexpr (c2p) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                // Rows beyond the end have P = 0 whatever their scores.
                const int i = min(t * block_rows + 16 * lane.warp + 2 * lane.g + half, block.length - 1);
                const u16* row = q + i * p.q_row + 2 * lane.c;
#pragma unroll
                for (int step = 0; step < dim_steps; ++step)
#pragma unroll
                    for (int part = 0; part < 2; ++part)
                        q_paired[step][2 * part + half] = *reinterpret_cast<const u32*>(row + 16 * step + 8 * part);
            }
        }
    }

    // Distance chunk number `n` of the block's near tiles, from the lowest: chunks n and n + 1 lie under near tile n.
    __device__ __forceinline__ void bring_keys(int n) const {
        const u32 slot = n & 1;
        copy_operand(shared + pk_offset + slot * operand_bytes,
                     tables.chunk(near_begin - block.tile - 1 + n, expanded_key), shared + pk_full + 8 * slot);
    }
    __device__ __forceinline__ void bring_queries(int n) const {
        const u32 slot = n % 3;
        copy_operand(shared + pq_offset + slot * operand_bytes,
                     tables.chunk(near_begin - block.tile - 1 + n, expanded_query), shared + pq_full + 8 * slot);
    }
    __device__ __forceinline__ void await_keys(int n) const {
        barrier_wait(shared + pk_full + 8 * (n & 1), n >> 1 & 1);
    }
    __device__ __forceinline__ void await_queries(int n) const {
        barrier_wait(shared + pq_full + 8 * (n % 3), n / 3 & 1);
    }

    // dP - Delta of tile t, in flight.
    __device__ __forceinline__ void issue_gradients(float (&dp)[32], int t) const {
        start_gradients(dp, t & 1);
        wgmma_fence();
        add_scores_product(dp, operand(v_offset, 0), dout_operand(slot));
        wgmma_commit();
    }

    __device__ __forceinline__ void load_t(u32 (&t_words)[2][8]) const {
        const u32 from = shared + t_offset + score_spill + (16 * lane.warp + lane.g) * score_pitch +
                         lane.warp * group_shift + 32 * lane.c;
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const Words4 words = load_shared16(from + 8 * half * score_pitch + 16 * i);
                t_words[half][4 * i] = words.x, t_words[half][4 * i + 1] = words.y;
                t_words[half][4 * i + 2] = words.z, t_words[half][4 * i + 3] = words.w;
            }
    }

    // The same by two warpgroups, each with one chunk of either table: group 0 with the lower one of PQ and the higher
    // one of PK. T's words come after the next barrier.
    __device__ __forceinline__ void split_position_scores(float (&dp)[32], int n, int t) {
        int warp = lane.warp, g = lane.g, c = lane.c;
        asm volatile("" : "+r"(warp), "+r"(g), "+r"(c));
        const int sum = warp + c, row = 16 * warp + 2 * g, column = 16 * sum + 2 * g;
        const u32 to = shared + score_spill + row * score_pitch + warp * group_shift + 2 * column - (group ? 0 : 128);
        const bool active = group ? sum <= 3 : sum >= 3;
        float x[32];
        ShiftedScores packed;
        if constexpr (p2c) {
            if (n == 0) await_queries(0);
            await_queries(n + 1);
            u32 k_paired[dim_steps][4];
            load_operand<block_rows, true>(k_paired, shared + k_offset, 16 * lane.warp, lane);
            chunk_product(x, k_paired, operand(pq_offset, (n + group) % 3));
            wgmma_wait<0>();
            settle(x);
            packed.pack<0>(x);
            packed.store<0, score_pitch>(to + t_offset, active);
        }
        if constexpr (c2p) {
            if (n == 0) await_keys(0);
            await_keys(n + 1);
            chunk_product(x, q_paired, operand(pk_offset, (n + 1 - group) & 1));
            wgmma_wait<0>();
            settle(x);
        }
        issue_gradients(dp, t);
        if constexpr (c2p) {
            packed.pack<1>(x);
            if (t + 1 < near_end) load_queries(t + 1);
            packed.store<1, score_pitch>(to + c_offset + 2, active);
        }
    }

    // Position scores of near tile n of the block into C and T, and T's words of this thread into t_words. dP comes
    // second.
    __device__ __forceinline__ void position_scores(float (&dp)[32], u32 (&t_words)[2][8], int n, int t) {
        int warp = lane.warp, g = lane.g, c = lane.c;
        asm volatile("" : "+r"(warp), "+r"(g), "+r"(c));
        const int sum = warp + c, row = 16 * warp + 2 * g, column = 16 * sum + 2 * g;
        const u32 c_store = shared + c_offset + score_spill + row * score_pitch + warp * group_shift + 2 * column;
        const u32 t_store = shared + t_offset + score_spill + row * score_pitch + warp * group_shift + 2 * column;
        float x[32];
        ShiftedScores packed;
        if constexpr (p2c) {
            if (n == 0) await_queries(0);
            await_queries(n + 1);
            chunk_product(x, k_paired, operand(pq_offset, n % 3));
            issue_gradients(dp, t);
            wgmma_wait<1>();
            settle(x);
            packed.pack<0>(x);
            chunk_product(x, k_paired, operand(pq_offset, (n + 1) % 3));
            packed.store<0, score_pitch>(t_store - 128, sum >= 3);
            wgmma_wait<0>();
            settle(x);
            packed.pack<0>(x);
        }
        if constexpr (c2p) {
            if (n == 0) await_keys(0);
            await_keys(n + 1);
            chunk_product(x, q_paired, operand(pk_offset, (n + 1) & 1));
            if constexpr (!p2c) issue_gradients(dp, t);
        }
        if constexpr (p2c) {
            packed.store<0, score_pitch>(t_store, sum <= 3);
            __syncwarp();
            load_t(t_words);
        }
        if constexpr (c2p) {
            wgmma_wait<0>();
            settle(x);
            packed.pack<1>(x);
            chunk_product(x, q_paired, operand(pk_offset, n & 1));
            packed.store<1, score_pitch>(c_store - 126, sum >= 3);
            wgmma_wait<0>();
            settle(x);
            packed.pack<1>(x);
            if (t + 1 < near_end) load_queries(t + 1);
            packed.store<1, score_pitch>(c_store + 2, sum <= 3);
        }
    }

    // Their sum as the scores' accumulators.
    __device__ __forceinline__ void read_scores(float (&s)[32], const u32 (&t_words)[2][8]) const {
        int row = 16 * (lane.lane >> 1 & 3) + (lane.lane & 1) + 2 * (lane.lane >> 4);
        asm volatile("" : "+r"(row));
        const u32 from = shared + c_offset + score_spill + row * score_pitch + (row >> 4) * group_shift +
                         2 * (16 * lane.warp + 8 * (lane.lane >> 3 & 1));
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            u32 c[4];
            if constexpr (c2p) load_matrices_transposed(c, from + 4 * x * score_pitch);
#pragma unroll
            for (int part = 0; part < 4; ++part) {
                const int n = 2 * x + (part >> 1), half = part & 1;
                sum_scores(s[4 * n + 2 * half], s[4 * n + 2 * half + 1], c[part], t_words[half][n]);
            }
        }
    }

    // Near dS as the layout orders it: rows of 8 queries, 0 4 1 5 2 6 3 7, of one key.
    __device__ __forceinline__ void store_near(const u32 (&words)[2][8]) {
        u16* tile = near;
        const int slots = near_slots(p);
        near += tile_rows * tile_rows;
        if (--near_left == 0) near -= slots * (tile_rows * tile_rows), near_left = slots;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (warpgroups == 2 && half != group) continue;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const u32* w = &words[half][4 * i];
                const Words4 row = {permute_bytes(w[0], w[2], 0x5410), permute_bytes(w[0], w[2], 0x7632),
                                    permute_bytes(w[1], w[3], 0x5410), permute_bytes(w[1], w[3], 0x7632)};
                *reinterpret_cast<Words4*>(tile + half * 512 + i * 64) = row;
            }
        }
    }

    __device__ __forceinline__ void near_tile_of(float (&dk)[out_dim / 2], float (&dv)[out_dim / 2], int t) {
        const int n = t - near_begin;
        float s[32], dp[32];
        u32 t_words[2][8];
        begin_tile(t);
        if (p2c && thread == 0 && t + 1 < near_end) bring_queries(n + 2);
        __syncwarp();
        if constexpr (warpgroups == 2)
            split_position_scores(dp, n, t);
        else
            position_scores(dp, t_words, n, t);
        __syncthreads();  // C is written by all warps; a warp's scores wander into the rows of its neighbour's T
        if (c2p && thread == 32 && t + 1 < near_end) bring_keys(n + 2);
        __syncwarp();
        if constexpr (p2c && warpgroups == 2) load_t(t_words);
        float lse[16];
        load_lse(lse, t & 1);
        read_scores(s, t_words);
        wgmma_fence();
        add_scores_product(s, operand(k_offset, 0), q_operand(slot));
        wgmma_commit();
        wgmma_wait<0>();
        settle(s);
        u32 ds[4][4];
        attend<dtype == dtype_f16>(dk, dv, s, dp, lse, ds, t);  // of bf16 the rounding of P is not what dV's errors are
        wgmma_fence();
        add_rows_product(dk, ds, own_columns(q_operand(slot)));
        wgmma_commit();
        u32 words[2][8];
#pragma unroll
        for (int i = 0; i < 8; ++i) words[0][i] = ds[i >> 1][2 * (i & 1)], words[1][i] = ds[i >> 1][2 * (i & 1) + 1];
        if constexpr (p2c) {
            const Shear shear{shared + shear_offset + (4 * group + lane.warp) * shear_bytes, shared + zeros_offset,
                              lane};
            shear.clear<16>();
            __syncwarp();
            shear.store<16>(words[0], lane.g);
            shear.store<16>(words[1], lane.g + 8);
            __syncwarp();
            u32 low[4][4], high[4][4];
            shear.load(low, 0, lane.g);
            shear.load(high, 1, lane.g);
            wgmma_fence();
            add_rows_product(dk, low, own_columns(operand(pq_offset, n % 3)));
            add_rows_product(dk, high, own_columns(operand(pq_offset, (n + 1) % 3)));
            wgmma_commit();
        }
        store_near(words);
        wgmma_wait<0>();
        settle(dk);
        settle(dv);
        slot = after(slot, true);
    }

    __device__ __forceinline__ void near_tiles(float (&dk)[out_dim / 2], float (&dv)[out_dim / 2]) {
        __syncthreads();  // PK lies in a slot of far tiles
        if (c2p && thread == 32) bring_keys(0), bring_keys(1);
        __syncwarp();
        load_queries(near_begin);
        near = near_tile(p, block.base, near_begin, block.tile) + (2 * lane.warp * 8 + 2 * lane.c) * 64 + lane.g * 8;
        near_left = near_slots(p) - near_begin % near_slots(p);
#pragma unroll 1
        for (int t = near_begin; t < near_end; ++t) near_tile_of(dk, dv, t);
    }
};
