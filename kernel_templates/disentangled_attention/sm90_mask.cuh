// What the keep mask says of an item and its tiles: one warp of the producer reads it ahead, as the answers of device
// memory come late.
// needs: sm90_layout.cuh, common/mbarrier.cuh, disentangled_attention/sequence.cuh

// Whether keys first + 32 i are kept, in bit i, by loads in flight together; not beyond the sequence.
template <int reads>
__device__ __forceinline__ u32 kept_keys(const ForwardParams& p, const Item& item, int first) {
    const u8* keep = p.mask + item.batch * p.mask_batch + first;
    u32 kept = 0;
#pragma unroll
    for (int i = 0; i < reads; ++i) kept |= u32(first + 32 * i < item.length && keep[32 * i]) << i;
    return kept;
}

// What the mask says of an item: the first kept key of its batch row and one past the last; which rows of its block are
// masked, 32 a word, one in a lane.
struct MaskSummary {
    int batch = -1, low = 0, high = 0;
    u32 hidden = 0;

    // The keys to attend, and which rows are masked: those attend all keys. With one tile the loading warp has not waited
    // to hear that a block needs V alone.
    __device__ __forceinline__ int classify(const ForwardParams& p, const Item& item, int lane, int& first_key, int& key_count) const {
        const bool any = __any_sync(0xffffffffu, hidden != 0);
        if (!any) first_key = low, key_count = high;
        const u32 rows = lane < block_m / 32 ? range_word(item.length - item.row0 - 32 * lane) : 0;
        return !any                                                            ? hidden_none
               : !one_tile(p) && __all_sync(0xffffffffu, hidden == rows) ? hidden_all
                                                                               : hidden_some;
    }

    __device__ __forceinline__ void read(const ForwardParams& p, const Item& item, int lane) {
        u8 kept[block_m / 32];  // looked at last: the answers of device memory come while others are asked for
        const int first = item.row0 + lane;
#pragma unroll
        for (int i = 0; i < block_m / 32; ++i)
            kept[i] = first + 32 * i >= item.length || p.mask[item.batch * p.mask_batch + first + 32 * i];
        if (one_tile(p))
            low = 0, high = item.length;
        else if (batch != item.batch)
            find_ends(p, item, lane);
        batch = item.batch;
        hidden = 0;
#pragma unroll
        for (int i = 0; i < block_m / 32; ++i) {
            const u32 word = __ballot_sync(0xffffffffu, !kept[i]);
            if (lane == i) hidden = word;
        }
    }

  private:
    // Reads little, as masks hide an end: from both ends at once, up to the first and the last kept key.
    __device__ __forceinline__ void find_ends(const ForwardParams& p, const Item& item, int lane) {
        constexpr int reads = 8, span = 32 * reads;
        low = item.length, high = 0;
        int base = 0, back = (item.length - 1) / span * span;
        while (base < item.length && (low == item.length || high == 0)) {
            const u32 front = low == item.length ? kept_keys<reads>(p, item, base + lane) : 0;
            const u32 behind = high == 0 ? kept_keys<reads>(p, item, back + lane) : 0;
            if (front) low = base + 32 * (__ffs(int(front)) - 1) + lane;
            if (behind) high = back + 32 * (31 - __clz(int(behind))) + lane + 1;
            low = __reduce_min_sync(0xffffffffu, low);
            high = __reduce_max_sync(0xffffffffu, high);
            base += span, back -= span;
        }
    }
};

// The warp that reads the mask: the range of every item, one ahead of the tiles, and the kept keys of every tile.
struct MaskReader {
    const ForwardParams& p;
    unsigned char* memory;
    u32 shared;
    int lane;
    MaskSummary summary;

    // The keys to attend of the turn-th item, once the readers of the item two before are done.
    __device__ __forceinline__ MaskRange publish(const Item& item, u32 turn) {
        summary.read(p, item, lane);
        MaskRange range = {0, item.length, hidden_none};
        range.hidden = summary.classify(p, item, lane, range.first_key, range.key_count);
        const u32 which = turn & 1;
        barrier_wait_asleep(shared + range_empty + 8 * which, ~(turn >> 1) & 1);
        int* to = reinterpret_cast<int*>(memory + range_offset + range_bytes * which);
        if (lane == 0) to[0] = range.first_key, to[1] = range.key_count, to[2] = range.hidden;
        if (lane < block_m / 32) to[4 + lane] = int(summary.hidden);
        barrier_arrive(shared + range_full + 8 * which);
        return range;
    }

    // Whether key t * block_n + 32 i + lane is kept, in bit i.
    __device__ __forceinline__ u32 tile(const Item& item, int t) const {
        return kept_keys<block_n / 32>(p, item, t * block_n + lane);
    }

    __device__ __forceinline__ void run() {
        Schedule work(p);
        if (!work.more()) return;
        RingPosition<stages> kv;
        MaskRange range = publish(locate_item(p, work.item), 0);
        for (u32 turn = 1; work.more(); work.next(), ++turn) {
            const Item item = locate_item(p, work.item);
            const KeyTiles tiles = key_tiles<block_m, block_n, has_bias>(p, item.row0, range.first_key, range.key_count);
            u32 kept = tile(item, tiles.begin);
            for (int t = tiles.begin; t < tiles.end; ++t) {
                const u32 next = t + 1 < tiles.end ? tile(item, t + 1) : 0;
                barrier_wait_asleep(shared + k_empty + 8 * kv.slot, kv.parity ^ 1);
                u32 all = ~0u;
#pragma unroll
                for (int i = 0; i < block_n / 32; ++i) {
                    const u32 word = __ballot_sync(0xffffffffu, kept >> i & 1);
                    if (lane == 0) reinterpret_cast<u32*>(memory + bits_offset)[kv.slot * 4 + i] = word;
                    all &= word;
                }
                if (lane == 0) {
                    reinterpret_cast<u32*>(memory + plain_offset)[kv.slot] = all == ~0u;
                    barrier_arrive(shared + k_full + 8 * kv.slot);
                }
                kept = next;
                kv.advance();
                if (t == tiles.begin && work.item + work.step < work.end)
                    range = publish(locate_item(p, work.item + work.step), turn);
            }
        }
    }
};
