// dK and dV of 64 keys.
// needs: sm90_key_near.cuh

struct KeyBlock : KeyNear {
    using KeyNear::KeyNear;

    __device__ __forceinline__ void run() {
        const int j0 = block.tile * block_rows, left = block.length - j0;
        TileRows<order_natural> rows;
        rows.aim(block.rows(p.k, p.k_batch, p.k_row, p.k_head) + j0 * p.k_row, p.k_row, thread);
        rows.copy(shared + k_offset, p.k_row, left, thread);
        rows.aim(block.rows(p.v, p.v_batch, p.v_row, p.v_head) + j0 * p.v_row, p.v_row, thread);
        rows.copy(shared + v_offset, p.v_row, left, thread);
        if (thread == 0) {
            for (int i = 0; i < 8; ++i) barrier_init(shared + pk_full + 8 * i, 1);
            barrier_init_fence();
            store_shared16(shared + zeros_offset, {0, 0, 0, 0});
            store_shared16(shared + zeros_offset + 16, {0, 0, 0, 0});
        }
        slot = (3 - near_begin % 3) % 3;
        if constexpr (tiled) {
            copy_async_commit();
            if (thread == 0) bring_tile(0, slot);  // its barrier is this thread's own so far
        } else {
            aim(0);
            prefetch(0, slot);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int j = 16 * lane.warp + lane.g + 8 * half;
            outside[half] = j >= left;
            dead[half] = outside[half];
            if constexpr (mask) dead[half] = dead[half] || !p.mask[block.batch * p.mask_batch + j0 + j];
        }
        special = __syncthreads_or(dead[0] || dead[1]);
        if (p2c && thread == 0) bring_queries(0), bring_queries(1);
        __syncwarp();
        if constexpr (p2c || tiled) {
            copy_async_wait<0>();
            async_proxy_fence();
            __syncthreads();
        }
        if constexpr (p2c && warpgroups == 1) {
            load_operand<block_rows, true>(k_paired, shared + k_offset, 16 * lane.warp, lane);
        }
        float dk[out_dim / 2], dv[out_dim / 2];
#pragma unroll
        for (int i = 0; i < out_dim / 2; ++i) dk[i] = dv[i] = 0.0f;
#pragma unroll 1
        for (int phase = 0; phase < 3; ++phase) {  // far at the low end, near, far at the high end
            const int begin = phase == 0 ? 0 : near_end, end = phase == 0 ? near_begin : tiles;
            if (has_bias && phase == 1) {
                if constexpr (has_bias) near_tiles(dk, dv);
            } else if (begin < end && phase != 1) {
                far_tiles(dk, dv, begin, end);
            }
        }
        __syncthreads();
        const int order[2] = {lane.g, lane.g + 8};
        u16* to_dk = const_cast<u16*>(block.rows(p.dk, p.dk_batch, p.dk_row, p.dk_head)) + j0 * p.dk_row;
        u16* to_dv = const_cast<u16*>(block.rows(p.dv, p.dv_batch, p.dv_row, p.dv_head)) + j0 * p.dv_row;
        store_rows(dk, p.scale, memory, shared, q_offset + group * stage_bytes, lane, order, to_dk + group * out_dim,
                   p.dk_row, left);
        store_rows(dv, 1.0f, memory, shared, q_offset + slot_bytes + group * stage_bytes, lane, order,
                   to_dv + group * out_dim, p.dv_row, left);
    }
};
