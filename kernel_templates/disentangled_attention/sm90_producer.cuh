// The producer warpgroup: fills the rings of K, V and distance chunks, and Q.
// needs: sm90_layout.cuh, common/async_copy.cuh, common/bulk_copy.cuh, common/mbarrier.cuh,
// disentangled_attention/sequence.cuh

constexpr int producer_barrier = 8;  // named barrier of the producer's threads
constexpr int row_step = producer_threads / row_chunks;

// Eight elements from global to shared memory; zeros when not valid.
__device__ __forceinline__ void copy_chunk(u32 to, const u16* from, bool valid) {
    if constexpr (aligned) {
        copy_async16(to, from, valid);
    } else {
        u32 word[4] = {0, 0, 0, 0};
        if (valid)
            for (int i = 0; i < 4; ++i) word[i] = u32(from[2 * i]) | u32(from[2 * i + 1]) << 16;
        store_shared16(to, {word[0], word[1], word[2], word[3]});
    }
}

// Signals what the producer copied, one arrival of each thread, after a fence: wgmma reads through another proxy. So a
// thread must come back when its copies have landed; it does once it has issued the next ones, or before it would wait
// for anything else.
class Signals {
  public:
    // The copies issued since the last call belong to `barrier`.
    __device__ __forceinline__ void after_copies(u32 barrier) {
        copy_async_commit();
        if (pending) arrive<1>();
        pending = barrier;
    }
    __device__ __forceinline__ void flush() {
        if (pending) arrive<0>();
        pending = 0;
    }
    __device__ __forceinline__ void wait(u32 barrier, u32 parity) {
        if (__all_sync(0xffffffffu, barrier_test(barrier, parity))) return;
        flush();
        barrier_wait(barrier, parity);
        __syncwarp();
    }

  private:
    template <int younger>
    __device__ __forceinline__ void arrive() const {
        copy_async_wait<younger>();
        async_proxy_fence();
        barrier_arrive(pending);
    }

    u32 pending = 0;
};

// Rows at or beyond `count` become zeros.
template <int rows>
__device__ __forceinline__ void copy_rows(u32 to, const u16* from, s64 stride, int count, int tid) {
    const int row = tid / row_chunks, chunk = tid % row_chunks;
    const u16* source = from + row * stride + chunk * 8;
    const u32 target = chunk_address<rows>(to, row, chunk);
#pragma unroll
    for (int i = 0; i < rows / row_step; ++i) {
        const bool valid = row + i * row_step < count;
        copy_chunk(target + i * row_step * row_bytes, valid ? source : from, valid);
        source += row_step * stride;
    }
}

// Rows from `first`, one a thread, into L2: device memory answers too late for a ring of few tiles.
__device__ __forceinline__ void prefetch_rows(const u16* from, s64 stride, int first, int count, int rows, int tid) {
    for (int row = tid; row < rows; row += producer_threads) {
        if (first + row >= count) return;
        const u16* line = from + (first + row) * stride;
        prefetch_line(line);
        if constexpr (head_dim == 128) prefetch_line(line + 64);
    }
}

// Where the rows of an item's tensors start.
struct ItemRows {
    const u16 *q, *k, *v;  // q: of the item's first row

    __device__ __forceinline__ ItemRows(const ForwardParams& p, const Item& item) {
        const s64 batch = packed ? 0 : item.batch;
        q = static_cast<const u16*>(p.q) + batch * p.q_batch + (item.first + item.row0) * p.q_row +
            item.head * p.q_head;
        k = static_cast<const u16*>(p.k) + batch * p.k_batch + item.first * p.k_row + item.head * p.k_head;
        v = static_cast<const u16*>(p.v) + batch * p.v_batch + item.first * p.v_row + item.head * p.v_head;
    }
};

__device__ __forceinline__ void prefetch_item(const ForwardParams& p, int index, int tid) {
    const Item item = locate_item(p, index);
    if (!item.exists) return;
    const ItemRows rows(p, item);
    prefetch_rows(rows.q, p.q_row, 0, item.length - item.row0, block_m, tid);
    prefetch_rows(rows.k, p.k_row, 0, item.length, 2 * block_n, tid);
    prefetch_rows(rows.v, p.v_row, 0, item.length, 2 * block_n, tid);
}

__device__ __forceinline__ void copy_ends(const ForwardParams& p, u32 shared, const u16* pk, const u16* pq, int tid) {
    if (tid >= 4 * row_chunks) return;
    const int row = tid / row_chunks, chunk = tid % row_chunks;  // high PK, high PQ, low PK, low PQ
    const bool query = row & 1;
    if (query ? !p2c : !c2p) return;
    const s64 slot = slot_of(p, row < 2 ? p.band : -p.band);
    copy_chunk(shared + ends_offset + row * 2 * head_dim + chunk * 16,
               (query ? pq + slot * p.position_query_row : pk + slot * p.position_key_row) + chunk * 8, true);
}

// What the mask says of an item: the first kept key of its batch row and one past the last, and whether a row of its
// block is masked. Two sets of notes in shared memory alternate, so that one barrier an item is enough.
struct MaskSummary {
    int batch = -1, low = 0, high = 0;
    bool hidden = false;
    int set = 0;

    __device__ __forceinline__ void read(unsigned char* notes, const u8* keep, const Item& item, int tid) {
        int first = item.length, last = 0, masked = 0;
        if (batch != item.batch)
            for (int j = tid; j < item.length; j += producer_threads)
                if (keep[j]) first = min(first, j), last = j + 1;
        for (int i = item.row0 + tid; i < min(item.row0 + block_m, item.length); i += producer_threads)
            masked |= !keep[i];
        first = __reduce_min_sync(0xffffffffu, first);
        last = __reduce_max_sync(0xffffffffu, last);
        masked = __reduce_max_sync(0xffffffffu, masked);
        Words4* of_warp = reinterpret_cast<Words4*>(notes) + 4 * set;
        if (tid % 32 == 0) of_warp[tid / 32] = {u32(first), u32(last), u32(masked), 0};
        named_barrier(producer_barrier, producer_threads);
        if (batch != item.batch) low = item.length, high = 0;
        hidden = false;
#pragma unroll
        for (int warp = 0; warp < 4; ++warp) {
            const Words4 words = of_warp[warp];
            if (batch != item.batch) low = min(low, int(words.x)), high = max(high, int(words.y));
            hidden = hidden || words.z != 0;
        }
        batch = item.batch;
        set ^= 1;
    }
};

__device__ __forceinline__ void produce(const ForwardParams& p, unsigned char* memory, u32 shared, int tid) {
    RingPosition<stages> kv;
    RingPosition<ring> strip;
    Signals signals;
    MaskSummary summary;
    int resident_head = -1;
    bool tables_ready = false;
    u32 q_parity = 1;
    int* range = reinterpret_cast<int*>(memory + range_offset);
    for (Schedule work(p); work.more(); work.next()) {
        const Item item = locate_item(p, work.item);
        if (!item.exists) continue;
        const ItemRows rows(p, item);
        const u16* pk = static_cast<const u16*>(p.position_key) + item.head * p.position_key_head;
        const u16* pq = static_cast<const u16*>(p.position_query) + item.head * p.position_query_head;
        const u8* keep = mask ? p.mask + item.batch * p.mask_batch : nullptr;

        const unsigned char* table = static_cast<const unsigned char*>(p.workspace) +
                                     s64(item.head) * (last_chunk(p.band) - first_chunk(p.band) + 1) * chunk_bytes;

        int first_key = 0, key_count = item.length;
        if constexpr (mask) {
            signals.flush();
            summary.read(memory + notes_offset, keep, item, tid);
            if (!summary.hidden) first_key = summary.low, key_count = summary.high;
        }
        signals.wait(shared + q_empty, q_parity);
        q_parity ^= 1;
        if (mask && tid == 0) range[0] = first_key, range[1] = key_count, range[2] = summary.hidden;
        copy_rows<block_m>(shared + q_offset, rows.q, p.q_row, item.length - item.row0, tid);
        if constexpr (has_bias) copy_ends(p, shared, pk, pq, tid);
        signals.after_copies(shared + q_full);

        const KeyTiles tiles = key_tiles<block_m, block_n, has_bias>(p, item.row0, first_key, key_count);
        int distance_chunk = (item.row0 + block_m) / 64 - 1 - tiles.near_begin * units;
        for (int t = tiles.begin; t < tiles.end; ++t) {
            const int left = item.length - t * block_n;
            if (prefetch && t == tiles.begin && work.item + work.step < work.end)
                prefetch_item(p, work.item + work.step, tid);
            signals.wait(shared + k_empty + 8 * kv.slot, kv.parity ^ 1);
            if constexpr (mask) {
                const u32 kept_keys =
                    __ballot_sync(0xffffffffu, tid < block_n && tid < left && keep[t * block_n + tid]);
                if (tid % 32 == 0) reinterpret_cast<u32*>(memory + bits_offset)[kv.slot * 4 + tid / 32] = kept_keys;
            }
            copy_rows<block_n>(shared + k_offset + kv.slot * tile_bytes, rows.k + s64(t) * block_n * p.k_row, p.k_row,
                               left, tid);
            signals.after_copies(shared + k_full + 8 * kv.slot);
            if (has_bias && tid == 0) {  // the tile's new distance chunks arrive on its K's barrier
                const u32 full = shared + k_full + 8 * kv.slot;
                int count = t < tiles.near_begin || t >= tiles.near_end ? 0
                            : t == tiles.near_begin                     ? tile_chunks
                                                                        : units;
                if (resident && resident_head == item.head) count = 0;
                resident_head = item.head;
                if (count > 0 && !tables_ready) await_previous_grid(), tables_ready = true;
                for (; count > 0; --count) {
                    const int e =
                        min(max(distance_chunk--, first_chunk(p.band)), last_chunk(p.band)) - first_chunk(p.band);
                    barrier_wait(shared + strip_empty + 8 * strip.slot, strip.parity ^ 1);
                    barrier_expect_bytes(full, chunk_bytes);
                    copy_bulk(shared + pk_offset + strip.slot * chunk_bytes, table + s64(e) * chunk_bytes, chunk_bytes,
                              full);
                    strip.advance();
                }
                barrier_arrive(full);
            }
            __syncwarp();
            signals.wait(shared + v_empty + 8 * kv.slot, kv.parity ^ 1);
            copy_rows<block_n>(shared + v_offset + kv.slot * tile_bytes, rows.v + s64(t) * block_n * p.v_row, p.v_row,
                               left, tid);
            signals.after_copies(shared + v_full + 8 * kv.slot);
            kv.advance();
        }
    }
    signals.flush();
    // The grid after this one relies on the end of the one before.
    if (has_bias && tid == 0 && !tables_ready) await_previous_grid();
}
