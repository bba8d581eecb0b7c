// Far tiles: position scores are constant along a row, so that a tile is one of plain attention. Their keys are taken in
// units of 64: the scores of the next unit and P.V of the one before run under the exponentials of this one.
// needs: sm90_warpgroup.cuh, common/mma.cuh

struct FarTiles : Warpgroup {
    using Warpgroup::Warpgroup;

    using Query = u32[dim_steps][4];
    using Output = float[out_elements];
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
            wgmma<dtype, operand_high, true, true>(o, a[step], values(v, 4 * unit + step));
        wgmma_commit();
    }

    // The scores of 16 keys, from device memory. Keys beyond the sequence count in no row, not even in masked ones: what
    // is read in their place is another key.
    __device__ __forceinline__ void compute_scores(float (&s)[8], const Query& q, const Rows& rows, const Item& item,
                                                   const Lane& lane, int first_key) const {
        const u16* k = static_cast<const u16*>(p.k) + (packed ? 0 : item.batch * p.k_batch) + item.head * p.k_head +
                       2 * lane.c;
        const u32 there = range_word(item.length - first_key);
        const u32 kept = mask ? __ballot_sync(0xffffffffu, kept_keys<1>(p, item, first_key + lane.lane)) : there;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const u16* row = k + key_row(item, first_key + 8 * n + lane.g) * p.k_row;
            float(&scores)[4] = part<4>(s, n);
#pragma unroll
            for (int i = 0; i < 4; ++i) scores[i] = 0.0f;
#pragma unroll
            for (int step = 0; step < dim_steps; ++step)
                multiply<dtype>(scores, q[step], load_pair(row + 16 * step), load_pair(row + 16 * step + 8));
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const u32 bit = 1u << (8 * n + 2 * lane.c + (i & 1));
                if (!(kept & bit)) scores[i] = there & bit ? rows.hidden[i >> 1] : masked_score;
            }
        }
    }

    // O += weights of 16 keys times V, from device memory.
    __device__ __forceinline__ void add_values(Output& o, const u32 (&a)[4], const Item& item, const Lane& lane,
                                               int first_key) const {
        const u16* v = static_cast<const u16*>(p.v) + (packed ? 0 : item.batch * p.v_batch) + item.head * p.v_head +
                       2 * lane.c;
        const u16* rows[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) rows[i] = v + key_row(item, first_key + 8 * i + lane.g) * p.v_row;
        const int left = item.length - first_key - lane.g;  // zeros beyond: infinity must not meet a weight of zero
#pragma unroll
        for (int n = 0; n < head_dim / 8; ++n)
            multiply<dtype>(part<4>(o, n), a, transpose_matrix(left > 0 ? load_pair(rows[0] + 8 * n) : 0),
                            transpose_matrix(left > 8 ? load_pair(rows[1] + 8 * n) : 0));
        const u32 ones = pack2<dtype>(1.0f, 1.0f);
        if constexpr (sum_column) multiply<dtype>(part<4>(o, head_dim / 8), a, ones, ones);
    }

    // Where a key's row is in K and V; for one beyond the sequence, whose weight is zero, that of the last.
    __device__ __forceinline__ s64 key_row(const Item& item, int key) const {
        return item.first + min(key, item.length - 1);
    }
    __device__ __forceinline__ u32 load_pair(const u16* from) const {
        return aligned ? *reinterpret_cast<const u32*>(from) : u32(from[0]) | u32(from[1]) << 16;
    }

    __device__ __forceinline__ void weigh(Weights& a, Scores& s, Softmax& softmax, u32 kept) const {
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            softmax.exponentials(s, step, p.scale_log2);
            pack_probabilities(a[step], s, step);
            drop(a[step], kept, step);
        }
    }

    // The maximum of s becomes what is subtracted, where it exceeds that by much. O and the sums follow.
    template <int count>
    __device__ __forceinline__ void move_maximum(Output& o, const float (&s)[count], Rows& rows, Softmax& softmax) const {
        float most[2];
        Softmax::maxima(most, s);
        softmax.begin<false>(most, rows, p.scale_log2, 0.0f);
#pragma unroll
        for (int half = 0; !sum_column && half < 2; ++half) rows.l[half] *= softmax.ratio[half];
        rescale(o, softmax.ratio);
    }

    // Tiles begin .. end - 1 on their way: t is at work.
    struct Run {
        Output& o;
        Rows& rows;
        const Query& q;
        const Item& item;
        int begin, end, t;
        Softmax softmax;
        u32 kept[units];   // of the tile at work
        bool plain;        // no key of the tile at work is masked or beyond the sequence
        u32 put_off = 0;   // which of the last two units this warp put off: bit = number among the keys, modulo 2

        __device__ __forceinline__ int keys_left() const { return item.length - t * block_n; }
    };

    // Units are taken in pairs: of one tile, or of two tiles of one unit each. The number-th of a pair:
    static __device__ constexpr int unit_of(int number) { return units == 2 ? number : 0; }
    static __device__ constexpr bool ends_tile(int number) { return unit_of(number) + 1 == units; }

    // Whether the tile that the number-th unit is followed by is plain. To be looked at late: the answer takes its time.
    template <int number>
    __device__ __forceinline__ bool look_ahead(const Run& run) const {
        if (!ends_tile(number) || run.t + 1 == run.end) return false;
        const RingPosition<stages> ahead = kv.ahead(1);
        await(k_full + 8 * ahead.slot, ahead.parity);
        return is_plain(ahead, run.keys_left() - block_n);
    }

    // What is subtracted from the scores stays as it is, so that nothing waits for a maximum. Where exponentials become
    // too large for that, a warp leaves the unit out for now: what follows takes long and must not lie in the loop's way,
    // and all warps of a group must come to the same products.
    __device__ __forceinline__ void put_off(Run& run, Weights& a, int unit) const {
        asm volatile("");  // keeps this a branch
#pragma unroll
        for (int i = 0; i < 16; ++i) a[i / 4][i % 4] = 0;
        run.softmax.clear();
        run.put_off |= 1u << (run.t * units + unit) % 2;
    }

    // The units that were put off, now, by this warp alone, 16 keys at a time.
    __device__ __forceinline__ void make_up(Run& run) const {
#pragma unroll 1
        for (int back = 4 * 2; back > 0; --back) {
            const int number = 4 * units * run.t - back, unit = number >> 2, step = number & 3;
            if (!(run.put_off >> (unit & 1) & 1)) continue;
            Item item = run.item;
            int thread_number = thread;  // of this and the item nothing must be kept in registers for here
            asm volatile("" : "+r"(thread_number), "+r"(item.head), "+r"(item.batch));
            const Lane lane(thread_number);
            float s[8];
            compute_scores(s, run.q, run.rows, item, lane, 16 * number);
            move_maximum(run.o, s, run.rows, run.softmax);
            run.softmax.exponentials(s, 0, p.scale_log2);
            run.softmax.add(run.rows);
            u32 a[4];
            pack_probabilities(a, s, 0);
            if constexpr (dropout) {
                const u32 dropped = dropped_patch(p.dropout, u32(item.batch * p.heads + item.head),
                                                  (item.row0 / 16 + 4 * group + lane.warp) * 8 + lane.g,
                                                  unit * 4 + lane.c);
                drop(a, ~dropped >> 2 * step, 0);
            }
            add_values(run.o, a, item, lane, 16 * number);
        }
        run.put_off = 0;
    }

    // One unit: s to weights, and these times V, while the scores of the unit after it are made in `next`, which mean
    // nothing when this is the last one. `plain`: that the tile is.
    template <int number, bool plain>
    __device__ __forceinline__ void step(Run& run, Scores& s, Scores& next, Weights& a) {
        constexpr int unit = unit_of(number);
        const bool ahead = look_ahead<number>(run);
        if constexpr (!plain) {
            hide_units(s, run.rows, kv.slot, unit, run.keys_left() - 64 * unit);
            if (mask && __any_sync(0xffffffffu, fminf(run.rows.m[0], run.rows.m[1]) == masked_score))  // no key so far
                move_maximum(run.o, s, run.rows, run.softmax);
        }
        issue_scores(next, run.q, ends_tile(number) ? kv.ahead(1).slot : kv.slot, (unit + 1) % units);
        if constexpr (ends_tile(number)) release(k_empty + 8 * kv.slot);
        weigh(a, s, run.softmax, run.kept[unit]);
        if (run.softmax.exceeded(a)) [[unlikely]] put_off(run, a, unit);
        if (ends_tile(number) && run.t + 1 < run.end) take_kept(run.kept, kv.ahead(1));
        run.softmax.add(run.rows);
        if constexpr (unit == 0) await(v_full + 8 * kv.slot, kv.parity);
        issue_values(run.o, a, kv.slot, unit);
        wgmma_wait<1>();
        settle(next);
        if (unit == 0 && run.t != run.begin) release(v_empty + 8 * kv.behind().slot);
        if constexpr (ends_tile(number)) {
            run.plain = agreed(ahead);
            kv.advance();
            ++run.t;
        }
    }

    // Nothing is in flight any more: where paths with products join the compiler wants it so.
    __device__ __forceinline__ void rest(Output& o, Scores& s) const {
        wgmma_wait<0>();
        settle(o);
        settle(s);
    }

    // Whether no key of a tile is hidden or beyond the sequence. K's barrier has been waited for.
    __device__ __forceinline__ bool is_plain(const RingPosition<stages>& at, int keys_left) const {
        return mask ? load_word(shared + plain_offset + 4 * at.slot) != 0 : keys_left >= block_n;
    }
    // The vote tells the compiler that a warp agrees, so that it branches for all lanes at once.
    __device__ __forceinline__ bool agreed(bool plain) const {
        return mask ? __all_sync(0xffffffffu, plain) : plain;
    }

    // Whether the next two units are there and plain, and none waits to be made up.
    __device__ __forceinline__ bool plain_pair(const Run& run) const {
        if (!run.plain || run.put_off) return false;
        if constexpr (units == 2)
            return run.t < run.end;
        else
            return run.t + 1 < run.end && agreed(look_ahead<0>(run));
    }

    // Tiles begin .. end - 1, at least one.
    __device__ __forceinline__ void far_tiles(Output& o, Rows& rows, const Query& q, int begin, int end,
                                              const Item& item) {
        Scores s, other;
        Weights a, b;
        Run run{o, rows, q, item, begin, end, begin};
        take_kept(run.kept, kv);
        await(k_full + 8 * kv.slot, kv.parity);
        issue_scores(s, q, kv.slot, 0);
        rest(o, s);
        hide_units(s, rows, kv.slot, 0, run.keys_left());
        move_maximum(o, s, rows, run.softmax);
        run.plain = agreed(is_plain(kv, run.keys_left()));
#pragma unroll 1
        for (;;) {
#pragma unroll 1
            while (plain_pair(run)) {
                step<0, true>(run, s, other, a);
                step<1, true>(run, other, s, b);
            }
            rest(o, s);
            if (run.put_off) [[unlikely]] {
                make_up(run);
                continue;  // to where the other warps are
            }
            if (run.t == end) break;
            step<0, false>(run, s, other, a);
            rest(o, other);
            if (units == 2) {
                step<1, false>(run, other, s, b);
            } else {
#pragma unroll
                for (int i = 0; i < 32; ++i) s[i] = other[i];
            }
            rest(o, s);
        }
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
                    for (int part = 0; part < 4; ++part)
                        a[unit][step][part] = pack2<dtype>(weight_of_zero, weight_of_zero);
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
