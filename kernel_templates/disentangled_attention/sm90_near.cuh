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
        Softmax& softmax;
        float (&o)[head_dim / 2];
        u32 v;
        float scale;

        template <int count>
        __device__ __forceinline__ void steps(float (&s)[count], int begin, int end) const {
#pragma unroll
            for (int step = begin; step < end; ++step) {
                u32 a[4];
                softmax.exponentials(s, step, scale);
                pack_probabilities(a, s, step);
                wgmma_fence();
                wgmma<dtype, operand_high, true, true>(o, a, value_operand(v, step));
            }
            if (begin < end) wgmma_commit();
        }
    };

    // What the products of a near tile need.
    struct Operands {
        u32 chunks[units + 1];  // of this warpgroup, as wgmma operands
        u32 k_tile;
        u32 k[dim_steps][4];  // of the unit at work
    };

    template <int unit>
    __device__ __forceinline__ void load_keys(Operands& operands) const {
        load_operand<block_n, true>(operands.k, operands.k_tile, 64 * unit + 16 * lane.warp, lane);
    }

    template <int job>
    __device__ __forceinline__ void issue_product(float (&x)[32], const u32 (&q)[dim_steps][4],
                                                  const Operands& operands) const {
        constexpr Product product = product_of(job);
        if constexpr (product.of_query) {
            chunk_product(x, q, operands.chunks[product.chunk] + pk_offset / 16);
        } else {
            chunk_product(x, operands.k, operands.chunks[product.chunk] + pq_offset / 16);
        }
    }

    // No work beside the products.
    struct NoWork {
        template <int job>
        __device__ __forceinline__ void run() const {}
    };
    // A share of a near tile's probabilities.
    struct Share {
        Probabilities probabilities;
        float (&s)[block_n / 2];

        template <int job>
        __device__ __forceinline__ void run() const {
            probabilities.steps(s, job * (block_n / 16) / products, (job + 1) * (block_n / 16) / products);
        }
    };

    // Product `job` is in flight; the next one runs under its stores and `work`.
    template <int job, class Work>
    __device__ __forceinline__ void finish_products(float (&x)[32], const u32 (&q)[dim_steps][4], Operands& operands,
                                                    const ScoreBuffers& at, Work work) const {
        constexpr Product product = product_of(job);
        ShiftedScores packed;
        wgmma_wait<0>();
        settle(x);
        packed.pack<product.of_query ? 1 : 0>(x);
        // K's next unit as soon as the last product with this one is done.
        constexpr bool next_unit = !product.of_query && product.chunk > product.unit && product.unit + 1 < units;
        if constexpr (next_unit && !c2p) load_keys<product.unit + 1>(operands);
        if constexpr (job + 1 < products) issue_product<job + 1>(x, q, operands);
        if constexpr (next_unit && c2p) load_keys<product.unit + 1>(operands);
        work.template run<job>();
        if constexpr (product.of_query) {
            store_c(packed, at, lane, product.chunk);
        } else {
            store_t(packed, at, lane, product.unit, product.chunk - product.unit);
        }
        if constexpr (job + 1 < products) finish_products<job + 1>(x, q, operands, at, work);
    }

    // The position scores of the near tile whose K is at k, into the buffers, with `work` in between. K's barrier has
    // been waited for.
    template <class Work>
    __device__ __forceinline__ void position_scores(const u32 (&q)[dim_steps][4], const ScoreBuffers& at, int k_slot,
                                                    Work work) {
        float x[32];
        Operands operands;
        operands.k_tile = k_tile(k_slot);
        if constexpr (p2c) load_keys<0>(operands);
#pragma unroll
        for (int number = 0; number <= units; ++number)
            operands.chunks[number] =
                (shared >> 4) + strip.ahead(warpgroups - 1 - group + number).slot * (chunk_bytes / 16);
        issue_product<0>(x, q, operands);
        finish_products<0>(x, q, operands, at, work);
        if constexpr (!resident) release_chunks(units);
    }

    // One near tile, whose position scores lie in the buffers. Those of the next tile are made under its exponentials.
    template <bool last>
    __device__ __forceinline__ void near_tile(float (&o)[head_dim / 2], Rows& rows, const u32 (&paired)[dim_steps][4],
                                              const ScoreBuffers& at, int keys_left, bool first, bool last_phase) {
        float s[block_n / 2];
        const RingPosition<stages> behind = kv.behind(), ahead = kv.ahead(1);
        const bool k_ready = last || test(k_full + 8 * ahead.slot, ahead.parity);
        const bool v_ready = test(v_full + 8 * kv.slot, kv.parity);
        if constexpr (p2c)
            group_barrier();  // T is written by all warps
        else
            __syncwarp();
#pragma unroll
        for (int unit = 0; unit < units; ++unit) {
            read_unit(part<32>(s, unit), at, unit);
            add_scores(part<32>(s, unit), kv.slot, unit);
        }
        if constexpr (p2c && !last)
            group_barrier();  // read by all warps
        else
            __syncwarp();
        wgmma_wait<0>();
        settle(s);
        settle(o);
        if (last && last_phase) release(q_empty);
        if (!first) release(v_empty + 8 * behind.slot);
        hide(s, rows, kv.slot, keys_left);
        release(k_empty + 8 * kv.slot);
        Softmax softmax;
        softmax.begin<true>(s, rows, p.scale_log2);
        if (softmax.moved(rows)) rescale(o, softmax.ratio);
        await(v_ready, v_full + 8 * kv.slot, kv.parity);
        const Probabilities probabilities{softmax, o, operand(v_offset, kv.slot, tile_bytes), p.scale_log2};
        if constexpr (last) {
            probabilities.steps(s, 0, block_n / 16);
        } else {
            await(k_ready, k_full + 8 * ahead.slot, ahead.parity);
            position_scores(paired, at, ahead.slot, Share{probabilities, s});
        }
        softmax.finish(rows);
        kv.advance();
    }

    __device__ __forceinline__ void near_tiles(float (&o)[head_dim / 2], Rows& rows, int begin, int end, int length,
                                               bool last_phase) {
        u32 paired[dim_steps][4];
        if constexpr (c2p) load_operand<block_m, true>(paired, shared + q_offset, 64 * group + 16 * lane.warp, lane);
        const ScoreBuffers at(scratch(), lane);
        await(k_full + 8 * kv.slot, kv.parity);
        position_scores(paired, at, kv.slot, NoWork());
        int t = begin;
#pragma unroll 1
        for (; t < end - 1; ++t) near_tile<false>(o, rows, paired, at, length - t * block_n, t == begin, false);
        near_tile<true>(o, rows, paired, at, length - t * block_n, t == begin, last_phase);
        if constexpr (!resident) release_chunks(warpgroups);
        wgmma_wait<0>();
        settle(o);
        release(v_empty + 8 * kv.behind().slot);
    }
};
