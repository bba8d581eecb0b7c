// Drawing which weights are dropped, by the producer's warps beside what else they do.
// needs: sm90_layout.cuh, common/mbarrier.cuh, common/philox_fp64.cuh, disentangled_attention/dropout.h,
// disentangled_attention/sequence.cuh

// One of the producer's warps that draw, in turn, the patches of dropout.h that a warp of the consumers needs of a tile,
// one for each thread and unit.
struct Drawer {
    const ForwardParams& p;
    unsigned char* memory;
    u32 shared;
    int next, lane;  // next: the consumers' warp to draw for
    RingPosition<stages> kept;

    // This warp's share of tile t; tiles come in order.
    __device__ __forceinline__ void draw(const Item& item, int t) {
        constexpr int draws = 4 * warpgroups;
        barrier_wait_asleep(shared + kept_empty + 8 * kept.slot, kept.parity ^ 1);
        u32* words = reinterpret_cast<u32*>(memory + kept_offset) + kept.slot * (32 * draws * units) + lane;
#pragma unroll 1
        for (; next < draws; next += draw_warps) {
            const u32 batch_head = u32(item.batch * p.heads + item.head);
            const int row_group = (item.row0 / 16 + next) * 8 + lane / 4, column_group = t * units * 4 + lane % 4;
            if constexpr (units == 2) {
                u32 even, odd;
                dropped_patches<PhiloxFp64>(p.dropout, batch_head, row_group, column_group, even, odd);
                words[32 * next] = ~even;
                words[32 * (draws + next)] = ~odd;
            } else {
                words[32 * next] = ~dropped_patch(p.dropout, batch_head, row_group, column_group);
            }
        }
        next -= draws;
        barrier_arrive(shared + kept_full + 8 * kept.slot);
        kept.advance();
    }

    __device__ __forceinline__ void run() {
        u32 turn = 0;
        for (Schedule work(p); work.more(); work.next()) {
            const Item item = locate_item(p, work.item);
            if (!item.exists) continue;
            int first_key = 0, key_count = item.length;
            if (mask && !one_tile(p)) {
                const u32 which = turn & 1;
                barrier_wait_asleep(shared + range_full + 8 * which, turn >> 1 & 1);
                const MaskRange range = read_range(memory, which);
                first_key = range.first_key, key_count = range.key_count;
                barrier_arrive(shared + range_empty + 8 * which);
                ++turn;
            }
            const KeyTiles tiles = key_tiles<block_m, block_n, has_bias>(p, item.row0, first_key, key_count);
            for (int t = tiles.begin; t < tiles.end; ++t) draw(item, t);
        }
    }
};
