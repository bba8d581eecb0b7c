// Sizes, shared memory and work items of the sm_90 forward kernel.
//
// Dynamic shared memory, in this order (tiles: rows of 128 or 64 bytes, swizzled for wgmma; head_dim 128: two panels):
//   K, V     [stages][block_n][head_dim] each
//   strip    [ring][PK | PQ][64][head_dim]: chunks of 64 distances of the near tiles
//   Q        [block_m][head_dim]
//   scratch  [warpgroups]: C [64][c_pitch], T [units][64][t_pitch] fp16; also stages the output
//   ends     [2][2][head_dim]: PK and PQ of the slots beyond the band, high end first
//   bits     [stages][4] u32: kept keys of each tile; range [3] int: kept keys of the batch, whether a row is hidden; notes [2][4][16]
//   barriers
// needs: common/types.cuh, common/math.cuh, common/wgmma.cuh, disentangled_attention/params.h, config

constexpr bool has_bias = c2p || p2c;
constexpr int block_m = 64 * warpgroups;
constexpr int producer_threads = 128;
constexpr int threads = 128 * warpgroups + producer_threads;
constexpr int row_chunks = head_dim / 8;  // of 16 bytes
constexpr int panel_chunks = row_chunks < 8 ? row_chunks : 8;
constexpr int row_bytes = 16 * panel_chunks;
constexpr int dim_steps = head_dim / 16;
constexpr int units = block_n / 64;              // key groups of a tile whose T is computed at a time
constexpr int tile_chunks = warpgroups + units;  // distance chunks under one tile
constexpr int ring = tile_chunks + spare_chunks;

constexpr int tile_bytes = block_n * 2 * head_dim;
constexpr int table_bytes = 64 * 2 * head_dim;  // one table's rows of a chunk
constexpr int chunk_bytes = table_bytes * (int(c2p) + int(p2c));
// Position scores wander up to 15 columns out of their row: a pitch of block_n + 16 lets them fall between rows. An odd
// number of 16-byte pieces keeps stores and ldmatrix free of bank conflicts.
constexpr int c_pitch = 2 * (block_n + 24);  // bytes
constexpr int t_pitch = 2 * (64 + 24);
constexpr int spill_bytes = 32;
constexpr int c_bytes = c2p ? 64 * c_pitch + spill_bytes : 0;
constexpr int t_bytes = p2c ? 64 * t_pitch : 0;  // of one unit
// The output is staged in a warp's own rows of C where they are wide enough, or where there are no scores.
constexpr bool own_stage = !has_bias || (c2p && c_pitch >= 2 * head_dim + 16);
constexpr int out_pitch = own_stage && has_bias ? c_pitch : 2 * head_dim + 16;
constexpr int scores_bytes = c_bytes + units * t_bytes + (p2c ? spill_bytes : 0);
constexpr int stage_bytes = 64 * out_pitch + spill_bytes;
constexpr int scratch_bytes = scores_bytes > stage_bytes ? scores_bytes : stage_bytes;

constexpr int k_offset = 0;
constexpr int v_offset = k_offset + stages * tile_bytes;
constexpr int pk_offset = v_offset + stages * tile_bytes;
constexpr int pq_offset = pk_offset + (c2p ? table_bytes : 0);
constexpr int q_offset = pk_offset + ring * chunk_bytes;
constexpr int scratch_offset = q_offset + block_m * 2 * head_dim;
constexpr int ends_offset = scratch_offset + warpgroups * scratch_bytes;
constexpr int bits_offset = ends_offset + (has_bias ? 8 * head_dim : 0);
constexpr int range_offset = bits_offset + (mask ? stages * 16 : 0);
constexpr int notes_offset = range_offset + (mask ? 16 : 0);
constexpr int barrier_offset = notes_offset + (mask ? 128 : 0);

constexpr int k_full = barrier_offset, k_empty = k_full + 8 * stages, v_full = k_empty + 8 * stages,
              v_empty = v_full + 8 * stages, strip_empty = v_empty + 8 * stages,
              q_full = strip_empty + (has_bias ? 8 * ring : 0), q_empty = q_full + 8, shared_end = q_empty + 8;

static_assert(dtype == dtype_f16 || dtype == dtype_bf16, "wgmma here takes 16-bit elements");
static_assert(head_dim == 32 || head_dim == 64 || head_dim == 128, "head_dim must be 32, 64 or 128");
static_assert(warpgroups == 1 || warpgroups == 2, "consumer warpgroups");
static_assert(block_n == 64 || block_n == 128, "keys of a tile");
static_assert(!resident || spare_chunks == 0, "resident chunks fill the ring");
static_assert(stages >= 2 && stages <= 4, "depth of the K and V rings");
static_assert(table_bytes % 1024 == 0 && tile_bytes % 1024 == 0, "tiles start at a swizzle period");
static_assert((c_pitch / 16) % 2 == 1 && (t_pitch / 16) % 2 == 1 && c_pitch >= 2 * (block_n + 16),
              "pitch of the score buffers");
static_assert(scratch_bytes % 16 == 0 && shared_end <= 232448, "shared memory of one block");

constexpr u32 operand_high = descriptor_high(8 * row_bytes, row_bytes == 128 ? 1 : 2);

// Finite, so that a tile without a visible key needs no special case; a power of two, so that its product with the
// scale is exact and the difference of two of them 0.
constexpr float masked_score = -0x1p100f;
constexpr float largest_score = 0x1p100f;
// log2 of how far scores may exceed the subtracted maximum before O is rescaled.
constexpr float lazy = 8.0f;

// Address of a 16-byte chunk in a swizzled tile of `rows` rows.
template <int rows>
__device__ __forceinline__ u32 chunk_address(u32 tile, int row, int chunk) {
    const int turn = row_bytes == 128 ? row & 7 : (row >> 1) & 3;
    return tile + chunk / panel_chunks * (rows * row_bytes) + row * row_bytes + ((chunk % panel_chunks ^ turn) << 4);
}

// Descriptor of B = 16 elements of head_dim (from 16 * step) x all rows of a tile of `rows` rows at `tile`, in units of
// 16 bytes.
template <int rows>
__device__ __forceinline__ u32 key_operand(u32 tile, int step) {
    constexpr int panel_steps = panel_chunks / 2;
    return descriptor_low(tile + (step / panel_steps * (rows * row_bytes) + step % panel_steps * 32) / 16, 16);
}

// Descriptor of B = 16 rows (from 16 * step) x head_dim of a V tile.
__device__ __forceinline__ u32 value_operand(u32 tile, int step) {
    return descriptor_low(tile + step * row_bytes, block_n * row_bytes);
}

// Chunk e of the expanded tables holds the distances 64e .. 64e + 63. Chunks below first and above last repeat those.
__device__ __forceinline__ int first_chunk(int band) {
    return -((band + 126) / 64);
}
__device__ __forceinline__ int last_chunk(int band) {
    return (band + 63) / 64;
}

struct Item {
    int batch, head, row0, length;
    s64 first;    // packed: row of the tensors where the sequence starts
    bool exists;  // packed: false for blocks beyond the end of their sequence
};

// Items: query blocks of a (head, batch) pair are neighbours, then batches, then heads.
__device__ __forceinline__ Item locate_item(const ForwardParams& p, int index) {
    const int row_blocks = (p.length + block_m - 1) / block_m;
    const int pair = index / row_blocks;
    Item item;
    item.head = pair / p.batch;
    item.batch = pair - item.head * p.batch;
    item.row0 = (index - pair * row_blocks) * block_m;
    item.first = 0;
    item.length = p.length;
    if constexpr (packed) {
        item.first = p.cu_seqlens[item.batch];
        item.length = p.cu_seqlens[item.batch + 1] - int(item.first);
    }
    item.exists = item.row0 < item.length;
    return item;
}

// The items of one block of the grid.
struct Schedule {
    int item, end, step;

    __device__ __forceinline__ explicit Schedule(const ForwardParams& p) {
        const int count = (p.length + block_m - 1) / block_m * p.batch * p.heads, blocks = int(gridDim.x),
                  b = int(blockIdx.x);
        if constexpr (contiguous) {
            const int share = count / blocks, extra = count % blocks;
            item = b * share + min(b, extra);
            end = item + share + (b < extra);
            step = 1;
        } else {
            item = b, end = count, step = blocks;
        }
    }
    __device__ __forceinline__ bool more() const { return item < end; }
    __device__ __forceinline__ void next() { item += step; }
};

// Position in a ring of `depth` buffers, with the parity of its current round.
template <int depth>
struct RingPosition {
    int slot = 0;
    u32 parity = 0;

    __device__ __forceinline__ void advance() {
        if (++slot == depth) slot = 0, parity ^= 1;
    }
    __device__ __forceinline__ RingPosition ahead(int by) const {  // by <= depth
        RingPosition r = *this;
        r.slot += by;
        if (r.slot >= depth) r.slot -= depth, r.parity ^= 1;
        return r;
    }
    __device__ __forceinline__ RingPosition behind() const {
        RingPosition r = *this;
        if (--r.slot < 0) r.slot = depth - 1, r.parity ^= 1;
        return r;
    }
};
