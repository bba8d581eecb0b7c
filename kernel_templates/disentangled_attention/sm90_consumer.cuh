// A consumer warpgroup: 64 query rows of each item.
// needs: sm90_position.cuh, sm90_softmax.cuh, common/mbarrier.cuh, disentangled_attention/sequence.cuh

// The number-th `size` elements.
template <int size, int count>
__device__ __forceinline__ float (&part(float (&all)[count], int number))[size] {
    return *reinterpret_cast<float (*)[size]>(&all[size * number]);
}

struct Consumer {
    const ForwardParams& p;
    unsigned char* memory;
    u32 shared;
    int group;                               // which warpgroup
    Lane lane;
    RingPosition<stages> kv;
    RingPosition<ring> strip;
    int resident_head = -1;
    bool hidden_rows = false;                // some query row of the item's block is masked

    __device__ __forceinline__ Consumer(const ForwardParams& params, unsigned char* block_memory, u32 address, int thread)
        : p(params), memory(block_memory), shared(address), group(int(__reduce_max_sync(0xffffffffu, u32(thread) / 128))), lane(thread) {}

    __device__ __forceinline__ u32 k_tile(int slot) const { return shared + k_offset + slot * tile_bytes; }
    // Tiles as wgmma operands, in units of 16 bytes.
    __device__ __forceinline__ u32 operand(int offset, int slot, int bytes) const {
        return (shared >> 4) + offset / 16 + slot * (bytes / 16);
    }
    __device__ __forceinline__ u32 scratch() const { return shared + scratch_offset + group * scratch_bytes; }

    // One arrival for each warp, after all its lanes came here.
    __device__ __forceinline__ void release(u32 barrier) const {
        __syncwarp();
        if (lane.lane == 0) barrier_arrive(shared + barrier);
    }
    __device__ __forceinline__ void await(u32 barrier, u32 parity) const { barrier_wait(shared + barrier, parity); }
    __device__ __forceinline__ bool test(u32 barrier, u32 parity) const { return barrier_test(shared + barrier, parity); }
    __device__ __forceinline__ void await(bool over, u32 barrier, u32 parity) const {
        if (!over) barrier_wait(shared + barrier, parity);
    }
    __device__ __forceinline__ void group_barrier() const { named_barrier(1 + group, 128); }

    // Q.K of the keys of one unit on top of s, with Q from shared memory: registers are short beside the products of the
    // next tile.
    __device__ __forceinline__ void add_scores(float (&s)[32], int slot, int unit) const {
        const u32 k = operand(k_offset, slot, tile_bytes) + unit * (64 * row_bytes / 16);
        const u32 q = (shared >> 4) + q_offset / 16 + group * (64 * row_bytes / 16);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < dim_steps; ++step)
            wgmma_shared<dtype, operand_high, true>(s, key_operand<block_m>(q, step), key_operand<block_n>(k, step));
        wgmma_commit();
    }

    // Masks the scores of a tile.
    __device__ __forceinline__ void hide(float (&s)[block_n / 2], const Rows& rows, int slot, int keys_left) const {
        if (!mask && keys_left >= block_n) return;
#pragma unroll
        for (int unit = 0; unit < units; ++unit) {
            const KeyBits bits(memory, slot, unit, keys_left - 64 * unit);
            if (!bits.all || (mask && __any_sync(0xffffffffu, rows.hidden != 0)))
                apply_mask(part<32>(s, unit), rows, bits, keys_left - 64 * unit, lane.c);
        }
    }

    // Q, or for the tiles beyond one end of the band Q + PQ_e and the constants q_i.PK_e.
    __device__ __forceinline__ void load_query(u32 (&q)[dim_steps][4], Rows& rows, int end) const {
        load_operand<block_m, false>(q, shared + q_offset, 64 * group + 16 * lane.warp, lane);
        rows.bias[0] = rows.bias[1] = 0.0f;
        if (!has_bias || end < 0) return;
        const unsigned char* pk = memory + ends_offset + end * 4 * head_dim + 4 * lane.c;
        const unsigned char* pq = pk + 2 * head_dim;
#pragma unroll
        for (int step = 0; step < dim_steps; ++step)
#pragma unroll
            for (int part = 0; part < 4; ++part) {
                const int at = 32 * step + 16 * (part >> 1);
                const float low = low_of<dtype>(q[step][part]), high = high_of<dtype>(q[step][part]);
                if constexpr (c2p) {
                    const u32 key = *reinterpret_cast<const u32*>(pk + at);
                    rows.bias[part & 1] += low * low_of<dtype>(key) + high * high_of<dtype>(key);
                }
                if constexpr (p2c) {
                    const u32 query = *reinterpret_cast<const u32*>(pq + at);
                    q[step][part] = pack_probability(low + low_of<dtype>(query), high + high_of<dtype>(query));
                }
            }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            rows.bias[half] += __shfl_xor_sync(0xffffffffu, rows.bias[half], 1);
            rows.bias[half] += __shfl_xor_sync(0xffffffffu, rows.bias[half], 2);
            if (rows.hidden >> half & 1) rows.bias[half] = 0.0f;
        }
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

    // Whether no key of the tile is hidden from any row of the block. K's barrier has been waited for.
    __device__ __forceinline__ bool plain_tile(int slot, int keys_left) const {
        bool plain = keys_left >= block_n;
        if constexpr (mask) {
            plain = plain && !hidden_rows;
#pragma unroll
            for (int unit = 0; unit < units; ++unit) plain = plain && KeyBits(memory, slot, unit, keys_left - 64 * unit).all;
        }
        return plain;
    }

    // Scores in s to P in a. P.V of the tile before, whose V is at `behind`, runs under it.
    template <bool first>
    __device__ __forceinline__ void far_softmax(float (&o)[head_dim / 2], float (&s)[block_n / 2], u32 (&a)[block_n / 16][4],
                                                Rows& rows, int behind) {
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
        for (int step = 0; step < block_n / 16; ++step) pack_probabilities(a[step], s, step);
    }

    __device__ __forceinline__ void issue_values(float (&o)[head_dim / 2], const u32 (&a)[block_n / 16][4], int slot) const {
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < block_n / 16; ++step)
            wgmma<dtype, operand_high, true, true>(o, a[step], value_operand(operand(v_offset, slot, tile_bytes), step));
        wgmma_commit();
    }

    __device__ __forceinline__ void issue_tile_scores(float (&s)[block_n / 2], const u32 (&q)[dim_steps][4], int slot) const {
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
    __device__ __forceinline__ void far_tiles(float (&o)[head_dim / 2], Rows& rows, const u32 (&q)[dim_steps][4], int begin,
                                              int end, int length) {
        float s[block_n / 2];
        u32 a[block_n / 16][4];
#pragma unroll 1
        for (int t = begin; t < end;) {
            await(k_full + 8 * kv.slot, kv.parity);
            const bool plain = plain_tile(kv.slot, length - t * block_n);
            issue_tile_scores(s, q, kv.slot);
            wgmma_wait<0>();
            settle(s);
            if (!plain) hide(s, rows, kv.slot, length - t * block_n);
            far_softmax<true>(o, s, a, rows, 0);
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
                wgmma_wait<1>();
                far_softmax<false>(o, s, a, rows, behind.slot);
            }
            finish_values(o, a);
        }
    }

    __device__ __forceinline__ void release_chunks(int count) {
        __syncwarp();
        for (int i = 0; i < count; ++i) {
            if (lane.lane == 0) barrier_arrive(shared + strip_empty + 8 * strip.slot);
            strip.advance();
        }
    }

    // What the products of a near tile need.
    struct Operands {
        u32 chunks[units + 1];   // of this warpgroup, as wgmma operands
        u32 k_tile;
        u32 k[dim_steps][4];     // of the unit at work
    };

    template <int unit>
    __device__ __forceinline__ void load_keys(Operands& operands) const {
        load_operand<block_n, true>(operands.k, operands.k_tile, 64 * unit + 16 * lane.warp, lane);
    }

    template <int job>
    __device__ __forceinline__ void issue_product(float (&x)[32], const u32 (&q)[dim_steps][4], const Operands& operands) const {
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
    __device__ __forceinline__ void position_scores(const u32 (&q)[dim_steps][4], const ScoreBuffers& at, int k_slot, Work work) {
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
                                              const ScoreBuffers& at, int keys_left,
                                              bool first, bool last_phase) {
        float s[block_n / 2];
        const RingPosition<stages> behind = kv.behind(), ahead = kv.ahead(1);
        const bool k_ready = last || test(k_full + 8 * ahead.slot, ahead.parity);
        const bool v_ready = test(v_full + 8 * kv.slot, kv.parity);
        if constexpr (p2c) group_barrier();   // T is written by all warps
        else __syncwarp();
#pragma unroll
        for (int unit = 0; unit < units; ++unit) {
            read_unit(part<32>(s, unit), at, unit);
            add_scores(part<32>(s, unit), kv.slot, unit);
        }
        if constexpr (p2c && !last) group_barrier();   // read by all warps
        else __syncwarp();
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

    // O / l through shared memory, for stores of 16 bytes.
    __device__ __forceinline__ void store(const float (&o)[head_dim / 2], const Rows& rows, const Item& item) const {
        int warp = lane.warp;
        asm volatile("" : "+r"(warp));   // keeps the addresses here out of the registers of the loops
        const u32 stage = scratch() + spill_bytes + warp * 16 * out_pitch;
        const int row0 = item.row0 + 64 * group + 16 * warp;
        if constexpr (!own_stage) group_barrier();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float l = rows.l[half];
            l += __shfl_xor_sync(0xffffffffu, l, 1);
            l += __shfl_xor_sync(0xffffffffu, l, 2);
            const float inverse = l > 0.0f ? 1.0f / l : 0.0f;
            const u32 to = stage + (lane.g + 8 * half) * out_pitch + 4 * lane.c;
#pragma unroll
            for (int n = 0; n < head_dim / 8; ++n)
                store_word(to + 16 * n, pack2<dtype>(o[4 * n + 2 * half] * inverse, o[4 * n + 2 * half + 1] * inverse));
            const int i = row0 + lane.g + 8 * half;
            if (lse && lane.c == 0 && i < item.length) {
                const s64 row = packed ? item.head * p.tokens + item.first : (s64(item.batch) * p.heads + item.head) * p.length;
                p.lse[row + i] = rows.m[half] * p.scale_log2 + log2_approx(l);
            }
        }
        __syncwarp();
        int lane_in_warp = lane.lane;
        asm volatile("" : "+r"(lane_in_warp));
        u16* out = static_cast<u16*>(p.out) + (packed ? 0 : item.batch * p.out_batch) + (item.first + row0) * p.out_row +
                   item.head * p.out_head;
        const unsigned char* from = memory + (stage - shared);
#pragma unroll
        for (int i = 0; i < 16 * row_chunks / 32; ++i) {
            const int at = lane_in_warp + 32 * i, row = at / row_chunks, chunk = at % row_chunks;
            if (row0 + row >= item.length) continue;
            const Words4 words = *reinterpret_cast<const Words4*>(from + row * out_pitch + chunk * 16);
            u16* to = out + row * p.out_row + chunk * 8;
            if constexpr (aligned) {
                *reinterpret_cast<Words4*>(to) = words;
            } else {
                const u32 word[4] = {words.x, words.y, words.z, words.w};
                for (int e = 0; e < 8; ++e) to[e] = u16(word[e / 2] >> 16 * (e & 1));
            }
        }
        if constexpr (!own_stage) group_barrier();
        else __syncwarp();
    }

    __device__ __forceinline__ void run() {
        u32 q_parity = 0;
        for (Schedule work(p); work.more(); work.next()) {
            const Item item = locate_item(p, work.item);
            if (!item.exists) continue;
            float o[head_dim / 2];
            u32 q[dim_steps][4];
            Rows rows;
            rows.hidden = 0;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int i = item.row0 + 64 * group + 16 * lane.warp + lane.g + 8 * half;
                if (mask && i < item.length && !p.mask[item.batch * p.mask_batch + i]) rows.hidden |= 1u << half;
                rows.m[half] = masked_score;
                rows.l[half] = 0.0f;
            }
#pragma unroll
            for (int i = 0; i < head_dim / 2; ++i) o[i] = 0.0f;

            barrier_wait(shared + q_full, q_parity);
            q_parity ^= 1;
            int first_key = 0, key_count = item.length;
            if constexpr (mask) {
                const int* range = reinterpret_cast<const int*>(memory + range_offset);
                first_key = range[0], key_count = range[1], hidden_rows = range[2] != 0;
            }
            const KeyTiles tiles = key_tiles<block_m, block_n, has_bias>(p, item.row0, first_key, key_count);
            if constexpr (resident) {
                if (resident_head >= 0 && resident_head != item.head) release_chunks(tile_chunks);
                resident_head = item.head;
            }
#pragma unroll 1
            for (int phase = 0; phase < 3; ++phase) {   // far at the high end, near, far at the low end
                const int begin = phase == 0 ? tiles.begin : phase == 1 ? tiles.near_begin : tiles.near_end;
                const int end = phase == 0 ? tiles.near_begin : phase == 1 ? tiles.near_end : tiles.end;
                if (begin == end) continue;
                if (has_bias && phase == 1) {
                    if constexpr (has_bias) near_tiles(o, rows, begin, end, item.length, end == tiles.end);
                } else {
                    load_query(q, rows, phase / 2);
                    if (end == tiles.end) release(q_empty);
                    far_tiles(o, rows, q, begin, end, item.length);
                }
            }
            store(o, rows, item);
        }
    }
};
