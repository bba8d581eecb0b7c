// dQ of 64 queries. Far tiles first, P and dS recomputed; then the near tiles, whose dS the KV kernel left. Rows of
// accumulators are queries in the order of the near tiles (order_of), so that these are A operands as they come.
//
// Dynamic shared memory, in this order (tiles swizzled for wgmma):
//   far: V   [2 stages][64][head_dim]            near: dS  [2 stages][8 groups of 8 keys][near_pitch bytes]
//   K        [2 slots][64][head_dim]
//   far: a third slot of K, Q + PQ_end, dO [64][head_dim]    near: PK [3 chunks][64][head_dim]
//   sheared dS [4 warps][shear_bytes]; in far tiles sums of warps [4][2 tables][head_dim] fp32
//   dead     [2 stages][4] u32: keys that nothing attends in the last 64 bits
//   barriers
// needs: sm90_backward.cuh, disentangled_attention/dropout.h

constexpr int near_pitch = 1024 + 16;  // keeps ldmatrix free of bank conflicts
constexpr int near_bytes = 8 * near_pitch;

constexpr int v_offset = 0;
constexpr int ds_offset = v_offset;
constexpr int first_bytes = !has_bias || 2 * operand_bytes > 2 * near_bytes ? 2 * operand_bytes : 2 * near_bytes;
constexpr int k_offset = v_offset + (first_bytes + 1023) / 1024 * 1024;
constexpr int q_offset = k_offset + 3 * operand_bytes;
constexpr int dout_offset = q_offset + operand_bytes;
constexpr int pk_offset = k_offset + 2 * operand_bytes;
constexpr int shear_offset = pk_offset + 3 * operand_bytes;
constexpr int sums_bytes = 4 * 2 * head_dim * 4;
constexpr int dead_offset = shear_offset + (c2p ? 4 * shear_bytes : has_bias ? sums_bytes : 0);
constexpr int barrier_offset = dead_offset + 32;
constexpr int ds_full = barrier_offset, pk_full = ds_full + 16, k_full = pk_full + 24, zeros_offset = k_full + 24,
              shared_end = zeros_offset + 32;

constexpr u32 near_high = descriptor_high(128, 0);

struct QueryBlock {
    const BackwardParams& p;
    unsigned char* memory;
    u32 shared;
    int thread;
    Lane lane;
    Block block;
    int near_begin, near_end, tiles;  // of key tiles: [0, near_begin) high end, [near_end, tiles) low end
    const u16 *q, *k, *v;
    TileRows<order_natural> k_rows, v_rows;  // of the next tile
    bool note_dead;                          // of the next tile
    u32 phases = 0;                          // parities of the barriers of K's slots
    int row[2];                              // this thread's rows of the warp's 16
    float lse[2], delta[2];
    bool hidden[2];  // masked or beyond the end

    __device__ __forceinline__ QueryBlock(const BackwardParams& params, unsigned char* block_memory, u32 address,
                                          int thread_number, const Block& of)
        : p(params), memory(block_memory), shared(address), thread(thread_number), lane(thread_number), block(of) {
        lane.warp = int(__reduce_max_sync(nothing, u32(lane.warp)));
        tiles = tiles_of(block.length);
        const int width = near_width(p);
        near_begin = has_bias ? min(max(block.tile - width, 0), tiles) : 0;
        near_end = has_bias ? min(block.tile + width + 1, tiles) : 0;
        q = block.rows(p.q, p.q_batch, p.q_row, p.q_head);
        k = block.rows(p.k, p.k_batch, p.k_row, p.k_head);
        v = block.rows(p.v, p.v_batch, p.v_row, p.v_head);
        row[0] = order_of(lane.g), row[1] = 8 + row[0];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = block.tile * block_rows + 16 * lane.warp + row[half];
            hidden[half] = i >= block.length;
            if constexpr (mask) hidden[half] = hidden[half] || !p.mask[block.batch * p.mask_batch + i];
        }
    }

    __device__ __forceinline__ u32 operand(int offset, int number) const {
        return (shared >> 4) + offset / 16 + number * (operand_bytes / 16);
    }

    __device__ __forceinline__ void copy_keys(int t, int slot) {
        k_rows.copy(shared + k_offset + slot * operand_bytes, p.k_row, block.length - t * block_rows, thread);
    }

    __device__ __forceinline__ void prefetch_far(int t, int slot, int stage) {
        if constexpr (tiled) {
            if (thread == 0) {
                const u32 full = shared + k_full + 8 * slot;
                const unsigned char* from = record(p, block.base + t);
                barrier_expect_bytes(full, 2 * operand_bytes + 16);
                copy_bulk(shared + k_offset + slot * operand_bytes, from + record_k, operand_bytes, full);
                copy_bulk(shared + v_offset + stage * operand_bytes, from + record_v, operand_bytes, full);
                copy_bulk(shared + dead_offset + 16 * stage, from + record_statistics + statistics_bytes, 16, full);
                barrier_arrive(full);
            }
            __syncwarp();
            return;
        }
        copy_keys(t, slot);
        v_rows.copy(shared + v_offset + stage * operand_bytes, p.v_row, block.length - t * block_rows, thread);
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
        if constexpr (!tiled) {
            const u32 bits = __ballot_sync(nothing, note_dead);
            if (thread < block_rows && lane.lane == 0)
                reinterpret_cast<u32*>(memory + dead_offset)[4 * stage + 2 + lane.warp] = bits;
        }
        if (first || !tiled) {
            copy_async_wait<0>();
            async_proxy_fence();
        }
        __syncthreads();
        if (t + 1 < end) prefetch_far(t + 1, after(slot), stage ^ 1);
        if constexpr (tiled) {
            barrier_wait(shared + k_full + 8 * slot, phases >> slot & 1);
            phases ^= 1u << slot;
        }
        wgmma_fence();
        scores_product(s, operand(q_offset, 0), operand(k_offset, slot));
        wgmma_commit();
        if constexpr (!first) add_rows_product(dq, ds, operand(k_offset, behind));
        scores_product(dp, operand(dout_offset, 0), operand(v_offset, stage));
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
        score_gradients(s, dp, ds, sum, dropped);
    }
    static __device__ __forceinline__ int after(int slot) {
        return slot == 2 ? 0 : slot + 1;
    }

    // A tile in accumulator runs to rows in the order of near tiles.
    __device__ __forceinline__ void copy_runs(u32 to, const unsigned char* from) const {
#pragma unroll
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
            const int i0 = block.tile * block_rows + 16 * lane.warp, column = 2 * lane.lane % head_dim;
            float low = 0.0f, high = 0.0f;
#pragma unroll
            for (int r = 0; r < 16; ++r) {
                const float factor = __shfl_sync(nothing, sum[r >> 3], 4 * near_position(r & 7));
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

    // Chunks n and n + 1 lie under near tile n, in falling order of distance.
    __device__ __forceinline__ void bring_chunk(int n) const {
        const u32 slot = n % 3;
        copy_operand(shared + pk_offset + slot * operand_bytes,
                     PositionTables(p, block.head).chunk(block.tile - near_begin - n, expanded_key),
                     shared + pk_full + 8 * slot);
    }
    __device__ __forceinline__ void bring_near(int t, int stage) const {
        const u32 full = shared + ds_full + 8 * stage, to = shared + ds_offset + stage * near_bytes;
        const u16* from = near_tile(p, block.base, block.tile, t);
        barrier_expect_bytes(full, tile_bytes_16 + (tiled ? operand_bytes : 0));
        if constexpr (tiled)
            copy_bulk(shared + k_offset + stage * operand_bytes, record(p, block.base + t) + record_k, operand_bytes,
                      full);
        for (int i = 0; i < 8; ++i) copy_bulk(to + i * near_pitch, from + i * 512, 1024, full);
        barrier_arrive(full);
    }

    __device__ __forceinline__ void near_tile_of(float (&dq)[head_dim / 2], int t) {
        const int n = t - near_begin, stage = n & 1;
        if constexpr (!tiled) {
            copy_async_wait<0>();
            async_proxy_fence();
        }
        __syncthreads();
        if (t + 1 < near_end) {
            if constexpr (!tiled) {
                copy_keys(t + 1, stage ^ 1);
                copy_async_commit();
            }
            if (thread == 0) {
                bring_near(t + 1, stage ^ 1);
                if constexpr (c2p) bring_chunk(n + 2);
            }
            __syncwarp();
        }
        barrier_wait(shared + ds_full + 8 * stage, n >> 1 & 1);
        const u32 ds = shared + ds_offset + stage * near_bytes;
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step)
            wgmma_shared<dtype, near_high, operand_high, true, true, true>(
                dq, descriptor_low((ds + step * 2 * near_pitch) >> 4, near_pitch),
                value_operand<block_rows>(operand(k_offset, stage), step));
        wgmma_commit();
        if constexpr (c2p) {
            u32 words[2][8];
            int number = lane.lane;
            asm volatile("" : "+r"(number));
            const u32 from = ds + 2 * (number >> 1 & 3) * near_pitch + (2 * lane.warp + (number >> 3 & 1)) * 128 +
                             (number >> 4) * 32 + (number & 1) * 16;
#pragma unroll
            for (int x = 0; x < 4; ++x) {
                u32 part[4];
                load_matrices_transposed(part, from + (x >> 1) * near_pitch + (x & 1) * 64);
                words[0][2 * x] = part[0], words[1][2 * x] = part[1];
                words[0][2 * x + 1] = part[2], words[1][2 * x + 1] = part[3];
            }
            const Shear shear{shared + shear_offset + lane.warp * shear_bytes, shared + zeros_offset, lane};
            shear.store<15>(words[0], row[0]);
            shear.store<15>(words[1], row[1]);
            __syncwarp();
            u32 low[4][4], high[4][4];
            shear.load(low, 0, row[0]);
            shear.load(high, 1, row[0]);
            if (n == 0) barrier_wait(shared + pk_full, 0);
            barrier_wait(shared + pk_full + 8 * ((n + 1) % 3), (n + 1) / 3 & 1);
            wgmma_fence();
            add_rows_product(dq, low, operand(pk_offset, n % 3));
            add_rows_product(dq, high, operand(pk_offset, (n + 1) % 3));
            wgmma_commit();
        }
        wgmma_wait<0>();
        settle(dq);
    }

    __device__ __forceinline__ void near_tiles(float (&dq)[head_dim / 2]) {
        __syncthreads();
        if constexpr (!tiled) {
            k_rows.aim(k + near_begin * block_rows * p.k_row, p.k_row, thread);
            copy_keys(near_begin, 0);
            copy_async_commit();
        }
        if (thread == 0) {
            bring_near(near_begin, 0);
            if constexpr (c2p) bring_chunk(0), bring_chunk(1);
        }
        __syncwarp();
        // The sheared rows' zeros lie in the same place in every tile.
        if constexpr (c2p) Shear{shared + shear_offset + lane.warp * shear_bytes, 0, lane}.clear<15>();
#pragma unroll 1
        for (int t = near_begin; t < near_end; ++t) near_tile_of(dq, t);
    }

    __device__ __forceinline__ void run() {
        if (thread == 0) {
            for (int i = 0; i < 8; ++i) barrier_init(shared + ds_full + 8 * i, 1);
            barrier_init_fence();
            store_shared16(shared + zeros_offset, {0, 0, 0, 0});
            store_shared16(shared + zeros_offset + 16, {0, 0, 0, 0});
        }
        float dq[head_dim / 2], sum[2][2] = {}, before = 0.0f;
#pragma unroll
        for (int i = 0; i < head_dim / 2; ++i) dq[i] = 0.0f;
        if constexpr (has_bias) {
            if (has_far_tiles(p)) {
#pragma unroll 1
                for (int which = 0; which < 2; ++which) {
                    const int begin = which == end_high ? 0 : near_end, end = which == end_high ? near_begin : tiles;
                    float sums[2] = {0.0f, 0.0f};
                    if (begin < end) far_tiles(dq, sums, begin, end, which);
                    store_ends(dq, sums, before, which);
#pragma unroll
                    for (int half = 0; half < 2; ++half)
                        if (which == end_high)
                            sum[end_high][half] = sums[half];
                        else
                            sum[end_low][half] = sums[half];
                }
            }
            near_tiles(dq);
            if (c2p && has_far_tiles(p)) {
                add_end(dq, sum[end_high], end_high);
                add_end(dq, sum[end_low], end_low);
            }
        } else {
            far_tiles(dq, sum[0], 0, tiles, -1);
        }
        __syncthreads();
        const int i0 = block.tile * block_rows;
        u16* to = const_cast<u16*>(block.rows(p.dq, p.dq_batch, p.dq_row, p.dq_head)) + i0 * p.dq_row;
        store_rows(dq, p.scale, memory, shared, k_offset, lane, row, to, p.dq_row, block.length - i0);
    }
};
