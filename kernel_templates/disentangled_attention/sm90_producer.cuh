// The producer warpgroup. Its first warp fills the rings of K, V and distance chunks, and Q; the second reads the mask;
// the others draw which weights are dropped.
//
// With `boxes` tiles come as boxes of tensor maps, of 64 rows, and rows beyond the tensor are zeros. Otherwise the warp
// copies rows itself. In packed tensors rows of the next sequence follow; those of V, which may be infinite, must not
// meet a probability of zero and are cleared.
// needs: sm90_mask.cuh, common/async_copy.cuh, common/bulk_copy.cuh, common/mbarrier.cuh,
// disentangled_attention/dropout.h, disentangled_attention/sequence.cuh

constexpr int box_rows = 64;

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

// Signals what the warp copied, by an arrival of every lane, after a fence: wgmma reads through another proxy. So the
// warp must come back when its copies have landed; it does once it has issued the next ones, or before it would wait for
// anything else.
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
        barrier_wait_asleep(barrier, parity);
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
__device__ __forceinline__ void copy_rows(u32 to, const u16* from, s64 stride, int count, int lane) {
    constexpr int step = 32 / row_chunks;
    const int first = lane / row_chunks, chunk = lane % row_chunks;
#pragma unroll 2
    for (int row = first; row < rows; row += step)
        copy_chunk(chunk_address<rows>(to, row, chunk), from + (row < count ? row * stride + chunk * 8 : 0),
                   row < count);
}

// Where an item's tiles of one tensor come from.
struct TensorRows {
    const TensorMap& map;
    const u16* base;  // row 0 of the item's sequence and head
    s64 stride;

    // Rows first .. first + rows - 1 of the sequence into L2.
    template <int rows>
    __device__ __forceinline__ void prefetch(const Item& item, int first, int lane) const {
        if constexpr (boxes) {
            if (lane == 0)
#pragma unroll
                for (int i = 0; i < rows / box_rows * panels; ++i)
                    prefetch_box(map, i % panels * (row_bytes / 2), map_row(item, first) + i / panels * box_rows,
                                 item.head, map_batch(item));
        } else {
            for (int row = first + lane; row < min(first + rows, item.length); row += 32) {
                prefetch_line(base + row * stride);
                if constexpr (head_dim == 128) prefetch_line(base + row * stride + 64);
            }
        }
    }

    static constexpr int panels = row_chunks / panel_chunks;
    static __device__ __forceinline__ int map_row(const Item& item, int row) {
        return item.first + row;
    }
    static __device__ __forceinline__ int map_batch(const Item& item) {
        return packed ? 0 : item.batch;
    }
};

// The warp that loads.
struct Loader {
    const ForwardParams& p;
    const ForwardMaps& maps;
    unsigned char* memory;
    u32 shared;
    int lane;
    RingPosition<stages> kv;
    RingPosition<ring> strip;
    Signals signals;
    u32 tail_parity = 0;
    bool tables_ready = false;
    int resident_head = -1;

    // Where the rows of an item's tensors start.
    __device__ __forceinline__ TensorRows query(const Item& item) const {
        return {maps.q, start(p.q, p.q_batch, p.q_row, p.q_head, item), p.q_row};
    }
    __device__ __forceinline__ TensorRows key(const Item& item) const {
        return {maps.k, start(p.k, p.k_batch, p.k_row, p.k_head, item), p.k_row};
    }
    __device__ __forceinline__ TensorRows value(const Item& item) const {
        return {maps.v, start(p.v, p.v_batch, p.v_row, p.v_head, item), p.v_row};
    }
    static __device__ __forceinline__ const u16* start(const void* tensor, s64 batch, s64 row, s64 head,
                                                       const Item& item) {
        return static_cast<const u16*>(tensor) + (packed ? 0 : item.batch) * batch + s64(item.first) * row +
               item.head * head;
    }

    // The warp's arrivals for what it does not load.
    __device__ __forceinline__ void skip(u32 barrier) const {
        if (lane < load_arrivals) barrier_arrive(barrier);
    }

    // Rows of the sequence from `first` to a tile, with the warp's arrivals at the barrier; `exact`: those beyond the
    // sequence must be zeros.
    template <int rows, bool exact>
    __device__ __forceinline__ void load(u32 to, const TensorRows& from, const Item& item, int first, u32 barrier) {
        const int left = item.length - first;
        const bool clear = packed && exact && left < rows;
        if constexpr (!boxes) {
            copy_rows<rows>(to, from.base + first * from.stride, from.stride, left, lane);
            signals.after_copies(barrier);
            return;
        }
        if (lane == 0) {
            const u32 full = clear ? shared + tail_full : barrier;
            barrier_arrive_bytes(full, rows * 2 * head_dim);
#pragma unroll
            for (int i = 0; i < rows / box_rows * TensorRows::panels; ++i) {
                const int panel = i % TensorRows::panels, box = i / TensorRows::panels;
                copy_box(to + (panel * rows + box * box_rows) * row_bytes, from.map, panel * (row_bytes / 2),
                         TensorRows::map_row(item, first) + box * box_rows, item.head, TensorRows::map_batch(item),
                         full);
            }
        } else if (!clear) {
            skip(barrier);
        }
        if (clear) {
            barrier_wait(shared + tail_full, tail_parity);
            tail_parity ^= 1;
            for (int panel = 0; panel < TensorRows::panels; ++panel)
                for (int i = left * panel_chunks + lane; i < rows * panel_chunks; i += 32)
                    store_shared16(to + panel * rows * row_bytes + 16 * i, {0, 0, 0, 0});
            async_proxy_fence();
            skip(barrier);
        }
    }

    // The tile's new distance chunks, on its K's barrier, which counts one arrival for them.
    __device__ __forceinline__ void load_chunks(const KeyTiles& tiles, int t, const Item& item, bool wanted) {
        const u32 full = shared + k_full + 8 * kv.slot;
        const int low = first_chunk(p.band), high = last_chunk(p.band);
        const unsigned char* table =
            static_cast<const unsigned char*>(p.workspace) + s64(item.head) * (high - low + 1) * chunk_bytes;
        const bool first = t == tiles.near_begin;
        int count = !wanted || t < tiles.near_begin || t >= tiles.near_end ? 0 : first ? tile_chunks : units;
        if (resident && resident_head == item.head) count = 0;
        resident_head = item.head;
        if (count > 0 && !tables_ready) await_previous_grid(), tables_ready = true;
        // In order of keys; a tile after the first brings the last `units` of its chunks.
        int e = (item.row0 + block_m) / 64 - 1 - t * units - (first ? 0 : warpgroups);
        for (; count > 0; --count, --e) {
            barrier_wait_asleep(shared + strip_empty + 8 * strip.slot, strip.parity ^ 1);
            barrier_expect_bytes(full, chunk_bytes);
            copy_bulk(shared + pk_offset + strip.slot * chunk_bytes,
                      table + s64(min(max(e, low), high) - low) * chunk_bytes, chunk_bytes, full);
            strip.advance();
        }
        barrier_arrive(full);
    }

    // PK and PQ of the slots beyond both ends of the band, on Q's barrier, which counts one arrival for them.
    __device__ __forceinline__ void load_ends(const int (&slots)[2], const Item& item) {
#pragma unroll
        for (int row = 0; row < 4; ++row) {  // high PK, high PQ, low PK, low PQ
            const bool query = row & 1;
            if (query ? !p2c : !c2p) continue;
            const u16* from = query ? static_cast<const u16*>(p.position_query) + item.head * p.position_query_head +
                                          slots[row / 2] * p.position_query_row
                                    : static_cast<const u16*>(p.position_key) + item.head * p.position_key_head +
                                          slots[row / 2] * p.position_key_row;
            const u32 to = shared + ends_offset + row * 2 * head_dim;
            if constexpr (aligned) {
                if (lane == 0) {
                    barrier_expect_bytes(shared + q_full, 2 * head_dim);
                    copy_bulk(to, from, 2 * head_dim, shared + q_full);
                }
            } else if (lane < row_chunks) {
                copy_chunk(to + lane * 16, from + lane * 8, true);
            }
        }
        if (lane < end_arrivals) barrier_arrive(shared + q_full);
    }

    __device__ __forceinline__ void run() {
        int end_slots[2] = {0, 0};
        if constexpr (has_bias) end_slots[0] = slot_of(p, p.band), end_slots[1] = slot_of(p, -p.band);
        u32 turn = 0;  // items so far
        Schedule work(p);
        for (; work.more(); work.next()) {
            Item item = locate_item(p, work.item);
            if (!item.exists) continue;
            const bool more = work.item + work.step < work.end;
            int first_key = 0, key_count = item.length;
            int hidden = hidden_none;
            if (mask && !one_tile(p)) {
                const u32 which = turn & 1;
                signals.wait(shared + range_full + 8 * which, turn >> 1 & 1);
                const MaskRange range = read_range(memory, which);
                first_key = range.first_key, key_count = range.key_count, hidden = range.hidden;
                barrier_arrive(shared + range_empty + 8 * which);
            }
            const KeyTiles tiles = key_tiles<block_m, block_n, has_bias>(p, item.row0, first_key, key_count);
            for (int t = tiles.begin; t < tiles.end; ++t) {
                // What follows from these must not stay in registers, which the consumers need.
                asm volatile("" : "+r"(shared), "+r"(item.head), "+r"(item.batch), "+r"(item.row0), "+r"(item.first));
                const u32 full = shared + k_full + 8 * kv.slot;
                signals.wait(shared + k_empty + 8 * kv.slot, kv.parity ^ 1);
                if (hidden != hidden_all) {
                    load<block_n, false>(shared + k_offset + kv.slot * tile_bytes, key(item), item, t * block_n, full);
                } else {  // V is all that is needed
                    signals.flush();  // for what follows waits without Signals
                    skip(full);
                }
                if (has_bias && lane == 0) load_chunks(tiles, t, item, resident || hidden != hidden_all);
                __syncwarp();
                if (t == tiles.begin) {
                    signals.wait(shared + q_empty, ~turn & 1);
                    if (hidden != hidden_all)
                        load<block_m, false>(shared + q_offset, query(item), item, item.row0, shared + q_full);
                    else
                        skip(shared + q_full);
                    if constexpr (has_bias) load_ends(end_slots, item);
                }
                signals.wait(shared + v_empty + 8 * kv.slot, kv.parity ^ 1);
                load<block_n, true>(shared + v_offset + kv.slot * tile_bytes, value(item), item, t * block_n,
                                    shared + v_full + 8 * kv.slot);
                kv.advance();
                if (more && t == tiles.begin) fetch_next(locate_item(p, work.item + work.step));
            }
            ++turn;
        }
        signals.flush();
        // The grid after this one relies on the end of the one before.
        if (has_bias && lane == 0 && !tables_ready) await_previous_grid();
    }

    // The next item's first rows into L2.
    __device__ __forceinline__ void fetch_next(const Item& item) const {
        if constexpr (prefetch) {
            if (!item.exists) return;
            query(item).template prefetch<block_m>(item, item.row0, lane);
            key(item).template prefetch<2 * block_n>(item, 0, lane);
            value(item).template prefetch<2 * block_n>(item, 0, lane);
        }
    }
};

__device__ __forceinline__ void produce(const ForwardParams& p, const ForwardMaps& maps, unsigned char* memory,
                                        u32 shared, int tid) {
    const int warp = __shfl_sync(0xffffffffu, tid / 32, 0), lane = tid % 32;
    if (warp == 0) {
        Loader{p, maps, memory, shared, lane}.run();
    } else if (mask && warp == 1) {
        MaskReader{p, memory, shared, lane, {}}.run();
    } else if constexpr (dropout) {
        Drawer{p, memory, shared, warp - 1 - int(mask), lane, {}}.run();
    }
}
