// The near tiles of 64 queries, whose dS the KV kernel left.
// needs: sm90_query_far.cuh

struct QueryNear : QueryFar {
    using QueryFar::QueryFar;

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
        barrier_expect_bytes(full, tile_bytes_16 + (tiled_keys ? operand_bytes : 0));
        if constexpr (tiled_keys)
            copy_bulk(shared + k_offset + stage * operand_bytes, record(p, block.base + t) + record_keys(p),
                      operand_bytes, full);
        for (int i = 0; i < 8; ++i) copy_bulk(to + i * near_pitch, from + i * 512, 1024, full);
        barrier_arrive(full);
    }

    __device__ __forceinline__ void near_tile_of(float (&dq)[head_dim / 2], int t) {
        const int n = t - near_begin, stage = n & 1;
        if constexpr (!tiled_keys) {
            copy_async_wait<0>();
            async_proxy_fence();
        }
        __syncthreads();
        if (t + 1 < near_end) {
            if constexpr (!tiled_keys) {
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
        u32 a[4][4];
        const u32 matrices =
            ds + (lane.lane >> 4) * near_pitch + (2 * lane.warp + (lane.lane >> 3 & 1)) * 128 + (lane.lane & 7) * 16;
#pragma unroll
        for (int step = 0; step < 4; ++step) load_matrices_transposed(a[step], matrices + 2 * step * near_pitch);
        wgmma_fence();
        add_rows_product(dq, a, operand(k_offset, stage));
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
        if constexpr (!tiled_keys) {
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
};
