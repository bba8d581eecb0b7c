// The workspace of the backward pass: what the kernels hand to each other. Shared by the mma and the sm90 kernels: a
// tier brings the kernels that it does better, and uses the common ones.
//
//   prepare   writes row statistics
//   KV        reads row statistics; writes dK, dV, the near tiles of dS, and PQ's end vectors
//   Q         reads row statistics and the near tiles; writes dQ and PK's end vectors
//   position  reads the near tiles; writes distance sums
//   finish    reads distance sums and end vectors; writes the gradients of both tables
//
// A *tile* is 64 queries x 64 keys, aligned to 64 from the start of its sequence; its *diagonal* is query tile - key
// tile. A tile is near when |diagonal| <= near_width(), else far: then every |i - j| >= band, and all its pairs have
// the high end slot (i - j >= band) or the low end slot (i - j <= -band). Without position terms there are no near
// tiles.
//
// tile_base() numbers the 64-row tiles of all sequences of all heads; T = tile_count() is their number. In packed
// layout some numbers between two sequences stay unused, and nothing may read them.
//
// regions[0]  row statistics       [3][rows] RowStatistics, rows as in lse; written by prepare
//   plane 0: {lse, Delta}; plane 1 (high) and 2 (low): {lse - scale_log2 * q.PK_end, Delta}, for far tiles, where the
//   term q.PK_end is a constant of the row. Planes 1 and 2 are written only when c2p and has_far_tiles().
//   A hidden query row has the same lse in all planes.
// regions[1]  near tiles of dS     [T][near_slots()][64 x 64] 16-bit elements of `dtype`; written by KV
//   Tile (query tile x, key tile y) of a sequence is number (tile_base + y) * near_slots() + x % near_slots().
//   KV writes every near tile of every existing query and key tile. The value is P (dP - Delta), without `scale`; 0 for
//   hidden query rows, hidden keys, and rows or keys beyond the end of the sequence.
//   Order within a tile: 8 x 8 matrices of 128 bytes, [key / 8][query / 8], each [key % 8][position of query % 8]: a
//   row of 16 bytes is one key. Keys are in their natural order. Queries are in *accumulator order*: position 2c + b
//   holds query c + 4b (order_of()), that is 0 4 1 5 2 6 3 7.
//   So ldmatrix reads a matrix as operand rows of keys, ldmatrix.trans as rows of queries, both without conflicts.
// regions[2]  end vectors          [2 tables: PK, PQ][T][2 ends: high, low][head_dim] fp32
//   The sum over the far tiles of one 64-row tile (of either kind, query or key tile) of dS_ij q_i (PK) and dS_ij k_j
//   (PQ), without `scale`. Which far tiles an entry covers is the writer's choice, provided that all entries of a
//   sequence together cover each far tile once and that every tile of every sequence has its entry written, with
//   zeros when it has no far tiles. Unused without has_far_tiles(); of a table without its term, too.
// regions[3]  distance sums        see backward_distances.cuh; between the position and the finish kernel only
// needs: common/types.cuh, disentangled_attention/params.h, config

constexpr int tile_rows = 64;
constexpr int tile_bytes_16 = tile_rows * tile_rows * 2;

struct alignas(8) RowStatistics {
    float lse;    // P = 2^(scale_log2 * s - lse)
    float delta;  // sum_d O dO
};

enum : int { region_statistics, region_near, region_ends, region_distances };
enum : int { table_key, table_query };
enum : int { end_high, end_low };

template <class T>
__device__ __forceinline__ T* region(const BackwardParams& p, int which) {
    return reinterpret_cast<T*>(static_cast<unsigned char*>(p.workspace) + p.regions[which]);
}

// Index within a group of 8 of accumulator position `position`: 2c + b holds c + 4b.
__device__ __forceinline__ int order_of(int position) {
    return (position & ~7) | ((position & 7) >> 1) | ((position & 1) << 2);
}

__device__ __forceinline__ int tiles_of(int length) {
    return (length + tile_rows - 1) / tile_rows;
}

// Tiles of the longest sequence limit the diagonals as the band does.
__device__ __forceinline__ int near_width(const BackwardParams& p) {
    return min((p.band + tile_rows - 2) / tile_rows, tiles_of(p.length) - 1);
}

__device__ __forceinline__ int near_slots(const BackwardParams& p) {
    return min(2 * near_width(p) + 1, tiles_of(p.length));
}

__device__ __forceinline__ bool has_far_tiles(const BackwardParams& p) {
    return near_width(p) < tiles_of(p.length) - 1;
}

__device__ __forceinline__ s64 tile_count(const BackwardParams& p) {
    return packed ? p.heads * (p.tokens / tile_rows + p.batch) : s64(p.batch) * p.heads * tiles_of(p.length);
}

// Number of tile 0 of a sequence. Packed: sequences start on a tile of their own, one spare tile each.
__device__ __forceinline__ s64 tile_base(const BackwardParams& p, int batch, int head) {
    if constexpr (packed)
        return head * (p.tokens / tile_rows + p.batch) + p.cu_seqlens[batch] / tile_rows + batch;
    else
        return (s64(batch) * p.heads + head) * tiles_of(p.length);
}

__device__ __forceinline__ s64 statistics_rows(const BackwardParams& p) {
    return p.heads * (packed ? p.tokens : s64(p.batch) * p.length);
}

// Statistics for the near tiles (end < 0) or the far tiles of one end; without c2p all tiles share plane 0.
__device__ __forceinline__ const RowStatistics* statistics_plane(const BackwardParams& p, int end) {
    return region<RowStatistics>(p, region_statistics) + (c2p && end >= 0 ? (end + 1) * statistics_rows(p) : 0);
}

// 16-bit elements of a near tile.
__device__ __forceinline__ u16* near_tile(const BackwardParams& p, s64 base, int query_tile, int key_tile) {
    const int slots = near_slots(p);
    return region<u16>(p, region_near) + ((base + key_tile) * slots + query_tile % slots) * (tile_rows * tile_rows);
}

__device__ __forceinline__ float* end_vector(const BackwardParams& p, int table, s64 tile, int end) {
    return region<float>(p, region_ends) + ((table * tile_count(p) + tile) * 2 + end) * head_dim;
}
