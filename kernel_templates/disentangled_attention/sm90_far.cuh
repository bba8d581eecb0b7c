// Far tiles: position scores are constant along a row, so that a tile is one of plain attention.
// needs: sm90_warpgroup.cuh

struct FarTiles : Warpgroup {
    using Warpgroup::Warpgroup;

    // Whether no key of the tile is masked: of masked rows Q is zero. K's barrier has been waited for.
    __device__ __forceinline__ bool plain_tile(int slot, int keys_left) const {
        bool plain = keys_left >= block_n;
        if constexpr (mask)
#pragma unroll
            for (int unit = 0; unit < units; ++unit)
                plain = plain && KeyBits(memory, slot, unit, keys_left - 64 * unit).all;
        return plain;
    }

    // Scores in s to P in a. P.V of the tile before, whose V is at `behind`, runs under it.
    template <bool first>
    __device__ __forceinline__ void far_softmax(float (&o)[head_dim / 2], float (&s)[block_n / 2],
                                                u32 (&a)[block_n / 16][4], Rows& rows, const Dropped& dropped,
                                                int behind) {
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

    // All rows are masked: each attends every key in range equally, so that O becomes the sum of V, whose rows beyond
    // the range are zeros.
    __device__ __forceinline__ void mean_tiles(float (&o)[head_dim / 2], Rows& rows, int begin, int end, int length) {
        u32 a[block_n / 16][4];
        rows.m[0] = rows.m[1] = 0.0f;
        rows.l[0] = rows.l[1] = 0.25f * float(length);  // a quarter of the row's
        release(q_empty);
#pragma unroll 1
        for (int t = begin; t < end; ++t) {
            await(k_full + 8 * kv.slot, kv.parity);
            const Dropped dropped = dropped_of(kv.slot);
            release(k_empty + 8 * kv.slot);
#pragma unroll
            for (int step = 0; step < block_n / 16; ++step) {
#pragma unroll
                for (int part = 0; part < 4; ++part) a[step][part] = pack2<dtype>(1.0f, 1.0f);
                drop(a[step], dropped, step);
            }
            finish_values(o, a);
        }
    }

    // With dropout a tile with masked keys ends the pipeline of those before: the branch that masks would slow the loop
    // down, and without dropout the second loop around it would (by 4 % each for 8192 keys on an H200).
    static constexpr bool in_runs = dropout;

    __device__ __forceinline__ void hide_far(float (&s)[block_n / 2], const Rows& rows, bool plain,
                                             int keys_left) const {
        if (!(in_runs ? plain : plain_tile(kv.slot, keys_left))) hide(s, rows, kv.slot, keys_left);
    }

    // Tiles from t on; leaves t behind the last one. P.V of one tile runs under the next one's softmax.
    __device__ __forceinline__ void run_of_tiles(float (&o)[head_dim / 2], Rows& rows, const u32 (&q)[dim_steps][4],
                                                 int& t, int end, int length) {
        float s[block_n / 2];
        u32 a[block_n / 16][4];
        await(k_full + 8 * kv.slot, kv.parity);
        const bool plain = !in_runs || plain_tile(kv.slot, length - t * block_n);
        issue_tile_scores(s, q, kv.slot);
        const Dropped dropped = dropped_of(kv.slot);
        wgmma_wait<0>();
        settle(s);
        hide_far(s, rows, plain, length - t * block_n);
        far_softmax<true>(o, s, a, rows, dropped, 0);
#pragma unroll 1
        for (++t; plain && t < end; ++t) {
            const RingPosition<stages> behind = kv, ahead = kv.ahead(1);
            const bool v_ready = test(v_full + 8 * behind.slot, behind.parity);
            await(k_full + 8 * ahead.slot, ahead.parity);
            await(v_ready, v_full + 8 * behind.slot, behind.parity);
            if (in_runs && !plain_tile(ahead.slot, length - t * block_n)) break;
            kv.advance();
            issue_tile_scores(s, q, kv.slot);
            issue_values(o, a, behind.slot);
            const Dropped next = dropped_of(kv.slot);
            wgmma_wait<1>();
            settle(s);
            hide_far(s, rows, true, length - t * block_n);
            far_softmax<false>(o, s, a, rows, next, behind.slot);
        }
        finish_values(o, a);
    }

    // Tiles whose position scores are constant along a row: plain attention.
    __device__ __forceinline__ void far_tiles(float (&o)[head_dim / 2], Rows& rows, const u32 (&q)[dim_steps][4],
                                              int begin, int end, int length) {
        int t = begin;
        if constexpr (in_runs) {
#pragma unroll 1
            while (t < end) run_of_tiles(o, rows, q, t, end, length);
        } else {
            run_of_tiles(o, rows, q, t, end, length);
        }
    }
};
