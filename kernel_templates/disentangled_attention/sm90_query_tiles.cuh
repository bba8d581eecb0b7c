// 64 queries for dQ: shared memory, and what the far and the near tiles share. Rows of accumulators are queries in the
// order of the near tiles (order_of), so that these are A operands as they come.
//
// Dynamic shared memory, in this order (tiles swizzled for wgmma):
//   far: V   [v_stages][64][head_dim]            near: dS  [2 stages][8 groups of 8 keys][near_pitch bytes]
//   K        [2 slots][64][head_dim]
//   far: a third slot of K, Q + PQ_end, dO [64][head_dim]    near: PK [3 chunks][64][head_dim]
//   sheared dS [4 warps][shear_bytes]; in far tiles sums of warps [4][2 tables][head_dim] fp32
//   dead     [2 stages][4] u32: keys that nothing attends in the last 64 bits
//   barriers
// needs: sm90_backward.cuh

constexpr int near_pitch = 1024 + 16;  // keeps ldmatrix free of bank conflicts
constexpr int near_bytes = 8 * near_pitch;

constexpr int v_offset = 0;
constexpr int ds_offset = v_offset;
constexpr int v_stages = head_dim == 128 ? 1 : 2;  // so that two blocks fit an SM
constexpr int v_bytes = v_stages * operand_bytes;
constexpr int first_bytes = !has_bias || v_bytes > 2 * near_bytes ? v_bytes : 2 * near_bytes;
constexpr int k_offset = v_offset + (first_bytes + 1023) / 1024 * 1024;
constexpr int q_offset = k_offset + 3 * operand_bytes;
constexpr int dout_offset = q_offset + operand_bytes;
constexpr int pk_offset = k_offset + 2 * operand_bytes;
constexpr int shear_offset = pk_offset + 3 * operand_bytes;
constexpr int sums_bytes = 4 * 2 * head_dim * 4;
constexpr int dead_offset = shear_offset + (c2p ? 4 * shear_bytes : has_bias ? sums_bytes : 0);
constexpr int barrier_offset = dead_offset + 32;
constexpr int ds_full = barrier_offset, pk_full = ds_full + 16, k_full = pk_full + 24, v_full = k_full + 24,
              barriers = 9, zeros_offset = barrier_offset + 80, shared_end = zeros_offset + 32;

// Key tiles [0, near_begin) are far at the high end, [near_end, tiles) at the low end.
struct QueryTiles : BlockState {
    const u16 *q, *k, *v;
    TileRows<order_natural> k_rows, v_rows;  // of the next tile
    bool note_dead;                          // of the next tile
    u32 phases = 0;                          // parities of the barriers of K's slots
    u32 v_phase = 0;                         // and of the only stage of V
    int row[2];                              // this thread's rows of the warp's 16
    float lse[2], delta[2];
    bool hidden[2];  // masked or beyond the end

    __device__ __forceinline__ QueryTiles(const BackwardParams& params, unsigned char* block_memory, u32 address,
                                          int thread_number, const Block& of)
        : BlockState(params, block_memory, address, thread_number, of) {
        q = block.rows(p.q, p.q_batch, p.q_row, p.q_head);
        k = block.rows(p.k, p.k_batch, p.k_row, p.k_head);
        v = block.rows(p.v, p.v_batch, p.v_row, p.v_head);
        row[0] = order_of(lane.g), row[1] = 8 + row[0];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = block.tile * block_rows + 16 * lane.warp + row[half];
            hidden[half] = i >= block.length;
            if constexpr (mask) hidden[half] = hidden[half] || !p.mask[block.batch * p.mask_batch + i];
        }
    }

    __device__ __forceinline__ void copy_keys(int t, int slot) {
        k_rows.copy(shared + k_offset + slot * operand_bytes, p.k_row, block.length - t * block_rows, thread);
    }
};
