// The consumer's loop over items, and its output.
// needs: sm90_near.cuh, disentangled_attention/sequence.cuh

struct Consumer : NearTiles {
    using NearTiles::NearTiles;

    // O / l through shared memory, for stores of 16 bytes.
    __device__ __forceinline__ void store(const Output& o, const Rows& rows, const Item& item) const {
        const Lane lane = here();
        int warp = lane.warp;
        asm volatile("" : "+r"(warp));  // keeps the addresses here out of the registers of the loops
        const u32 stage = shared + scratch_offset + spill_bytes + (4 * group + warp) * warp_bytes;
        const int row0 = item.row0 + 64 * group + 16 * warp;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float l = sum_column ? o[out_elements - 4 + 2 * half] : rows.l[half];
            if constexpr (!sum_column) {
                l += __shfl_xor_sync(0xffffffffu, l, 1);
                l += __shfl_xor_sync(0xffffffffu, l, 2);
            }
            if (rows.masked(half)) l = weight_of_zero * float(item.length);
            const float inverse = l > 0.0f ? (dropout ? p.dropout.scale / kept_factor : 1.0f) / l : 0.0f;
            const u32 to = stage + (lane.g + 8 * half) * out_pitch + 4 * lane.c;
#pragma unroll
            for (int n = 0; n < head_dim / 8; ++n)
                store_word(to + 16 * n, pack2<dtype>(o[4 * n + 2 * half] * inverse, o[4 * n + 2 * half + 1] * inverse));
            const int i = row0 + lane.g + 8 * half;
            if (lse && lane.c == 0 && i < item.length) {
                const s64 row =
                    packed ? item.head * p.tokens + item.first : (s64(item.batch) * p.heads + item.head) * p.length;
                p.lse[row + i] = rows.m[half] * p.scale_log2 + log2_approx(l);
            }
        }
        __syncwarp();
        int lane_in_warp = lane.lane;
        asm volatile("" : "+r"(lane_in_warp));
        u16* out = static_cast<u16*>(p.out) + (packed ? 0 : item.batch * p.out_batch) +
                   s64(item.first + row0) * p.out_row + item.head * p.out_head;
#pragma unroll
        for (int i = 0; i < 16 * row_chunks / 32; ++i) {
            const int at = lane_in_warp + 32 * i, row = at / row_chunks, chunk = at % row_chunks;
            if (row0 + row >= item.length) continue;
            const Words4 words = load_shared16(stage + row * out_pitch + chunk * 16);
            u16* to = out + row * p.out_row + chunk * 8;
            if constexpr (aligned) {
                *reinterpret_cast<Words4*>(to) = words;
            } else {
                const u32 word[4] = {words.x, words.y, words.z, words.w};
                for (int e = 0; e < 8; ++e) to[e] = u16(word[e / 2] >> 16 * (e & 1));
            }
        }
        __syncwarp();
    }

    __device__ __forceinline__ void run() {
        u32 turn = 0;  // items so far
        for (Schedule work(p); work.more(); work.next()) {
            const Item item = locate_item(p, work.item);
            if (!item.exists) continue;
            Output o;
            [[maybe_unused]] u32 q[dim_steps][4];
            Rows rows;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                rows.m[half] = rows.hidden[half] = masked_score;
                rows.l[half] = 0.0f;
            }
#pragma unroll
            for (int i = 0; i < out_elements; ++i) o[i] = 0.0f;

            if constexpr (resident) {  // the producer asks for new chunks before it loads Q
                if (resident_head >= 0 && resident_head != item.head) release_chunks(tile_chunks);
                resident_head = item.head;
            }
            int first_key = 0, key_count = item.length;
            bool hidden = false;  // all rows
            if constexpr (mask) {
                const u32 which = turn & 1, range = shared + range_offset + range_bytes * which;
                await(range_full + 8 * which, turn >> 1 & 1);
                first_key = int(load_word(range)), key_count = int(load_word(range + 4));
                hidden = int(load_word(range + 8)) == hidden_all;
                const Lane lane = here();
                const u32 masked = load_word(range + 16 + 4 * (2 * group + lane.warp / 2)) >>
                                   (16 * (lane.warp & 1) + lane.g);
                release(range_empty + 8 * which);
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    rows.m[half] = rows.hidden[half] = masked >> 8 * half & 1 ? 0.0f : masked_score;
            }
            const KeyTiles tiles = key_tiles<block_m, block_n, has_bias>(p, item.row0, first_key, key_count);
            await(q_full, turn & 1);
            ++turn;
            if (mask && hidden) {
                mean_tiles(o, tiles.begin, tiles.end);
                store(o, rows, item);
                continue;
            }
            if constexpr (far) {
#pragma unroll 1
                for (int phase = 0; phase < 3; ++phase) {  // far at the high end, near, far at the low end
                    const int begin = phase == 0 ? tiles.begin : phase == 1 ? tiles.near_begin : tiles.near_end;
                    const int end = phase == 0 ? tiles.near_begin : phase == 1 ? tiles.near_end : tiles.end;
                    if (begin == end) continue;
                    if (has_bias && phase == 1) {
                        if constexpr (has_bias)
                            near_tiles(o, rows, begin, end, item.length, end == tiles.end);
                    } else {
                        load_query(q, rows, phase / 2, item);
                        if (end == tiles.end) release(q_empty);
                        far_tiles(o, rows, q, begin, end, item);
                    }
                }
            } else {
                near_tiles(o, rows, tiles.begin, tiles.end, item.length, true);
            }
            store(o, rows, item);
        }
    }
};
