// dK and dV of 64 keys. Everything is transposed, rows are keys, so that P and dS go from accumulators straight to A
// operands. Query rows lie in shared memory in the order of accumulator runs: thread c holds the 16 queries 16c .. of
// its two keys.
//
// Dynamic shared memory, in this order (tiles swizzled for wgmma):
//   K, V     [64][head_dim]
//   queries  [2 slots][Q | dO][64][head_dim]; in far tiles Q + PQ_end in place of Q
//   PK       [2 chunks][64][head_dim]; in far tiles the third slot of queries
//   PQ       [3 chunks][64][head_dim]
//   C        [64 queries][score_pitch] fp16: q.PK by key; groups of 16 rows are shifted by group_shift
//   T        [64 keys][score_pitch] fp16: k.PQ by query; then the sheared dS [4 warps][shear_bytes]
//   lse      [2 stages][4 groups][16 queries and padding] fp32
//   Delta    [2 stages][4 groups][8 pairs of queries, and padding] fp32; without dropout each pair twice, as the
//            accumulators of dP, which start with -Delta
//            and masked query rows, 64 bits
//   dropped  [2 stages][128] u32
//   barriers
// needs: sm90_backward.cuh, disentangled_attention/dropout.h

constexpr int t_bytes = 4 * shear_bytes > score_bytes ? 4 * shear_bytes : score_bytes;

constexpr int k_offset = 0;
constexpr int v_offset = k_offset + operand_bytes;
constexpr int q_offset = v_offset + operand_bytes;
constexpr int slot_bytes = 2 * operand_bytes;
constexpr int pk_offset = q_offset + 2 * slot_bytes;
constexpr int pq_offset = pk_offset + slot_bytes;
constexpr int c_offset = pq_offset + (p2c ? 3 * operand_bytes : 0);
constexpr int t_offset = c_offset + (c2p ? gathered_bytes : 0);
constexpr int statistics_offset = t_offset + (p2c ? t_bytes : 0);
constexpr int statistics_slot = statistics_bytes + 16;  // then 64 bits of masked rows
constexpr int dropped_offset = statistics_offset + 2 * statistics_slot;
constexpr int barrier_offset = dropped_offset + (dropout ? 2 * 512 : 0);
constexpr int pk_full = barrier_offset, pq_full = pk_full + 8 * 2, slot_full = pq_full + 8 * 3,
              zeros_offset = slot_full + 8 * 3, shared_end = zeros_offset + 32;

struct KeyBlock {
    const BackwardParams& p;
    unsigned char* memory;
    u32 shared;
    int thread;
    Lane lane;
    Block block;
    int near_begin, near_end, tiles;  // of query tiles: [0, near_begin) low end, [near_end, tiles) high end
    int slot;                         // of the tile at work
    const u16 *q, *dout;
    TileRows<order_runs> q_rows, dout_rows;  // of the next tile
    const float2* statistics;                // of this thread's row of the next tile
    PositionTables tables;
    u32 phases = 0;    // parities of the barriers of the slots
    u16* near;         // where the next near tile of dS goes
    int near_left;     // near tiles up to the last slot there
    float2 note;       // read from there
    bool note_hidden;  // and whether the row is masked
    bool dead[2];      // keys that kept queries do not attend
    bool outside[2];   // keys beyond the sequence's end
    bool special;      // some key of the block is dead
    u32 k_paired[dim_steps][4];
    u32 q_paired[dim_steps][4];

    __device__ __forceinline__ KeyBlock(const BackwardParams& params, unsigned char* block_memory, u32 address,
                                        int thread_number, const Block& of)
        : p(params),
          memory(block_memory),
          shared(address),
          thread(thread_number),
          lane(thread_number),
          block(of),
          tables(params, of.head) {
        lane.warp = int(__reduce_max_sync(nothing, u32(lane.warp)));
        tiles = tiles_of(block.length);
        const int width = near_width(p);
        near_begin = has_bias ? min(max(block.tile - width, 0), tiles) : 0;
        near_end = has_bias ? min(block.tile + width + 1, tiles) : 0;
        q = block.rows(p.q, p.q_batch, p.q_row, p.q_head);
        dout = block.rows(p.dout, p.dout_batch, p.dout_row, p.dout_head);
    }

    __device__ __forceinline__ u32 operand(int offset, int number) const {
        return (shared >> 4) + offset / 16 + number * (operand_bytes / 16);
    }

    __device__ __forceinline__ u32 q_operand(int of) const { return operand(q_offset, 2 * of); }
    __device__ __forceinline__ u32 dout_operand(int of) const { return operand(q_offset, 2 * of + 1); }

    // Slots of far tiles take turns; the slots of near tiles are 0 and 1, the first one's is 0.
    static __device__ __forceinline__ int after(int of, bool near) { return near ? of ^ 1 : of == 2 ? 0 : of + 1; }
    __device__ __forceinline__ bool is_near(int t) const { return has_bias && t >= near_begin && t < near_end; }

    __device__ __forceinline__ void aim(int t) {
        const int i0 = t * block_rows, end = t < near_begin ? end_low : end_high;
        const bool far = has_bias && !is_near(t);
        if (p2c && far)
            q_rows.aim(shifted_tile(p, end, block.base + t), head_dim, thread);
        else
            q_rows.aim(q + i0 * p.q_row, p.q_row, thread);
        dout_rows.aim(dout + i0 * p.dout_row, p.dout_row, thread);
        statistics = reinterpret_cast<const float2*>(statistics_plane(p, far ? end : -1) + block.row0 + i0 + thread);
    }

    __device__ __forceinline__ unsigned char* statistics_of(int stage) const {
        return memory + statistics_offset + stage * statistics_slot;
    }

    // Brings a query tile from its record.
    __device__ __forceinline__ void bring_tile(int t, int to_slot) const {
        const bool far = has_bias && !is_near(t);
        const int end = t < near_begin ? end_low : end_high;
        const u32 to = shared + q_offset + to_slot * slot_bytes, full = shared + slot_full + 8 * to_slot;
        const unsigned char* from = record(p, block.base + t);
        const unsigned char* values = from + record_statistics + (c2p && far ? (end + 1) * statistics_stride : 0);
        barrier_expect_bytes(full, 2 * operand_bytes + statistics_slot);
        copy_bulk(to, from + (p2c && far ? record_shifted + end * operand_bytes : record_q), operand_bytes, full);
        copy_bulk(to + operand_bytes, from + record_dout, operand_bytes, full);
        copy_bulk(shared + statistics_offset + (t & 1) * statistics_slot, values, statistics_slot, full);
        barrier_arrive(full);
    }

    // Brings the rows of a query tile.
    __device__ __forceinline__ void prefetch(int t, int to_slot) {
        if constexpr (tiled) {
            if (thread == 0) bring_tile(t, to_slot);
            __syncwarp();
            return;
        }
        if (t == near_begin || t == near_end) aim(t);
        const int left = block.length - t * block_rows;
        const u32 to = shared + q_offset + to_slot * slot_bytes;
        q_rows.copy(to, p2c && has_bias && !is_near(t) ? head_dim : p.q_row, left, thread);
        dout_rows.copy(to + operand_bytes, p.dout_row, left, thread);
        copy_async_commit();
        note = {__int_as_float(0x7f800000), 0.0f};  // beyond the end P = 0
        note_hidden = false;
        if (thread < block_rows && thread < left) {
            note = *statistics;
            if constexpr (mask) note_hidden = !p.mask[block.batch * p.mask_batch + t * block_rows + thread];
        }
        statistics += block_rows;
    }

    // Everything that was prefetched for tile t is in shared memory, and all warps are done with what the tile after it
    // will overwrite.
    __device__ __forceinline__ void begin_tile(int t) {
        const int stage = t & 1;
        if constexpr (!tiled) {
            if (thread < block_rows) store_statistics(statistics_of(stage), thread, note.x, note.y);
            if constexpr (mask) {
                const u32 bits = __ballot_sync(nothing, note_hidden);
                if (thread < block_rows && lane.lane == 0)
                    reinterpret_cast<u32*>(statistics_of(stage) + statistics_bytes)[lane.warp] = bits;
            }
            copy_async_wait<0>();
            async_proxy_fence();
        }
        if constexpr (dropout)
            reinterpret_cast<u32*>(memory + dropped_offset)[128 * stage + thread] =
                dropped_patch(p.dropout, unsigned(block.batch * p.heads + block.head), t * 32 + (thread & 31),
                              block.tile * 4 + (thread >> 5));
        __syncthreads();
        if (t + 1 < tiles) prefetch(t + 1, after(slot, is_near(t)));
        if constexpr (tiled) {
            barrier_wait(shared + slot_full + 8 * slot, phases >> slot & 1);
            phases ^= 1u << slot;
        }
    }

    // Masked query rows attend every key in range equally; kept ones no masked key. `dp` of hidden rows comes later.
    __device__ __forceinline__ void hide(float (&s)[32], u32 hidden) const {
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int b = 0; b < 2; ++b) {
                    const bool row = mask && (hidden >> (2 * n + b) & 1);
                    float& score = s[4 * n + 2 * half + b];
                    score = (row ? outside[half] : dead[half]) ? -__int_as_float(0x7f800000) : row ? 0.0f : score;
                }
    }

    // This thread's 16 queries that are masked.
    __device__ __forceinline__ u32 hidden_queries(int stage) const {
        if constexpr (!mask) return 0;
        const u32 word = reinterpret_cast<const u32*>(statistics_of(stage) + statistics_bytes)[lane.c >> 1];
        return word >> 16 * (lane.c & 1) & 0xffffu;
    }
    __device__ __forceinline__ bool any_hidden(int stage) const {
        if constexpr (!mask) return false;
        const u32* words = reinterpret_cast<const u32*>(statistics_of(stage) + statistics_bytes);
        return (words[0] | words[1]) != 0;
    }

    struct Dropped {
        u32 words[8];  // of query 2n + b, n mod 4; bit 8 * (n / 4) + half of the shifted word
        float scale;

        __device__ __forceinline__ bool at(int n, int half, int b) const {
            return words[2 * (n & 3) + b] >> (8 * (n >> 2) + half) & 1;
        }
    };

    __device__ __forceinline__ void load_dropped(Dropped& d, int stage) const {
        if constexpr (dropout) {
            const u32 from = shared + dropped_offset + 512 * stage + 4 * (32 * (lane.g >> 1) + 8 * lane.c);
            const Words4 low = load_shared16(from), high = load_shared16(from + 16);
            d.words[0] = low.x, d.words[1] = low.y, d.words[2] = low.z, d.words[3] = low.w;
            d.words[4] = high.x, d.words[5] = high.y, d.words[6] = high.z, d.words[7] = high.w;
#pragma unroll
            for (int i = 0; i < 8; ++i) d.words[i] >>= 16 * (lane.g & 1) + 2 * lane.warp;
            d.scale = p.dropout.scale;
        }
    }

    // Of this thread's queries.
    __device__ __forceinline__ void load_lse(float (&lse)[16], int stage) const {
        const u32 from = shared + statistics_offset + stage * statistics_slot + lane.c * lse_group;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const Words4 words = load_shared16(from + 16 * n);
            lse[4 * n] = __uint_as_float(words.x), lse[4 * n + 1] = __uint_as_float(words.y);
            lse[4 * n + 2] = __uint_as_float(words.z), lse[4 * n + 3] = __uint_as_float(words.w);
        }
    }

    // Scores to P, and P as an operand of dV.
    __device__ __forceinline__ void probabilities(float (&s)[32], u32 (&a)[4][4], const float (&lse)[16],
                                                  const Dropped& dropped) const {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float kept[2];
#pragma unroll
                for (int b = 0; b < 2; ++b) {
                    float& x = s[4 * n + 2 * half + b];
                    x = exp2_approx(x * p.scale_log2 - lse[2 * n + b]);
                    kept[b] = x;
                    if constexpr (dropout) kept[b] = dropped.at(n, half, b) ? 0.0f : x * dropped.scale;
                }
                a[n >> 1][2 * (n & 1) + half] = pack2<dtype>(kept[0], kept[1]);
            }
        }
    }

    // What dP's accumulators start with.
    __device__ __forceinline__ void start_gradients(float (&dp)[32], int stage) const {
        const u32 from = shared + statistics_offset + stage * statistics_slot + lse_bytes + lane.c * delta_group;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            Words4 words = {0, 0, 0, 0};
            if constexpr (!dropout) words = load_shared16(from + 16 * n);
            dp[4 * n] = __uint_as_float(words.x), dp[4 * n + 1] = __uint_as_float(words.y);
            dp[4 * n + 2] = __uint_as_float(words.z), dp[4 * n + 3] = __uint_as_float(words.w);
        }
    }

    // dP - Delta, with dropout dP, to dS = P (dP - Delta), as an operand of dK.
    __device__ __forceinline__ void score_gradients(const float (&s)[32], const float (&dp)[32], u32 (&a)[4][4],
                                                    int stage, const Dropped& dropped, u32 hidden) const {
        const u32 from = shared + statistics_offset + stage * statistics_slot + lse_bytes + lane.c * delta_group;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            float delta[2] = {0.0f, 0.0f};
            if constexpr (dropout) {
                const Words4 words = load_shared16(from + 16 * (n >> 1));
                delta[0] = __uint_as_float(n & 1 ? words.z : words.x),
                delta[1] = __uint_as_float(n & 1 ? words.w : words.y);
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float ds[2];
#pragma unroll
                for (int b = 0; b < 2; ++b) {
                    const int at = 4 * n + 2 * half + b;
                    float x = dp[at];
                    if constexpr (dropout) x = (dropped.at(n, half, b) ? 0.0f : x * dropped.scale) - delta[b];
                    ds[b] = s[at] * x;
                    if constexpr (mask) ds[b] = hidden >> (2 * n + b) & 1 ? 0.0f : ds[b];
                }
                a[n >> 1][2 * (n & 1) + half] = pack2<dtype>(ds[0], ds[1]);
            }
        }
    }

    // From scores, and dP that is still in flight, to dV and dS.
    __device__ __forceinline__ void attend(float (&dk)[head_dim / 2], float (&dv)[head_dim / 2], float (&s)[32],
                                           float (&dp)[32], const float (&lse)[16], u32 (&ds)[4][4], int t) const {
        const int stage = t & 1;
        u32 a[4][4];
        Dropped dropped;
        load_dropped(dropped, stage);
        u32 hidden = 0;
        if (special || any_hidden(stage)) {
            hidden = hidden_queries(stage);
            hide(s, hidden);
        }
        probabilities(s, a, lse, dropped);
        wgmma_wait<0>();
        settle(dp);
        settle(dk);
        wgmma_fence();
        add_rows_product(dv, a, dout_operand(slot));
        wgmma_commit();
        score_gradients(s, dp, ds, stage, dropped, hidden);
    }

    // A far tile, up to dS. dK of the tile before runs under its exponentials.
    template <bool first>
    __device__ __forceinline__ void far_tile(float (&dk)[head_dim / 2], float (&dv)[head_dim / 2], u32 (&ds)[4][4],
                                             int t) {
        float s[32], dp[32];
        const int behind = slot;
        if constexpr (!first) slot = after(slot, false);
        begin_tile(t);
        wgmma_fence();
        scores_product(s, operand(k_offset, 0), q_operand(slot));
        wgmma_commit();
        float lse[16];
        start_gradients(dp, t & 1);
        load_lse(lse, t & 1);
        wgmma_fence();
        if constexpr (!first) add_rows_product(dk, ds, q_operand(behind));
        add_scores_product(dp, operand(v_offset, 0), dout_operand(slot));
        wgmma_commit();
        wgmma_wait<1>();
        settle(s);
        attend(dk, dv, s, dp, lse, ds, t);
        wgmma_wait<0>();
        settle(dv);
    }

    __device__ __forceinline__ void far_tiles(float (&dk)[head_dim / 2], float (&dv)[head_dim / 2], int begin,
                                              int end) {
        u32 ds[4][4];
        far_tile<true>(dk, dv, ds, begin);
#pragma unroll 1
        for (int t = begin + 1; t < end; ++t) far_tile<false>(dk, dv, ds, t);
        wgmma_fence();
        add_rows_product(dk, ds, q_operand(slot));
        wgmma_commit();
        wgmma_wait<0>();
        settle(dk);
        slot = after(slot, false);
    }

    // A operand of 16 queries of a tile in pairs of rows, straight from memory: the tile's own rows are in another
    // order.
    __device__ __forceinline__ void load_queries(int t) {
        if constexpr (c2p && tiled) {
            const Words4* from = reinterpret_cast<const Words4*>(record(p, block.base + t) + record_paired) +
                                 lane.warp * dim_steps * 32 + lane.lane;
#pragma unroll
            for (int step = 0; step < dim_steps; ++step) {
                const Words4 words = from[32 * step];
                q_paired[step][0] = words.x, q_paired[step][1] = words.y;
                q_paired[step][2] = words.z, q_paired[step][3] = words.w;
            }
        } else if constexpr (c2p) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                // Rows beyond the end have P = 0 whatever their scores.
                const int i = min(t * block_rows + 16 * lane.warp + 2 * lane.g + half, block.length - 1);
                const u16* row = q + i * p.q_row + 2 * lane.c;
#pragma unroll
                for (int step = 0; step < dim_steps; ++step)
#pragma unroll
                    for (int part = 0; part < 2; ++part)
                        q_paired[step][2 * part + half] = *reinterpret_cast<const u32*>(row + 16 * step + 8 * part);
            }
        }
    }

    // Distance chunk number `n` of the block's near tiles, from the lowest: chunks n and n + 1 lie under near tile n.
    __device__ __forceinline__ void bring_keys(int n) const {
        const u32 slot = n & 1;
        copy_operand(shared + pk_offset + slot * operand_bytes,
                     tables.chunk(near_begin - block.tile - 1 + n, expanded_key), shared + pk_full + 8 * slot);
    }
    __device__ __forceinline__ void bring_queries(int n) const {
        const u32 slot = n % 3;
        copy_operand(shared + pq_offset + slot * operand_bytes,
                     tables.chunk(near_begin - block.tile - 1 + n, expanded_query), shared + pq_full + 8 * slot);
    }
    __device__ __forceinline__ void await_keys(int n) const {
        barrier_wait(shared + pk_full + 8 * (n & 1), n >> 1 & 1);
    }
    __device__ __forceinline__ void await_queries(int n) const {
        barrier_wait(shared + pq_full + 8 * (n % 3), n / 3 & 1);
    }

    // dP - Delta of tile t, in flight.
    __device__ __forceinline__ void issue_gradients(float (&dp)[32], int t) const {
        start_gradients(dp, t & 1);
        wgmma_fence();
        add_scores_product(dp, operand(v_offset, 0), dout_operand(slot));
        wgmma_commit();
    }

    // Position scores of near tile n of the block into C and T, and T's words of this thread into t_words. dP comes
    // second.
    __device__ __forceinline__ void position_scores(float (&dp)[32], u32 (&t_words)[2][8], int n, int t) {
        int warp = lane.warp, g = lane.g, c = lane.c;
        asm volatile("" : "+r"(warp), "+r"(g), "+r"(c));
        const int sum = warp + c, row = 16 * warp + 2 * g, column = 16 * sum + 2 * g;
        const u32 c_store = shared + c_offset + score_spill + row * score_pitch + warp * group_shift + 2 * column;
        const u32 t_store = shared + t_offset + score_spill + row * score_pitch + 2 * column;
        float x[32];
        ShiftedScores packed;
        if constexpr (p2c) {
            if (n == 0) await_queries(0);
            await_queries(n + 1);
            chunk_product(x, k_paired, operand(pq_offset, n % 3));
            issue_gradients(dp, t);
            wgmma_wait<1>();
            settle(x);
            packed.pack<0>(x);
            chunk_product(x, k_paired, operand(pq_offset, (n + 1) % 3));
            packed.store<0, score_pitch>(t_store - 128, sum >= 3);
            wgmma_wait<0>();
            settle(x);
            packed.pack<0>(x);
        }
        if constexpr (c2p) {
            if (n == 0) await_keys(0);
            await_keys(n + 1);
            chunk_product(x, q_paired, operand(pk_offset, (n + 1) & 1));
            if constexpr (!p2c) issue_gradients(dp, t);
        }
        if constexpr (p2c) {
            packed.store<0, score_pitch>(t_store, sum <= 3);
            __syncwarp();
            const u32 from = shared + t_offset + score_spill + (16 * warp + g) * score_pitch + 32 * c;
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const Words4 words = load_shared16(from + 8 * half * score_pitch + 16 * i);
                    t_words[half][4 * i] = words.x, t_words[half][4 * i + 1] = words.y;
                    t_words[half][4 * i + 2] = words.z, t_words[half][4 * i + 3] = words.w;
                }
        }
        if constexpr (c2p) {
            wgmma_wait<0>();
            settle(x);
            packed.pack<1>(x);
            chunk_product(x, q_paired, operand(pk_offset, n & 1));
            packed.store<1, score_pitch>(c_store - 126, sum >= 3);
            wgmma_wait<0>();
            settle(x);
            packed.pack<1>(x);
            if (t + 1 < near_end) load_queries(t + 1);
            packed.store<1, score_pitch>(c_store + 2, sum <= 3);
        }
    }

    // Their sum as the scores' accumulators.
    __device__ __forceinline__ void read_scores(float (&s)[32], const u32 (&t_words)[2][8]) const {
        int row = 16 * (lane.lane >> 1 & 3) + (lane.lane & 1) + 2 * (lane.lane >> 4);
        asm volatile("" : "+r"(row));
        const u32 from = shared + c_offset + score_spill + row * score_pitch + (row >> 4) * group_shift +
                         2 * (16 * lane.warp + 8 * (lane.lane >> 3 & 1));
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            u32 c[4];
            if constexpr (c2p) load_matrices_transposed(c, from + 4 * x * score_pitch);
#pragma unroll
            for (int part = 0; part < 4; ++part) {
                const int n = 2 * x + (part >> 1), half = part & 1;
                u32 sum = c2p ? c[part] : t_words[half][n];
                if constexpr (c2p && p2c)
                    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(c[part]), "r"(t_words[half][n]));
                s[4 * n + 2 * half] = half_to_float(sum);
                s[4 * n + 2 * half + 1] = half_to_float(sum >> 16);
            }
        }
    }

    // Near dS as the layout orders it: rows of 8 queries, 0 4 1 5 2 6 3 7, of one key.
    __device__ __forceinline__ void store_near(const u32 (&words)[2][8]) {
        u16* tile = near;
        const int slots = near_slots(p);
        near += tile_rows * tile_rows;
        if (--near_left == 0) near -= slots * (tile_rows * tile_rows), near_left = slots;
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const u32* w = &words[half][4 * i];
                const Words4 row = {permute_bytes(w[0], w[2], 0x5410), permute_bytes(w[0], w[2], 0x7632),
                                    permute_bytes(w[1], w[3], 0x5410), permute_bytes(w[1], w[3], 0x7632)};
                *reinterpret_cast<Words4*>(tile + half * 512 + i * 64) = row;
            }
    }

    __device__ __forceinline__ void near_tile_of(float (&dk)[head_dim / 2], float (&dv)[head_dim / 2], int t) {
        const int n = t - near_begin;
        float s[32], dp[32];
        u32 t_words[2][8];
        begin_tile(t);
        if (p2c && thread == 0 && t + 1 < near_end) bring_queries(n + 2);
        __syncwarp();
        position_scores(dp, t_words, n, t);
        __syncthreads();  // C is written by all warps; a warp's scores wander into the rows of its neighbour's T
        if (c2p && thread == 32 && t + 1 < near_end) bring_keys(n + 2);
        __syncwarp();
        float lse[16];
        load_lse(lse, t & 1);
        read_scores(s, t_words);
        wgmma_fence();
        add_scores_product(s, operand(k_offset, 0), q_operand(slot));
        wgmma_commit();
        wgmma_wait<0>();
        settle(s);
        u32 ds[4][4];
        attend(dk, dv, s, dp, lse, ds, t);
        wgmma_fence();
        add_rows_product(dk, ds, q_operand(slot));
        wgmma_commit();
        u32 words[2][8];
#pragma unroll
        for (int i = 0; i < 8; ++i) words[0][i] = ds[i >> 1][2 * (i & 1)], words[1][i] = ds[i >> 1][2 * (i & 1) + 1];
        if constexpr (p2c) {
            const Shear shear{shared + t_offset + lane.warp * shear_bytes, shared + zeros_offset, lane};
            shear.clear<16>();
            __syncwarp();
            shear.store<16>(words[0], lane.g);
            shear.store<16>(words[1], lane.g + 8);
            __syncwarp();
            u32 low[4][4], high[4][4];
            shear.load(low, 0, lane.g);
            shear.load(high, 1, lane.g);
            wgmma_fence();
            add_rows_product(dk, low, operand(pq_offset, n % 3));
            add_rows_product(dk, high, operand(pq_offset, (n + 1) % 3));
            wgmma_commit();
        }
        store_near(words);
        wgmma_wait<0>();
        settle(dk);
        settle(dv);
        slot = after(slot, true);
    }

    __device__ __forceinline__ void near_tiles(float (&dk)[head_dim / 2], float (&dv)[head_dim / 2]) {
        __syncthreads();  // PK lies in a slot of far tiles
        if (c2p && thread == 32) bring_keys(0), bring_keys(1);
        __syncwarp();
        load_queries(near_begin);
        near = near_tile(p, block.base, near_begin, block.tile) + (2 * lane.warp * 8 + 2 * lane.c) * 64 + lane.g * 8;
        near_left = near_slots(p) - near_begin % near_slots(p);
#pragma unroll 1
        for (int t = near_begin; t < near_end; ++t) near_tile_of(dk, dv, t);
    }

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
        if constexpr (p2c) {
            load_operand<block_rows, true>(k_paired, shared + k_offset, 16 * lane.warp, lane);
        }
        float dk[head_dim / 2], dv[head_dim / 2];
#pragma unroll
        for (int i = 0; i < head_dim / 2; ++i) dk[i] = dv[i] = 0.0f;
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
        store_rows(dk, p.scale, memory, shared, q_offset, lane, order, to_dk, p.dk_row, left);
        store_rows(dv, 1.0f, memory, shared, q_offset + slot_bytes, lane, order, to_dv, p.dv_row, left);
    }
};
