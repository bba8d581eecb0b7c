// dQ of 64 queries: far tiles first, then the near ones.
// needs: sm90_query_near.cuh

struct QueryBlock : QueryNear {
    using QueryNear::QueryNear;

    __device__ __forceinline__ void run() {
        if (thread == 0) {
            for (int i = 0; i < barriers; ++i) barrier_init(shared + ds_full + 8 * i, 1);
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
