// 64 queries of a warpgroup for dQ: what does not depend on how key tiles come. Rows of accumulators are queries in the
// order of the near tiles (order_of), so that these are A operands as they come.
// needs: sm90_backward.cuh, disentangled_attention/dropout.h

constexpr int near_pitch = 1024 + 16;  // bytes of 8 keys; keeps ldmatrix free of bank conflicts
constexpr int near_bytes = 8 * near_pitch;
constexpr u32 near_high = descriptor_high(128, 0);
constexpr int sums_bytes = 4 * 2 * head_dim * 4;

struct QueryRows {
    const BackwardParams& p;
    unsigned char* memory;
    u32 shared;
    int thread;
    Lane lane;
    Block block;
    int near_begin, near_end, tiles;  // of key tiles: [0, near_begin) high end, [near_end, tiles) low end
    const u16* q;
    u32 own;      // address of [Q + PQ_end | dO][64][head_dim]
    u32 sheared;  // of [4 warps][shear_bytes]; in far tiles sums of warps [4][2 tables][head_dim] fp32
    u32 zeros;    // of 8 zero words
    int row[2];   // this thread's rows of the warp's 16
    float lse[2], delta[2];
    bool hidden[2];  // masked or beyond the end

    __device__ __forceinline__ QueryRows(const BackwardParams& params, unsigned char* block_memory, u32 address,
                                         int thread_number, const Block& of)
        : p(params), memory(block_memory), shared(address), thread(thread_number), lane(thread_number), block(of) {
        lane.warp = int(__reduce_max_sync(nothing, u32(lane.warp)));
        tiles = tiles_of(block.length);
        const int width = near_width(p);
        near_begin = has_bias ? min(max(block.tile - width, 0), tiles) : 0;
        near_end = has_bias ? min(block.tile + width + 1, tiles) : 0;
        q = block.rows(p.q, p.q_batch, p.q_row, p.q_head);
        row[0] = order_of(lane.g), row[1] = 8 + row[0];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = block.tile * block_rows + 16 * lane.warp + row[half];
            hidden[half] = i >= block.length;
            if constexpr (mask) hidden[half] = hidden[half] || !p.mask[block.batch * p.mask_batch + i];
        }
    }

    __device__ __forceinline__ u32 own_operand(int number) const {
        return (own >> 4) + number * (operand_bytes / 16);
    }

    // What far tiles of an end need of this block's rows, on its way (cp.async).
    __device__ __forceinline__ void load_own(int which) {
        const int i0 = block.tile * block_rows, left = block.length - i0;
        const u16* rows = q + i0 * p.q_row;
        s64 stride = p.q_row;
        if constexpr (p2c && !tiled) rows = shifted_tile(p, which, block.base + block.tile), stride = head_dim;
        TileRows<order_near> source;
        source.aim(rows, stride, thread);
        if constexpr (p2c && tiled)
            copy_runs(own, record(p, block.base + block.tile) + record_shifted + which * operand_bytes);
        else
            source.copy(own, stride, left, thread);
        source.aim(block.rows(p.dout, p.dout_batch, p.dout_row, p.dout_head) + i0 * p.dout_row, p.dout_row, thread);
        source.copy(own + operand_bytes, p.dout_row, left, thread);
        copy_async_commit();
        const RowStatistics* plane = statistics_plane(p, has_bias ? which : -1) + block.row0 + i0 + 16 * lane.warp;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float2 statistics = {__int_as_float(0x7f800000), 0.0f};
            if (!hidden[half]) statistics = *reinterpret_cast<const float2*>(plane + row[half]);
            lse[half] = statistics.x, delta[half] = statistics.y;
        }
    }

    // `words`: keys that nothing attends.
    __device__ __forceinline__ void hide(float (&s)[32], const u32* words) const {
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

    // dS of a far tile whose scores are in flight, and behind them dQ of the tile before and dP.
    __device__ __forceinline__ void attend(float (&dq)[head_dim / 2], float (&s)[32], float (&dp)[32], u32 (&ds)[4][4],
                                           float (&sum)[2], int t, const u32* dead) const {
        u32 dropped = 0;
        if constexpr (dropout)
            dropped = dropped_patch(p.dropout, unsigned(block.batch * p.heads + block.head),
                                    (block.tile * 4 + lane.warp) * 8 + row[0], t * 4 + lane.c);
        wgmma_wait<1>();
        settle(s);
        hide(s, dead);
#pragma unroll
        for (int i = 0; i < 32; ++i) s[i] = exp2_approx(s[i] * p.scale_log2 - lse[i >> 1 & 1]);
        wgmma_wait<0>();
        settle(dp);
        settle(dq);
        score_gradients(s, dp, ds, sum, dropped);
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

    // After the far tiles of an end: their share of both tables' gradients. dQ holds the sum of dS k of all far tiles
    // so far, `before` what its column sum was at the last call.
    __device__ __forceinline__ void store_ends(const float (&dq)[head_dim / 2], float (&sum)[2], float& before,
                                               int which) const {
        float* sums = reinterpret_cast<float*>(memory + (sheared - shared));
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

    // dQ += dS K of a near tile; operands in units of 16 bytes.
    __device__ __forceinline__ void issue_near(float (&dq)[head_dim / 2], u32 ds, u32 keys) const {
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step)
            wgmma_shared<dtype, near_high, operand_high, true, true, true>(
                dq, descriptor_low((ds + step * 2 * near_pitch) >> 4, near_pitch),
                value_operand<block_rows>(keys, step));
        wgmma_commit();
    }

    // Operands of dQ's position term: the sheared dS of a near tile, by chunks of 64 distances from the highest.
    __device__ __forceinline__ void shear_near(u32 (&low)[4][4], u32 (&high)[4][4], u32 ds) const {
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
        const Shear shear{sheared + lane.warp * shear_bytes, zeros, lane};
        shear.store<15>(words[0], row[0]);
        shear.store<15>(words[1], row[1]);
        __syncwarp();
        shear.load(low, 0, row[0]);
        shear.load(high, 1, row[0]);
    }

    // The sheared rows' zeros lie in the same place in every tile.
    __device__ __forceinline__ void clear_sheared() const {
        if constexpr (c2p) Shear{sheared + lane.warp * shear_bytes, zeros, lane}.clear<15>();
    }

    __device__ __forceinline__ void store(const float (&dq)[head_dim / 2]) const {
        const int i0 = block.tile * block_rows;
        u16* to = const_cast<u16*>(block.rows(p.dq, p.dq_batch, p.dq_row, p.dq_head)) + i0 * p.dq_row;
        store_rows(dq, p.scale, memory, shared, own - shared, lane, row, to, p.dq_row, block.length - i0);
    }
};
