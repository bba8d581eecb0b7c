// The far tiles of 64 queries: P and dS computed again, dQ, and what they add to the gradients of the tables' ends.
// needs: sm90_query_tiles.cuh, disentangled_attention/dropout.h

struct QueryFar : QueryTiles {
    using QueryTiles::QueryTiles;

    __device__ __forceinline__ void copy_values(int t, int stage) {
        v_rows.copy(shared + v_offset + stage * operand_bytes, p.v_row, block.length - t * block_rows, thread);
    }

    // The only stage of V, when everybody is done with it.
    __device__ __forceinline__ void bring_values(int t) {
        if constexpr (tiled_keys) {
            if (thread == 0)
                copy_operand(shared + v_offset, record(p, block.base + t) + record_keys(p) + operand_bytes,
                             shared + v_full);
            __syncwarp();
        } else {
            copy_values(t, 0);
            copy_async_commit();
        }
    }

    __device__ __forceinline__ void prefetch_far(int t, int slot, int stage) {
        if constexpr (tiled_keys) {
            if (thread == 0) {
                const u32 full = shared + k_full + 8 * slot;
                const unsigned char* from = record(p, block.base + t);
                barrier_expect_bytes(full, v_stages * operand_bytes + 16);
                copy_bulk(shared + k_offset + slot * operand_bytes, from + record_keys(p), operand_bytes, full);
                if constexpr (v_stages == 2)
                    copy_bulk(shared + v_offset + stage * operand_bytes, from + record_keys(p) + operand_bytes,
                              operand_bytes, full);
                copy_bulk(shared + dead_offset + 16 * stage, from + record_statistics + statistics_bytes, 16, full);
                barrier_arrive(full);
            }
            __syncwarp();
            return;
        }
        copy_keys(t, slot);
        if constexpr (v_stages == 2) copy_values(t, stage);
        copy_async_commit();
        const int j = t * block_rows + thread;
        note_dead = j >= block.length;
        if constexpr (mask)
            if (thread < block_rows && j < block.length) note_dead = !p.mask[block.batch * p.mask_batch + j];
    }

    __device__ __forceinline__ void hide(float (&s)[32], int stage) const {
        const u32* words = reinterpret_cast<const u32*>(memory + dead_offset) + 4 * stage + 2;
        if ((words[0] | words[1]) == 0) return;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const u32 word = words[i] >> (2 * lane.c);
#pragma unroll
            for (int n = 0; n < 4; ++n)
#pragma unroll
                for (int part = 0; part < 4; ++part) {
                    float& score = s[16 * i + 4 * n + part];
                    score = word >> (8 * n + (part & 1)) & 1 ? -__int_as_float(0x7f800000) : score;
                }
        }
    }

    // Scores and dP to dS = P (dP - Delta) as an operand; its sums over keys.
    __device__ __forceinline__ void score_gradients(float (&s)[32], const float (&dp)[32], u32 (&a)[4][4],
                                                    float (&sum)[2], u32 dropped) const {
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float ds[2];
#pragma unroll
                for (int b = 0; b < 2; ++b) {
                    const int at = 4 * n + 2 * half + b;
                    float x = dp[at];
                    if constexpr (dropout) x = dropped >> (16 * b + 8 * half + n) & 1 ? 0.0f : x * p.dropout.scale;
                    ds[b] = s[at] * (x - delta[half]);
                    if constexpr (c2p) sum[half] += ds[b];
                }
                a[n >> 1][2 * (n & 1) + half] = pack2<dtype>(ds[0], ds[1]);
            }
    }

    // A far tile, up to dS; `n` counts the tiles of this end. dQ of the tile before runs under its exponentials.
    template <bool first>
    __device__ __forceinline__ void far_tile(float (&dq)[head_dim / 2], u32 (&ds)[4][4], float (&sum)[2], int& slot,
                                             int n, int t, int end) {
        const int stage = n & 1, behind = slot;
        float s[32], dp[32];
        if constexpr (!first) slot = after(slot);
        if constexpr (!tiled_keys) {
            const u32 bits = __ballot_sync(nothing, note_dead);
            if (thread < block_rows && lane.lane == 0)
                reinterpret_cast<u32*>(memory + dead_offset)[4 * stage + 2 + lane.warp] = bits;
        }
        if (first || !tiled_keys) {
            copy_async_wait<0>();
            async_proxy_fence();
        }
        __syncthreads();
        if (t + 1 < end) prefetch_far(t + 1, after(slot), stage ^ 1);
        if constexpr (tiled_keys) {
            barrier_wait(shared + k_full + 8 * slot, phases >> slot & 1);
            phases ^= 1u << slot;
        }
        wgmma_fence();
        scores_product(s, operand(q_offset, 0), operand(k_offset, slot));
        wgmma_commit();
        if constexpr (tiled_keys && v_stages == 1) {
            barrier_wait(shared + v_full, v_phase);
            v_phase ^= 1;
            wgmma_fence();
        }
        if constexpr (!first) add_rows_product(dq, ds, operand(k_offset, behind));
        scores_product(dp, operand(dout_offset, 0), operand(v_offset, v_stages == 2 ? stage : 0));
        wgmma_commit();
        u32 dropped = 0;
        if constexpr (dropout)
            dropped = dropped_patch(p.dropout, unsigned(block.batch * p.heads + block.head),
                                    (block.tile * 4 + lane.warp) * 8 + row[0], t * 4 + lane.c);
        wgmma_wait<1>();
        settle(s);
        hide(s, stage);
#pragma unroll
        for (int i = 0; i < 32; ++i) s[i] = exp2_approx(s[i] * p.scale_log2 - lse[i >> 1 & 1]);
        wgmma_wait<0>();
        settle(dp);
        settle(dq);
        if constexpr (v_stages == 1) {
            __syncthreads();
            if (t + 1 < end) bring_values(t + 1);
        }
        score_gradients(s, dp, ds, sum, dropped);
    }
    static __device__ __forceinline__ int after(int slot) {
        return slot == 2 ? 0 : slot + 1;
    }

    // A tile in accumulator runs to rows in the order of near tiles.
    __device__ __forceinline__ void copy_runs(u32 to, const unsigned char* from) const {
#pragma unroll 2
        for (int i = 0; i < block_rows * row_chunks / threads; ++i) {
            const int row = (thread + i * threads) / row_chunks, chunk = thread % row_chunks;
            copy_async16(chunk_address<block_rows>(to, near_position(row), chunk),
                         from + chunk_address<block_rows>(0, run_position(row), chunk), true);
        }
    }

    // The far tiles [begin, end) of one end of the band, without bias all tiles.
    __device__ __forceinline__ void far_tiles(float (&dq)[head_dim / 2], float (&sum)[2], int begin, int end,
                                              int which) {
        const int i0 = block.tile * block_rows, left = block.length - i0;
        __syncthreads();
        const u16* rows = q + i0 * p.q_row;
        s64 stride = p.q_row;
        if constexpr (p2c && !tiled) rows = shifted_tile(p, which, block.base + block.tile), stride = head_dim;
        TileRows<order_near> own;
        own.aim(rows, stride, thread);
        if constexpr (p2c && tiled)
            copy_runs(shared + q_offset, record(p, block.base + block.tile) + record_shifted + which * operand_bytes);
        else
            own.copy(shared + q_offset, stride, left, thread);
        own.aim(block.rows(p.dout, p.dout_batch, p.dout_row, p.dout_head) + i0 * p.dout_row, p.dout_row, thread);
        own.copy(shared + dout_offset, p.dout_row, left, thread);
        copy_async_commit();
        k_rows.aim(k + begin * block_rows * p.k_row, p.k_row, thread);
        v_rows.aim(v + begin * block_rows * p.v_row, p.v_row, thread);
        prefetch_far(begin, 0, 0);
        if constexpr (v_stages == 1) bring_values(begin);
        const RowStatistics* plane = statistics_plane(p, has_bias ? which : -1) + block.row0 + i0 + 16 * lane.warp;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float2 statistics = {__int_as_float(0x7f800000), 0.0f};
            if (!hidden[half]) statistics = *reinterpret_cast<const float2*>(plane + row[half]);
            lse[half] = statistics.x, delta[half] = statistics.y;
        }
        u32 ds[4][4];
        int slot = 0;
        far_tile<true>(dq, ds, sum, slot, 0, begin, end);
#pragma unroll 1
        for (int t = begin + 1; t < end; ++t) far_tile<false>(dq, ds, sum, slot, t - begin, t, end);
        wgmma_fence();
        add_rows_product(dq, ds, operand(k_offset, slot));
        wgmma_commit();
        wgmma_wait<0>();
        settle(dq);
    }

    // After the far tiles of an end: their share of both tables' gradients. dQ holds the sum of dS k of all far tiles
    // so far, `before` what its column sum was at the last call.
    __device__ __forceinline__ void store_ends(const float (&dq)[head_dim / 2], float (&sum)[2], float& before,
                                               int which) const {
        float* sums = reinterpret_cast<float*>(memory + shear_offset);
        __syncthreads();
        if constexpr (c2p) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                sum[half] += __shfl_xor_sync(nothing, sum[half], 1);
                sum[half] += __shfl_xor_sync(nothing, sum[half], 2);
            }
            const int i0 = block.tile * block_rows + 16 * lane.warp;
#pragma unroll 1
            for (int column0 = 0; column0 < head_dim; column0 += 64) {
                const int column = column0 + 2 * lane.lane % head_dim;
                float low = 0.0f, high = 0.0f;
#pragma unroll 4
                for (int r = 0; r < 16; ++r) {
                    const float factor = __shfl_sync(nothing, r < 8 ? sum[0] : sum[1], 4 * near_position(r & 7));
                    if (i0 + r < block.length) {
                        const u32 pair = *reinterpret_cast<const u32*>(q + (i0 + r) * p.q_row + column);
                        low += factor * low_of<dtype>(pair), high += factor * high_of<dtype>(pair);
                    }
                }
                if (2 * lane.lane < head_dim) {
                    sums[(lane.warp * 2 + table_key) * head_dim + column] = low;
                    sums[(lane.warp * 2 + table_key) * head_dim + column + 1] = high;
                }
            }
        }
        if constexpr (p2c) {
#pragma unroll
            for (int n = 0; n < head_dim / 8; ++n)
#pragma unroll
                for (int b = 0; b < 2; ++b) {
                    float x = dq[4 * n + b] + dq[4 * n + 2 + b];
                    x += __shfl_xor_sync(nothing, x, 4);
                    x += __shfl_xor_sync(nothing, x, 8);
                    x += __shfl_xor_sync(nothing, x, 16);
                    if (lane.g == 0) sums[(lane.warp * 2 + table_query) * head_dim + 8 * n + 2 * lane.c + b] = x;
                }
        }
        __syncthreads();
        if (thread < head_dim) {
            float total[2] = {0.0f, 0.0f};
#pragma unroll
            for (int warp = 0; warp < 4; ++warp) {
                if constexpr (c2p) total[table_key] += sums[(warp * 2 + table_key) * head_dim + thread];
                if constexpr (p2c) total[table_query] += sums[(warp * 2 + table_query) * head_dim + thread];
            }
            const s64 tile = block.base + block.tile;
            if constexpr (c2p) end_vector(p, table_key, tile, which)[thread] = total[table_key];
            if constexpr (p2c) {
                end_vector(p, table_query, tile, which)[thread] = total[table_query] - before;
                before = total[table_query];
            }
        }
    }

    // dQ += row sums of dS times PK_end.
    __device__ __forceinline__ void add_end(float (&dq)[head_dim / 2], const float (&sum)[2], int which) const {
        const s64 slot = p.slots[which == end_high ? 2 * p.band : 0];
        const u16* key = static_cast<const u16*>(p.position_key) + slot * p.position_key_row +
                         block.head * p.position_key_head + 2 * lane.c;
#pragma unroll
        for (int n = 0; n < head_dim / 8; ++n) {
            const u32 pair = *reinterpret_cast<const u32*>(key + 8 * n);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                dq[4 * n + 2 * half] += sum[half] * low_of<dtype>(pair);
                dq[4 * n + 2 * half + 1] += sum[half] * high_of<dtype>(pair);
            }
        }
    }
};
