// Far tiles: position scores are constant along a row, so that a tile is one of plain attention. Their keys are taken in
// units of 64: the scores of the next unit and P.V of the one before run under the exponentials of this one.
// needs: sm90_warpgroup.cuh, common/mma.cuh

struct FarTiles : Warpgroup {
    using Warpgroup::Warpgroup;

    using Query = u32[dim_steps][4];
    using Output = float[head_dim / 2];
    using Scores = float[32];    // of one unit
    using Weights = u32[4][4];   // of one unit, as A operands

    __device__ __forceinline__ void issue_scores(Scores& s, const Query& q, int slot, int unit) const {
        const u32 k = operand(k_offset, slot, tile_bytes) + unit * (64 * row_bytes / 16);
        wgmma_fence();
        wgmma<dtype, operand_high, false, false>(s, q[0], key_operand<block_n>(k, 0));
#pragma unroll
        for (int step = 1; step < dim_steps; ++step)
            wgmma<dtype, operand_high, true, false>(s, q[step], key_operand<block_n>(k, step));
        wgmma_commit();
    }

    __device__ __forceinline__ void issue_values(Output& o, const Weights& a, int slot, int unit) const {
        const u32 v = operand(v_offset, slot, tile_bytes);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step)
            wgmma<dtype, operand_high, true, true>(o, a[step], value_operand<block_n>(v, 4 * unit + step));
        wgmma_commit();
    }

    // The scores of 64 keys once more, from device memory, as K's tile may be gone. Slow, and seldom needed.
    __device__ __forceinline__ void compute_scores(Scores& s, const Query& q, const Item& item, int first_key) const {
        const Lane lane = here();
        const u16* k = static_cast<const u16*>(p.k) + (packed ? 0 : item.batch * p.k_batch) + item.head * p.k_head +
                       2 * lane.c;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            const int key = first_key + 8 * n + lane.g;
            const u16* row = k + s64(item.first + min(key, item.length - 1)) * p.k_row;
            float part[4] = {0, 0, 0, 0};
#pragma unroll
            for (int step = 0; step < dim_steps; ++step) {
                u32 b[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const u16* at = row + 16 * step + 8 * i;
                    b[i] = aligned ? *reinterpret_cast<const u32*>(at) : u32(at[0]) | u32(at[1]) << 16;
                }
                multiply<dtype>(part, q[step], b[0], b[1]);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) s[4 * n + i] = part[i];
        }
    }

    __device__ __forceinline__ void weigh(Weights& a, Scores& s, Softmax& softmax, u32 kept) const {
        softmax.clear();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            softmax.exponentials(s, step, p.scale_log2);
            pack_probabilities(a[step], s, step);
            drop(a[step], kept, step);
        }
    }

    // The maximum of s becomes what is subtracted, where it exceeds that by much. O and the sums follow.
    __device__ __forceinline__ void move_maximum(Output& o, Scores& s, Rows& rows, Softmax& softmax) const {
        float most[2];
        Softmax::maxima(most, s);
        softmax.begin<false>(most, rows, p.scale_log2);
#pragma unroll
        for (int half = 0; half < 2; ++half) rows.l[half] *= softmax.ratio[half];
        rescale(o, softmax.ratio);
    }

    // Hides keys as hide_units does, by the mask in device memory: the ring's slot may be gone.
    __device__ __forceinline__ void hide_again(Scores& s, const Rows& rows, const Item& item, int first_key) const {
        KeyBits bits(item.length - first_key);
        const Lane lane = here();
        if constexpr (mask) {
            const u32 kept = kept_keys<2>(p, item, first_key + lane.lane);
#pragma unroll
            for (int i = 0; i < 2; ++i) bits.keep[i] = __ballot_sync(0xffffffffu, kept >> i & 1);
        }
        apply_mask(s, bits, rows, lane.c);
    }

    // One unit of the tile at t: s to weights, and these times V; `next` gets the scores of the unit after it, which mean
    // nothing when this is the last one. `plain`: no key of the tile is masked or beyond the sequence. What is subtracted
    // from the scores stays as it is, unless their exponentials become too large: so nothing waits for a maximum.
    template <int unit>
    __device__ __forceinline__ void unit_step(Output& o, Scores& s, Scores& next, Weights& a, Rows& rows,
                                              Softmax& softmax, u32 (&kept)[units], const Query& q,
                                              const Item& item, int t, int begin, int end, bool& plain) {
        constexpr bool ends_tile = unit + 1 == units;
        const RingPosition<stages> ahead = kv.ahead(1);
        if (ends_tile && t + 1 < end) await(k_full + 8 * ahead.slot, ahead.parity);
        // Read here, looked at below: the answer takes its time.
        u32 ahead_plain = 0;
        if (ends_tile && t + 1 < end) ahead_plain = plain_word(ahead, item.length - (t + 1) * block_n);
        issue_scores(next, q, ends_tile ? ahead.slot : kv.slot, ends_tile ? 0 : unit + 1);
        const int first_key = t * block_n + 64 * unit;
        if (!plain) [[unlikely]]
            apply_mask(s, KeyBits(shared, kv.slot, unit, item.length - first_key), rows, here().c);
        if constexpr (ends_tile) release(k_empty + 8 * kv.slot);
        weigh(a, s, softmax, kept[unit]);
        if (softmax.exceeded()) [[unlikely]] {
            rest(o, next);
            compute_scores(s, q, item, first_key);
            hide_again(s, rows, item, first_key);
            move_maximum(o, s, rows, softmax);
            weigh(a, s, softmax, kept[unit]);
        }
        if (ends_tile && t + 1 < end) take_kept(kept, ahead);
        softmax.add(rows);
        if constexpr (unit == 0) await(v_full + 8 * kv.slot, kv.parity);
        issue_values(o, a, kv.slot, unit);
        wgmma_wait<1>();
        settle(next);
        if (unit == 0 && t != begin) release(v_empty + 8 * kv.behind().slot);
        if constexpr (ends_tile) plain = agreed(ahead_plain & plain_keys);
        if constexpr (ends_tile) kv.advance();
    }

    // Nothing is in flight any more: where paths with products join the compiler wants it so.
    __device__ __forceinline__ void rest(Output& o, Scores& s) const {
        wgmma_wait<0>();
        settle(o);
        settle(s);
    }

    // What is plain of a tile, as a sum of PlainParts. K's barrier has been waited for.
    __device__ __forceinline__ u32 plain_word(const RingPosition<stages>& at, int keys_left) const {
        return mask ? load_word(shared + plain_offset + 4 * at.slot)
                    : plain_rows | (keys_left >= block_n ? plain_keys : 0u);
    }
    // The vote tells the compiler that a warp agrees, so that it branches for all lanes at once.
    __device__ __forceinline__ bool agreed(bool plain) const {
        return mask ? __all_sync(0xffffffffu, plain) : plain;
    }

    // Scores of the first unit of the tile at work, and their maximum as what is subtracted.
    __device__ __forceinline__ void start_scores(Output& o, Scores& s, Rows& rows, Softmax& softmax, u32 (&kept)[units],
                                                 const Query& q, int keys_left) const {
        take_kept(kept, kv);
        await(k_full + 8 * kv.slot, kv.parity);
        issue_scores(s, q, kv.slot, 0);
        rest(o, s);
        hide_units(s, rows, kv.slot, 0, keys_left);
        move_maximum(o, s, rows, softmax);
    }

    // Tiles begin .. end - 1, at least one.
    __device__ __forceinline__ void far_tiles(Output& o, Rows& rows, const Query& q, int begin, int end,
                                              const Item& item) {
        Scores s, other;
        Weights a, b;
        Softmax softmax;
        u32 kept[units];  // of the tile at work
        start_scores(o, s, rows, softmax, kept, q, item.length - begin * block_n);
        if constexpr (units == 1) {  // steps come in pairs
            if ((end - begin) % 2 != 0) {
                release(k_empty + 8 * kv.slot);
                weigh(a, s, softmax, kept[0]);
                softmax.add(rows);
                await(v_full + 8 * kv.slot, kv.parity);
                issue_values(o, a, kv.slot, 0);
                rest(o, s);
                release(v_empty + 8 * kv.slot);
                kv.advance();
                if (++begin == end) return;
                start_scores(o, s, rows, softmax, kept, q, item.length - begin * block_n);
            }
        }
        constexpr int pair = 2 / units;
        bool plain = agreed(plain_word(kv, item.length - begin * block_n) & plain_keys);
#pragma unroll 1
        for (int t = begin; t < end; t += pair) {
            unit_step<0>(o, s, other, a, rows, softmax, kept, q, item, t, begin, end, plain);
            unit_step<units - 1>(o, other, s, b, rows, softmax, kept, q, item, t + pair - 1, begin, end, plain);
        }
        rest(o, s);
        release(v_empty + 8 * kv.behind().slot);
    }

    // All rows are masked: each attends every key in range equally, so that O becomes the sum of V, whose rows beyond
    // the range are zeros.
    __device__ __forceinline__ void mean_tiles(Output& o, int begin, int end) {
        release(q_empty);
#pragma unroll 1
        for (int t = begin; t < end; ++t) {
            await(k_full + 8 * kv.slot, kv.parity);
            Weights a[units];
            u32 kept[units];
            take_kept(kept, kv);
#pragma unroll
            for (int unit = 0; unit < units; ++unit) {
#pragma unroll
                for (int step = 0; step < 4; ++step) {
#pragma unroll
                    for (int part = 0; part < 4; ++part) a[unit][step][part] = pack2<dtype>(1.0f, 1.0f);
                    drop(a[unit][step], kept[unit], step);
                }
            }
            release(k_empty + 8 * kv.slot);
            await(v_full + 8 * kv.slot, kv.parity);
#pragma unroll
            for (int unit = 0; unit < units; ++unit) issue_values(o, a[unit], kv.slot, unit);
            wgmma_wait<0>();
            settle(o);
            release(v_empty + 8 * kv.slot);
            kv.advance();
        }
    }
};
