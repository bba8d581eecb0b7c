// Far tiles: position scores are constant along a row, so that a tile is one of plain attention.
// needs: sm90_warpgroup.cuh

struct FarTiles : Warpgroup {
    using Warpgroup::Warpgroup;

    // Whether no key of the tile is hidden from any row of the block. K's barrier has been waited for.
    __device__ __forceinline__ bool plain_tile(int slot, int keys_left) const {
        bool plain = keys_left >= block_n;
        if constexpr (mask) {
            plain = plain && !hidden_rows;
#pragma unroll
            for (int unit = 0; unit < units; ++unit)
                plain = plain && KeyBits(memory, slot, unit, keys_left - 64 * unit).all;
        }
        return plain;
    }

    // Scores in s to P in a. P.V of the tile before, whose V is at `behind`, runs under it.
    template <bool first>
    __device__ __forceinline__ void far_softmax(float (&o)[head_dim / 2], float (&s)[block_n / 2],
                                                u32 (&a)[block_n / 16][4], Rows& rows, const Dropped& dropped,
                                                int behind) {
        settle(s);
        release(k_empty + 8 * kv.slot);
        Softmax softmax;
        softmax.begin<false>(s, rows, p.scale_log2);
#pragma unroll
        for (int step = 0; step < block_n / 16; ++step) softmax.exponentials(s, step, p.scale_log2);
        softmax.finish(rows);
        // The branch depends on every exponential, which keeps the compiler from waiting before them.
        if (softmax.moved(rows)) {
            wgmma_wait<0>();
            settle(o);
            rescale(o, softmax.ratio);
        }
        if constexpr (!first) {
            wgmma_wait<0>();
            settle(o);
            release(v_empty + 8 * behind);
        }
#pragma unroll
        for (int step = 0; step < block_n / 16; ++step) {
            pack_probabilities(a[step], s, step);
            drop(a[step], dropped, step);
        }
    }

    __device__ __forceinline__ void issue_values(float (&o)[head_dim / 2], const u32 (&a)[block_n / 16][4],
                                                 int slot) const {
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < block_n / 16; ++step)
            wgmma<dtype, operand_high, true, true>(o, a[step],
                                                   value_operand<block_n>(operand(v_offset, slot, tile_bytes), step));
        wgmma_commit();
    }

    __device__ __forceinline__ void issue_tile_scores(float (&s)[block_n / 2], const u32 (&q)[dim_steps][4],
                                                      int slot) const {
        const u32 k = operand(k_offset, slot, tile_bytes);
        wgmma_fence();
        wgmma<dtype, operand_high, false, false>(s, q[0], key_operand<block_n>(k, 0));
#pragma unroll
        for (int step = 1; step < dim_steps; ++step)
            wgmma<dtype, operand_high, true, false>(s, q[step], key_operand<block_n>(k, step));
        wgmma_commit();
    }

    __device__ __forceinline__ void finish_values(float (&o)[head_dim / 2], const u32 (&a)[block_n / 16][4]) {
        await(v_full + 8 * kv.slot, kv.parity);
        issue_values(o, a, kv.slot);
        wgmma_wait<0>();
        settle(o);
        release(v_empty + 8 * kv.slot);
        kv.advance();
    }

    // Tiles whose position scores are constant along a row: plain attention. P.V of one tile runs under the next one's
    // softmax, in runs of tiles that nothing is hidden in.
    __device__ __forceinline__ void far_tiles(float (&o)[head_dim / 2], Rows& rows, const u32 (&q)[dim_steps][4],
                                              int begin, int end, int length) {
        float s[block_n / 2];
        u32 a[block_n / 16][4];
#pragma unroll 1
        for (int t = begin; t < end;) {
            await(k_full + 8 * kv.slot, kv.parity);
            const bool plain = plain_tile(kv.slot, length - t * block_n);
            issue_tile_scores(s, q, kv.slot);
            const Dropped dropped = dropout_rows.draw(p.dropout, t, lane.c);
            wgmma_wait<0>();
            settle(s);
            if (!plain) hide(s, rows, kv.slot, length - t * block_n);
            far_softmax<true>(o, s, a, rows, dropped, 0);
#pragma unroll 1
            for (++t; plain && t < end; ++t) {
                const RingPosition<stages> behind = kv, ahead = kv.ahead(1);
                const bool v_ready = test(v_full + 8 * behind.slot, behind.parity);
                await(k_full + 8 * ahead.slot, ahead.parity);
                await(v_ready, v_full + 8 * behind.slot, behind.parity);
                if (!plain_tile(ahead.slot, length - t * block_n)) break;
                kv.advance();
                issue_tile_scores(s, q, kv.slot);
                issue_values(o, a, behind.slot);
                const Dropped next = dropout_rows.draw(p.dropout, t, lane.c);
                wgmma_wait<1>();
                far_softmax<false>(o, s, a, rows, next, behind.slot);
            }
            finish_values(o, a);
        }
    }
};
