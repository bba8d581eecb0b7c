// Near tiles: products over distances, shifted through shared memory, under the exponentials of the tile before.
// needs: sm90_far.cuh

struct NearTiles : FarTiles {
    using FarTiles::FarTiles;

    // Q.K of the keys of one unit on top of s, with Q from shared memory: registers are short beside the products of
    // the next tile.
    __device__ __forceinline__ void add_scores(float (&s)[32], int slot, int unit) const {
        const u32 k = operand(k_offset, slot, tile_bytes) + unit * (64 * row_bytes / 16);
        const u32 q = (shared >> 4) + q_offset / 16 + group * (64 * row_bytes / 16);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < dim_steps; ++step)
            wgmma_shared<dtype, operand_high, true>(s, key_operand<block_m>(q, step), key_operand<block_n>(k, step));
        wgmma_commit();
    }

    // Scores of a unit to probabilities and these times V, 16 keys at a time, which also keeps the compiler from moving
    // the exponentials away from what should run beside them.
    struct Probabilities {
        const Warpgroup& warpgroup;
        Softmax& softmax;
        const u32 (&kept)[units];
        Output& o;
        u32 v;
        float scale;

        template <int count>
        __device__ __forceinline__ void steps(float (&s)[count], int begin, int end) const {
#pragma unroll
            for (int step = begin; step < end; ++step) {
                u32 a[4];
                softmax.exponentials(s, step, scale);
                pack_probabilities(a, s, step);
                drop(a, kept[step / 4], step % 4);
                wgmma_fence();
                wgmma<dtype, operand_high, true, true>(o, a, warpgroup.values(v, step));
            }
            if (begin < end) wgmma_commit();
        }
    };

    // What the products of a near tile need.
    struct Operands {
        u32 k_tile;
        u32 k[dim_steps][4];  // of the unit at work
        u32 q[dim_steps][4];
    };

    // The number-th distance chunk under the tile, as a wgmma operand.
    __device__ __forceinline__ u32 chunk(int number) const {
        return (shared >> 4) + strip.ahead(number).slot * (chunk_bytes / 16);
    }

    // An operand of products over distances: this warp's rows of the 64 from row0 on.
    template <int rows>
    __device__ __forceinline__ void load_pairs(u32 (&a)[dim_steps][4], const ScoreBuffers& at, u32 tile,
                                               int row0) const {
        load_operand<rows>(a, tile + at.pairs + row0 * row_bytes);
    }

    // Product `job` of the first `count` into x.
    template <int job, int count>
    __device__ __forceinline__ void issue_product(float (&x)[32], Operands& operands, const ScoreBuffers& at) const {
        constexpr Product product = product_of(job);
        constexpr bool fresh =
            job == 0 || product_of(job - 1).of_query != product.of_query || product_of(job - 1).unit != product.unit;
        const int own = warpgroups - 1 - group;  // first chunk under the rows of this warpgroup
        if constexpr (product.of_query) {
            if constexpr (job == 0)
                load_pairs<block_m>(operands.q, at, shared + q_offset, 64 * group);
            chunk_product(x, operands.q, chunk(own + product.chunk) + pk_offset / 16);
        } else {
            const int unit = shared_t ? group : product.unit;
            if constexpr (fresh)
                load_pairs<block_n>(operands.k, at, operands.k_tile, 64 * unit);
            chunk_product(x, operands.k, chunk((shared_t ? 0 : own) + unit + product.chunk) + pq_offset / 16);
        }
        if constexpr (c2p && job + 1 == t_products && count > t_products)  // so that the first product of Q need not wait for it
            load_pairs<block_m>(operands.q, at, shared + q_offset, 64 * group);
    }

    // No work beside the products.
    struct NoWork {
        template <int job, int count>
        static constexpr int groups = 0;
        template <int job, int count>
        __device__ __forceinline__ void run() const {}
    };
    // A share of a near tile's probabilities.
    struct Share {
        Probabilities probabilities;
        float (&s)[block_n / 2];

        template <int job, int count>
        static constexpr int groups = (job + 1) * (block_n / 16) / count > job * (block_n / 16) / count;  // of wgmma
        template <int job, int count>
        __device__ __forceinline__ void run() const {
            probabilities.steps(s, job * (block_n / 16) / count, (job + 1) * (block_n / 16) / count);
        }
    };

    // Whether product `job`, not the first, is issued before the one ahead of it is awaited: not when it needs other
    // registers of K.
    static __device__ constexpr bool early(int job, int count) {
        return deep && job < count && (product_of(job).of_query || product_of(job).unit == product_of(job - 1).unit);
    }

    // Product `job` is in flight in x; the next one, into y when early, runs under its stores and `work`.
    template <int job, int count, class Work>
    __device__ __forceinline__ void finish_products(float (&x)[32], float (&y)[32], Operands& operands,
                                                    const ScoreBuffers& at, Work work) const {
        constexpr Product product = product_of(job);
        work.template run<job, count>();
        if constexpr (early(job + 1, count)) issue_product<job + 1, count>(y, operands, at);
        if constexpr (p2c && job == 0) await(t_empty + t_barrier(), t_parity ^ 1);
        wgmma_wait<int(early(job + 1, count)) + Work::template groups<job, count>>();
        settle(x);
        ShiftedScores packed;
        packed.pack<product.of_query ? 1 : 0>(x);
        if constexpr (job + 1 < count && !early(job + 1, count)) issue_product<job + 1, count>(x, operands, at);
        if constexpr (product.of_query) {
            store_c(packed, at, product.chunk);
        } else {
            store_t(packed, at, product.unit, product.chunk);
        }
        if constexpr (job + 1 == t_products) release(t_full + t_barrier());
        if constexpr (early(job + 1, count)) {
            finish_products<job + 1, count>(y, x, operands, at, work);
        } else if constexpr (job + 1 < count) {
            finish_products<job + 1, count>(x, y, operands, at, work);
        }
    }

    // The first `count` products of the near tile whose K is at k_slot, into the buffers, with `work` in between. K's
    // barrier has been waited for.
    template <int count, class Work>
    __device__ __forceinline__ void position_scores(const ScoreBuffers& at, int k_slot, Work work) {
        float x[32], y[32];
        Operands operands;
        operands.k_tile = k_tile(k_slot);
        issue_product<0, count>(x, operands, at);
        finish_products<0, count>(x, y, operands, at, work);
        if constexpr (!resident) release_chunks(units);
    }

    // Masks hidden keys of the tile at work, and zeros the scores of masked rows, which may be anything.
    template <int count>
    __device__ __forceinline__ void hide(float (&s)[count], const Rows& rows, int keys_left) const {
        hide_units(s, rows, kv.slot, 0, keys_left);
        if (!__any_sync(0xffffffffu, rows.masked(0) || rows.masked(1))) return;
#pragma unroll
        for (int i = 0; i < count; ++i)
            if (rows.masked(i >> 1 & 1)) s[i] = 0.0f;
    }

    // One near tile, whose position scores lie in the buffers. Those of the next tile, unless this is the last one, are
    // made under its exponentials. `keys_left`: of the sequence from the tile's first.
    template <bool last>
    __device__ __forceinline__ void near_tile(Output& o, Rows& rows, const ScoreBuffers& at, int keys_left, float fall,
                                              bool first, bool last_phase) {
        float s[32 * units];
        const RingPosition<stages> behind = kv.behind(), ahead = kv.ahead(1);
        const bool k_ready = last || test(k_full + 8 * ahead.slot, ahead.parity);
        const bool v_ready = test(v_full + 8 * kv.slot, kv.parity);
        const bool plain = (mask || last) && is_plain(kv, keys_left);
        if constexpr (p2c) await(t_full + t_barrier(), t_parity);
        __syncwarp();
        if constexpr (units == 2) {  // all loads come first: their latency would show
            const UnitScores first_unit(at, 0), second(at, 1);
            first_unit.add_up(part<32>(s, 0));
            add_scores(part<32>(s, 0), kv.slot, 0);
            second.add_up(part<32>(s, units - 1));
            add_scores(part<32>(s, units - 1), kv.slot, 1);
        } else {
            UnitScores(at, 0).add_up(part<32>(s, 0));
            add_scores(part<32>(s, 0), kv.slot, 0);
        }
        if constexpr (p2c) {
            release(t_empty + t_barrier());
            t_parity ^= 1;
        }
        __syncwarp();  // the warp's rows of C are read
        u32 kept[units];
        take_kept(kept, kv);
        wgmma_wait<0>();
        settle(s);
        settle(o);
        if (!first) release(v_empty + 8 * behind.slot);
        if (last && last_phase) release(q_empty);
        if constexpr (mask || last)
            if (!agreed(plain && !rows.masked(0) && !rows.masked(1))) [[unlikely]] hide(s, rows, keys_left);
        release(k_empty + 8 * kv.slot);
        float most[2];
        Softmax::near_maxima(most, s);
        Softmax softmax;
        softmax.begin<true>(most, rows, p.scale_log2, fall);
        if (softmax.moved(rows)) rescale(o, softmax.ratio);
        await(v_ready, v_full + 8 * kv.slot, kv.parity);
        const Probabilities probabilities{*this, softmax, kept, o, operand(v_offset, kv.slot, tile_bytes), p.scale_log2};
        if constexpr (last) {
            probabilities.steps(s, 0, 4 * units);
        } else {
            await(k_ready, k_full + 8 * ahead.slot, ahead.parity);
            position_scores<products>(at, ahead.slot, Share{probabilities, s});
        }
        softmax.finish(rows);
        kv.advance();
    }

    // Tiles begin .. end - 1.
    __device__ __forceinline__ void near_tiles(Output& o, Rows& rows, int begin, int end, int length,
                                               bool last_phase) {
        const ScoreBuffers at(shared, group, here());
        int keys_left = length - begin * block_n;
        const float fall = end - begin <= 64 ? 1.0f / p.scale_log2 : 0.0f;  // doubles O and the sums: 64 times at most
        bool first = true;
        await(k_full + 8 * kv.slot, kv.parity);
        position_scores<products>(at, kv.slot, NoWork());
#pragma unroll 1
        for (int left = end - begin; left > 1; --left) {
            near_tile<false>(o, rows, at, keys_left, fall, first, false);
            keys_left -= block_n, first = false;
        }
        if constexpr (!resident) release_chunks(warpgroups);
        near_tile<true>(o, rows, at, keys_left, fall, first, last_phase);
        wgmma_wait<0>();
        settle(o);
        release(v_empty + 8 * kv.behind().slot);
    }
};
