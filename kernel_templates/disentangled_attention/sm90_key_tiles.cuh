// 64 keys for dK and dV: shared memory, and how tiles of queries come. Everything is transposed, rows are keys, so that
// P and dS go from accumulators straight to A operands. Query rows lie in shared memory in the order of accumulator
// runs: thread c holds the 16 queries 16c .. of its two keys.
//
// Dynamic shared memory, in this order (tiles swizzled for wgmma):
//   K, V     [64][head_dim]
//   queries  [2 slots][Q | dO][64][head_dim]; in far tiles Q + PQ_end in place of Q
//   PK       [2 chunks][64][head_dim]; in far tiles the third slot of queries
//   PQ       [3 chunks][64][head_dim]
//   C        [64 queries][score_pitch] fp16: q.PK by key; groups of 16 rows are shifted by group_shift
//   T        [64 keys][score_pitch] fp16: k.PQ by query; then the sheared dS [warps][shear_bytes], with two warpgroups
//            in a place of its own
//   lse      [2 stages][4 groups][16 queries and padding] fp32
//   Delta    [2 stages][4 groups][16 queries and padding] fp32
//            and masked query rows, 64 bits
//   dropped  [2 stages][128] u32
//   barriers
// needs: sm90_backward.cuh, disentangled_attention/dropout.h

constexpr int sheared_bytes = 4 * warpgroups * shear_bytes;
constexpr int t_bytes = warpgroups == 2                  ? gathered_bytes + sheared_bytes
                        : sheared_bytes > gathered_bytes ? sheared_bytes
                                                         : gathered_bytes;

constexpr int k_offset = 0;
constexpr int v_offset = k_offset + operand_bytes;
constexpr int q_offset = v_offset + operand_bytes;
constexpr int slot_bytes = 2 * operand_bytes;
constexpr int pk_offset = q_offset + 2 * slot_bytes;
constexpr int pq_offset = pk_offset + slot_bytes;
constexpr int c_offset = pq_offset + (p2c ? 3 * operand_bytes : 0);
constexpr int t_offset = c_offset + (c2p ? gathered_bytes : 0);
constexpr int shear_offset = t_offset + (warpgroups == 2 ? gathered_bytes : 0);
constexpr int statistics_offset = t_offset + (p2c ? t_bytes : 0);
constexpr int statistics_slot = statistics_bytes + 16;  // then 64 bits of masked rows
constexpr int dropped_offset = statistics_offset + 2 * statistics_slot;
constexpr int barrier_offset = dropped_offset + (dropout ? 2 * 512 : 0);
constexpr int pk_full = barrier_offset, pq_full = pk_full + 8 * 2, slot_full = pq_full + 8 * 3,
              zeros_offset = slot_full + 8 * 3, shared_end = zeros_offset + 32;

// Query tiles [0, near_begin) are far at the low end, [near_end, tiles) at the high end.
struct KeyTiles : BlockState {
    int group;  // which warpgroup
    int slot;   // of the tile at work
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

    __device__ __forceinline__ KeyTiles(const BackwardParams& params, unsigned char* block_memory, u32 address,
                                        int thread_number, const Block& of)
        : BlockState(params, block_memory, address, thread_number, of), tables(params, of.head) {
        group = warpgroups == 1 ? 0 : int(__reduce_max_sync(nothing, u32(thread) / 128));
        q = block.rows(p.q, p.q_batch, p.q_row, p.q_head);
        dout = block.rows(p.dout, p.dout_batch, p.dout_row, p.dout_head);
    }

    __device__ __forceinline__ u32 q_operand(int of) const { return operand(q_offset, 2 * of); }
    __device__ __forceinline__ u32 dout_operand(int of) const { return operand(q_offset, 2 * of + 1); }
    // The part of an operand that meets the warpgroup's columns.
    __device__ __forceinline__ u32 own_columns(u32 all) const {
        return warpgroups == 1 ? all : all + group * (block_rows * row_bytes / 16);
    }

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
        if (dropout && group == 0)
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
};
