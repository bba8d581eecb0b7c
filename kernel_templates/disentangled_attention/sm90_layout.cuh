// Sizes, shared memory and work items of the sm_90 forward kernel.
//
// Dynamic shared memory, in this order (tiles: rows of 128 or 64 bytes, swizzled for wgmma; head_dim 128: two panels):
//   K, V     [stages][block_n][head_dim] each
//   strip    [ring][PK | PQ][64][head_dim]: chunks of 64 distances of the near tiles
//   Q        [block_m][head_dim]
//   ones     [16][head_dim or less], with sum_column: what follows V's columns in the products
//   scratch  [warps]: C [16][c_pitch] fp16; also stages the output
//   T        [t_groups][16][t_pitch] fp16
//   ends     [2][2][head_dim]: PK and PQ of the slots beyond the band, high end first
//   bits     [stages][4] u32: kept keys of each tile; [4] u32, for each stage: whether all keys of its tile are kept
//   range    [2][8] int, of this item and the next: first kept key, one past the last, which rows are masked (Hidden), -, these rows [4]
//   kept     [stages][units][consumers] u32: patches of dropout.h, inverted
//   barriers
// needs: disentangled_attention/sm90_tiles.cuh, disentangled_attention/params.h, config

constexpr bool has_bias = c2p || p2c;
constexpr int block_m = 64 * warpgroups;
// Of the producer: one warp loads, one reads the mask, the others draw which weights are dropped.
constexpr int draw_warps = dropout ? 3 - int(mask) : 0;
constexpr int producer_threads = 128;
// Arrivals for what the loading warp brings: of one lane where bulk copies do all of it, else of every lane that may have
// written something; the ends of the position tables count for themselves.
constexpr int load_arrivals = boxes && !packed ? 1 : 32;
constexpr int end_arrivals = !has_bias ? 0 : aligned ? 1 : 32;
constexpr int threads = 128 * warpgroups + producer_threads;
constexpr int units = block_n / 64;              // key groups of a tile whose T is computed at a time
constexpr int tile_chunks = warpgroups + units;  // distance chunks under one tile
constexpr int ring = tile_chunks + spare_chunks;

// The sums of the weights come with the products with V, as those with a column of ones: of weights as they were rounded,
// so that an lse would not be exact. head_dim 128 leaves no way to name that column.
constexpr bool sum_column = !lse && !dropout && dtype == dtype_bf16 && head_dim < 128;
constexpr int out_elements = head_dim / 2 + (sum_column ? 4 : 0);  // of a thread; the last are sums, of rows g, g, g + 8, g + 8

// Two products of a near tile in flight; registers are too short for it with head_dim 128.
constexpr bool deep = head_dim < 128;

constexpr int tile_bytes = block_n * 2 * head_dim;
constexpr int table_bytes = 64 * 2 * head_dim;  // one table's rows of a chunk
constexpr int chunk_bytes = table_bytes * (int(c2p) + int(p2c));
// T of a tile with as many units as warpgroups serves both: each makes the rows of one unit of keys. Otherwise every
// warpgroup has its own.
constexpr bool shared_t = p2c && warpgroups == 2 && units == 2;
constexpr int t_columns = shared_t ? block_m : 64;
// Position scores wander out of their row, row r of 16 by up to 16 - r to the left and r + 1 to the right: 24 columns
// between rows take both, and 8 more do between rows of different warps. An odd number of 16-byte pieces keeps stores
// and ldmatrix free of bank conflicts.
constexpr int gap_bytes = 16, spill_bytes = 32;
constexpr int c_pitch = 2 * (block_n + 24);  // bytes
constexpr int t_pitch = 2 * (t_columns + 24);
constexpr int t_group_bytes = 16 * t_pitch + gap_bytes;
constexpr int t_groups = p2c ? 4 * units * (shared_t ? 1 : warpgroups) : 0;
constexpr int out_pitch = 2 * head_dim + 16;
constexpr int warp_bytes = 16 * (c2p && c_pitch > out_pitch ? c_pitch : out_pitch) + gap_bytes;

constexpr int k_offset = 0;
constexpr int v_offset = k_offset + stages * tile_bytes;
constexpr int pk_offset = v_offset + stages * tile_bytes;
constexpr int pq_offset = pk_offset + (c2p ? table_bytes : 0);
constexpr int q_offset = pk_offset + ring * chunk_bytes;
constexpr int ones_offset = q_offset + block_m * 2 * head_dim;
constexpr int scratch_offset = ones_offset + (sum_column ? 32 * head_dim : 0);
constexpr int t_offset = scratch_offset + spill_bytes + 4 * warpgroups * warp_bytes;
constexpr int ends_offset = t_offset + (p2c ? spill_bytes : 0) + t_groups * t_group_bytes;
constexpr int bits_offset = ends_offset + (has_bias ? 8 * head_dim : 0);
constexpr int plain_offset = bits_offset + stages * 16;
constexpr int range_offset = bits_offset + (mask ? stages * 16 + 16 : 0);
constexpr int range_bytes = 32;
constexpr int kept_offset = range_offset + (mask ? 2 * range_bytes : 0);
constexpr int barrier_offset = kept_offset + (dropout ? stages * units * 4 * 128 * warpgroups : 0);

constexpr int k_full = barrier_offset, k_empty = k_full + 8 * stages, v_full = k_empty + 8 * stages,
              v_empty = v_full + 8 * stages, strip_empty = v_empty + 8 * stages,
              q_full = strip_empty + (has_bias ? 8 * ring : 0), q_empty = q_full + 8, t_full = q_empty + 8,
              t_empty = t_full + (p2c ? 8 * warpgroups : 0), tail_full = t_empty + (p2c ? 8 * warpgroups : 0),
              range_full = tail_full + 8, range_empty = range_full + (mask ? 16 : 0),
              kept_full = range_empty + (mask ? 16 : 0),
              kept_empty = kept_full + (dropout ? 8 * stages : 0),
              shared_end = kept_empty + (dropout ? 8 * stages : 0);

static_assert(far || has_bias, "without position terms every tile is far");
static_assert(warpgroups == 1 || warpgroups == 2, "consumer warpgroups");
static_assert(!(mask && packed), "masks belong to padded batches");
static_assert(block_n == 64 || block_n == 128, "keys of a tile");
static_assert(!resident || spare_chunks == 0, "resident chunks fill the ring");
static_assert(stages >= 2 && stages <= 4, "depth of the K and V rings");
static_assert(table_bytes % 1024 == 0 && tile_bytes % 1024 == 0, "tiles start at a swizzle period");
static_assert((c_pitch / 16) % 2 == 1 && (t_pitch / 16) % 2 == 1, "pitch of the score buffers");
static_assert(warp_bytes % 16 == 0 && t_group_bytes % 16 == 0 && shared_end <= 232448, "shared memory of one block");

// Finite, so that a tile without a visible key needs no special case; a power of two, so that its product with the
// scale is exact and the difference of two of them 0.
constexpr float masked_score = -0x1p100f;
constexpr float largest_score = 0x1p100f;
// log2 of how far scores may exceed the subtracted maximum before it and O move, where it is looked at: in near tiles (of
// bf16; that of fp16 follows), at the start of far ones, at a row's first kept key, and where what was put off is made up.
constexpr float lazy = 8.0f;
// Sum of the exponentials of a thread's keys in one row of a unit beyond which the unit is put off: fp16 holds each.
// With sum_column it is `too_large`.
constexpr float largest_sum = 0x1p15f;
// log2 of what all weights are divided by with sum_column, so that weights which are too large show by one bit.
constexpr float lowered = sum_column ? 14.0f : 0.0f;
constexpr float weight_of_zero = sum_column ? 0x1p-14f : 1.0f;  // of a score that equals the maximum
constexpr u32 too_large = 0x40004000u;  // of two weights: 2 or more

// The first `left` bits.
__device__ __forceinline__ u32 range_word(int left) {
    return left >= 32 ? 0xffffffffu : left <= 0 ? 0u : (1u << left) - 1;
}

// How many query rows of an item's block are masked.
enum Hidden : int { hidden_none, hidden_some, hidden_all };

struct MaskRange {
    int first_key, key_count, hidden;
};

// All keys of a sequence fit into one tile: which to load does not depend on the mask, and nobody but the consumers waits
// for ranges.
__device__ __forceinline__ bool one_tile(const ForwardParams& p) {
    return p.length <= block_n;
}

// Of the item whose range_full has been waited for.
__device__ __forceinline__ MaskRange read_range(const unsigned char* memory, u32 which) {
    const int* range = reinterpret_cast<const int*>(memory + range_offset + range_bytes * which);
    return {range[0], range[1], range[2]};
}

struct Item {
    int batch, head, row0, length;
    int first;    // packed: row of the tensors where the sequence starts
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
        item.length = p.cu_seqlens[item.batch + 1] - item.first;
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
