// dQ of 64 queries, a block of one warpgroup. Far tiles first, P and dS recomputed; then the near tiles, whose dS the
// KV kernel left.
//
// Dynamic shared memory, in this order (tiles swizzled for wgmma):
//   far: V   [2 stages][64][head_dim]            near: dS  [2 stages][8 groups of 8 keys][near_pitch bytes]
//   K        [2 slots][64][head_dim]
//   far: a third slot of K, Q + PQ_end, dO [64][head_dim]    near: PK [3 chunks][64][head_dim]
//   sheared dS [4 warps][shear_bytes]; in far tiles sums of warps [4][2 tables][head_dim] fp32
//   dead     [2 stages][4] u32: keys that nothing attends in the last 64 bits
//   barriers
// needs: sm90_query_rows.cuh

constexpr int v_offset = 0;
constexpr int ds_offset = v_offset;
constexpr int first_bytes = !has_bias || 2 * operand_bytes > 2 * near_bytes ? 2 * operand_bytes : 2 * near_bytes;
constexpr int k_offset = v_offset + (first_bytes + 1023) / 1024 * 1024;
constexpr int q_offset = k_offset + 3 * operand_bytes;
constexpr int pk_offset = k_offset + 2 * operand_bytes;
constexpr int shear_offset = pk_offset + 3 * operand_bytes;
constexpr int dead_offset = shear_offset + (c2p ? 4 * shear_bytes : has_bias ? sums_bytes : 0);
constexpr int barrier_offset = dead_offset + 32;
constexpr int ds_full = barrier_offset, pk_full = ds_full + 16, k_full = pk_full + 24, zeros_offset = k_full + 24,
              shared_end = zeros_offset + 32;

struct QueryBlock : QueryRows {
    const u16 *k, *v;
    TileRows<order_natural> k_rows, v_rows;  // of the next tile
    bool note_dead;                          // of the next tile
    u32 phases = 0;                          // parities of the barriers of K's slots

    __device__ __forceinline__ QueryBlock(const BackwardParams& params, unsigned char* block_memory, u32 address,
                                          int thread_number, const Block& of)
        : QueryRows(params, block_memory, address, thread_number, of) {
        own = shared + q_offset, sheared = shared + shear_offset, zeros = shared + zeros_offset;
        k = block.rows(p.k, p.k_batch, p.k_row, p.k_head);
        v = block.rows(p.v, p.v_batch, p.v_row, p.v_head);
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
        scores_product(s, own_operand(0), operand(k_offset, slot));
        wgmma_commit();
        if constexpr (!first) add_rows_product(dq, ds, operand(k_offset, behind));
        scores_product(dp, own_operand(1), operand(v_offset, stage));
        wgmma_commit();
        attend(dq, s, dp, ds, sum, t, reinterpret_cast<const u32*>(memory + dead_offset) + 4 * stage + 2);
    }
    static __device__ __forceinline__ int after(int slot) { return slot == 2 ? 0 : slot + 1; }

    // The far tiles [begin, end) of one end of the band, without bias all tiles.
    __device__ __forceinline__ void far_tiles(float (&dq)[head_dim / 2], float (&sum)[2], int begin, int end,
                                              int which) {
        __syncthreads();
        load_own(which);
        k_rows.aim(k + begin * block_rows * p.k_row, p.k_row, thread);
        v_rows.aim(v + begin * block_rows * p.v_row, p.v_row, thread);
        prefetch_far(begin, 0, 0);
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
        issue_near(dq, ds, operand(k_offset, stage));
        if constexpr (c2p) {
            u32 low[4][4], high[4][4];
            shear_near(low, high, ds);
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
        clear_sheared();
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
        store(dq);
    }
};
