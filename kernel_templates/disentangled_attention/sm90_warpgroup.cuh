// A consumer warpgroup: 64 query rows of each item. Its far tiles are in sm90_far.cuh, its near ones in sm90_near.cuh.
// needs: sm90_position.cuh, sm90_softmax.cuh, common/mbarrier.cuh

// The number-th `size` elements.
template <int size, int count>
__device__ __forceinline__ float (&part(float (&all)[count], int number))[size] {
    return *reinterpret_cast<float(*)[size]>(&all[size * number]);
}
// State and habits of a consumer warpgroup.
struct Warpgroup {
    const ForwardParams& p;
    u32 shared;
    int group;  // which warpgroup
    int thread;
    Lane lane;
    RingPosition<stages> kv;
    RingPosition<ring> strip;
    u32 t_parity = 0;  // of the near tile's T to read next
    int resident_head = -1;

    __device__ __forceinline__ Warpgroup(const ForwardParams& params, u32 address, int thread_number)
        : p(params),
          shared(address),
          group(int(__reduce_max_sync(0xffffffffu, u32(thread_number) / 128))),
          thread(thread_number),
          lane(thread_number) {}

    // With a mask or dropout registers are short: what follows from the lane is computed anew each time.
    __device__ __forceinline__ Lane here() const {
        if constexpr (!dropout && !mask) return lane;
        int number = thread;
        asm volatile("" : "+r"(number));
        return Lane(number);
    }

    // The kept weights of this thread in a tile, a word for each unit; bits as in dropout.h.
    template <int count>
    __device__ __forceinline__ void take_kept(u32 (&words)[count], const RingPosition<stages>& tile) const {
        if constexpr (dropout) {
            int number = thread;
            asm volatile("" : "+r"(number));
            const u32 first = shared + kept_offset + 4 * number;
            await(kept_full + 8 * tile.slot, tile.parity);
#pragma unroll
            for (int unit = 0; unit < count; ++unit)
                words[unit] = load_word(first + 4 * (tile.slot * units + unit) * (128 * warpgroups));
            release(kept_empty + 8 * tile.slot);
        }
    }
    __device__ __forceinline__ u32 k_tile(int slot) const { return shared + k_offset + slot * tile_bytes; }
    // Tiles as wgmma operands, in units of 16 bytes.
    __device__ __forceinline__ u32 operand(int offset, int slot, int bytes) const {
        return (shared >> 4) + offset / 16 + slot * (bytes / 16);
    }

    // Descriptor of V's rows 16 * step .. + 15 of the tile at `v`, and of the ones beside them.
    __device__ __forceinline__ u32 values(u32 v, int step) const {
        if constexpr (!sum_column) return value_operand<block_n>(v, step);
        const u32 from = v + step * row_bytes;
        return from + (((shared >> 4) + ones_offset / 16 - from) << 16);
    }

    // Every thread arrives: as fast as one for each warp, and the order is plain to see, for race checkers too.
    __device__ __forceinline__ void release(u32 barrier) const { barrier_arrive(shared + barrier); }
    __device__ __forceinline__ void await(u32 barrier, u32 parity) const { barrier_wait(shared + barrier, parity); }
    __device__ __forceinline__ bool test(u32 barrier, u32 parity) const {
        return barrier_test(shared + barrier, parity);
    }
    __device__ __forceinline__ void await(bool over, u32 barrier, u32 parity) const {
        if (!over) barrier_wait(shared + barrier, parity);
    }
    // Offset among t_full and t_empty.
    __device__ __forceinline__ u32 t_barrier() const { return shared_t ? 0 : 8 * group; }

    // Masks the scores of a tile's units from `first` on; `keys_left`: from the first of their keys.
    template <int count>
    __device__ __forceinline__ void hide_units(float (&s)[count], const Rows& rows, int slot, int first,
                                               int keys_left) const {
        if (!mask && keys_left >= 2 * count) return;
#pragma unroll
        for (int unit = 0; unit < count / 32; ++unit) {
            apply_mask(part<32>(s, unit), KeyBits(shared, slot, first + unit, keys_left - 64 * unit), rows, here().c);
        }
    }

    // Q, or with position terms, for the tiles beyond one end of the band, Q + PQ_e and the constants q_i.PK_e. Masked
    // rows get zeros, and so scores of zero; so do those beyond a packed sequence, which are the next one's.
    __device__ __forceinline__ void load_query(u32 (&q)[dim_steps][4], Rows& rows, int end, const Item& item) const {
        const Lane lane = here();
        const int rows_left = item.length - (item.row0 + 64 * group + 16 * lane.warp + lane.g);
        load_operand<block_m, false>(q, shared + q_offset, 64 * group + 16 * lane.warp, lane);
        rows.bias[0] = rows.bias[1] = 0.0f;
        const u32 pk = shared + ends_offset + end * 4 * head_dim + 4 * lane.c, pq = pk + 2 * head_dim;
#pragma unroll
        for (int step = 0; step < dim_steps; ++step)
#pragma unroll
            for (int part = 0; part < 4; ++part) {
                const int at = 32 * step + 16 * (part >> 1);
                const float low = low_of<dtype>(q[step][part]), high = high_of<dtype>(q[step][part]);
                if constexpr (c2p) {
                    const u32 key = load_word(pk + at);
                    rows.bias[part & 1] += low * low_of<dtype>(key) + high * high_of<dtype>(key);
                }
                if constexpr (p2c) {
                    const u32 query = load_word(pq + at);
                    q[step][part] = pack_probability(low + low_of<dtype>(query), high + high_of<dtype>(query));
                }
                if (rows.masked(part & 1) || (packed && rows_left <= 8 * (part & 1))) q[step][part] = 0;
            }
#pragma unroll
        for (int half = 0; c2p && half < 2; ++half) {
            rows.bias[half] += __shfl_xor_sync(0xffffffffu, rows.bias[half], 1);
            rows.bias[half] += __shfl_xor_sync(0xffffffffu, rows.bias[half], 2);
            if (rows.masked(half) || (packed && rows_left <= 8 * half)) rows.bias[half] = 0.0f;
        }
    }

    __device__ __forceinline__ void release_chunks(int count) {
        for (int i = 0; i < count; ++i) {
            release(strip_empty + 8 * strip.slot);
            strip.advance();
        }
    }
};
