// What the keep mask says of an item: one warp of the producer reads it ahead, as the answers of device memory come late.
// needs: sm90_layout.cuh, common/mbarrier.cuh

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

    // The keys to attend, and which rows are masked: those attend all keys.
    __device__ __forceinline__ int classify(const Item& item, int lane, int& first_key, int& key_count) const {
        const bool any = __any_sync(0xffffffffu, hidden != 0);
        if (!any) first_key = low, key_count = high;
        const u32 rows = lane < block_m / 32 ? range_word(item.length - item.row0 - 32 * lane) : 0;
        return !any ? hidden_none : __all_sync(0xffffffffu, hidden == rows) ? hidden_all : hidden_some;
    }

    __device__ __forceinline__ void read(const ForwardParams& p, const Item& item, int lane) {
        const u32 kept = kept_keys<block_m / 32>(p, item, item.row0 + lane);
        if (batch != item.batch) find_ends(p, item, lane);
        batch = item.batch;
        hidden = 0;
#pragma unroll
        for (int i = 0; i < block_m / 32; ++i) {
            const u32 word = __ballot_sync(0xffffffffu, item.row0 + 32 * i + lane < item.length && !(kept >> i & 1));
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

struct MaskRange {
    int first_key, key_count, hidden;
};

// Of the item whose range_full has been waited for.
__device__ __forceinline__ MaskRange read_range(const unsigned char* memory, u32 which) {
    const int* range = reinterpret_cast<const int*>(memory + range_offset + range_bytes * which);
    return {range[0], range[1], range[2]};
}

// The ranges of all items, two at most ahead of their last reader.
__device__ __forceinline__ void read_masks(const ForwardParams& p, unsigned char* memory, u32 shared, int lane) {
    MaskSummary summary;
    u32 turn = 0;  // items so far
    for (Schedule work(p); work.more(); work.next(), ++turn) {
        const Item item = locate_item(p, work.item);
        summary.read(p, item, lane);
        int first_key = 0, key_count = item.length;
        const int hidden = summary.classify(item, lane, first_key, key_count);
        const u32 which = turn & 1;
        barrier_wait_asleep(shared + range_empty + 8 * which, ~(turn >> 1) & 1);
        int* range = reinterpret_cast<int*>(memory + range_offset + range_bytes * which);
        if (lane == 0) range[0] = first_key, range[1] = key_count, range[2] = hidden;
        if (lane < block_m / 32) range[4 + lane] = int(summary.hidden);
        __syncwarp();
        if (lane == 0) barrier_arrive(shared + range_full + 8 * which);
    }
}
