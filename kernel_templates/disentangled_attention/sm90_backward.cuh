// What the sm_90 backward kernels share: blocks of 64 rows, of one warpgroup or of two that split the columns of
// results, their loads, the expanded position tables, and the shear of 16-bit rows by their distance to the diagonal.
// needs: `warpgroups`, sm90_tiles.cuh, sm90_shift.cuh, backward_layout.cuh, common/async_copy.cuh,
// common/shared_memory.cuh, common/bulk_copy.cuh, common/mbarrier.cuh
//
// regions[4]  position tables  [heads][first_chunk .. last_chunk][PQ | PK][64][head_dim], each swizzled as its copy in
//   shared memory. Row 8n + 2c + b of a chunk is neighbour x = 16c + 2n + b, so that an accumulator thread c holds 16
//   neighbours; x is counted from the chunk's first distance for PQ, from its last one for PK.
// regions[5]  tiled: records of 64-row tiles [T][record_stride()], images of what the kernels keep in shared memory,
//   so that a bulk copy brings them:
//     Q, dO      rows in accumulator runs (run_position), zeros beyond the sequence's end
//     paired Q   [4 warps][head_dim / 16][32 lanes][4 words]: A operands of rows 2g and 2g + 1 of 16 (with c2p)
//     row values [3 planes][1024 bytes]: those of KeyBlock, then the masked rows and the dead keys, 64 bits each
//     Q + PQ_end [2 ends: high, low] (with p2c and far tiles)
//     K, V       tiled_keys: rows in their order
//   else: shifted queries [2 ends: high, low][T][64][head_dim]: q + PQ_end, the operand of far tiles

constexpr bool has_bias = c2p || p2c;
constexpr int block_rows = 64;
constexpr int threads = 128 * warpgroups;
constexpr int out_dim = head_dim / warpgroups;  // columns of the results that a warpgroup holds
constexpr int operand_bytes = block_rows * 2 * head_dim;
constexpr u32 nothing = 0xffffffffu;

enum : int { region_tables = 4, region_shifted, region_records = region_shifted };
enum : int { expanded_query, expanded_key, expanded_tables };

// Rows of 64 (scores) or 80 (shear) columns with 16 more on either side to wander into; an odd number of 16-byte pieces
// keeps 16-byte accesses of neighbouring rows free of bank conflicts.
constexpr int score_pitch = 2 * (64 + 24);
constexpr int score_spill = 32;
constexpr int score_bytes = score_spill + block_rows * score_pitch;
// Between groups of 16 rows of a buffer whose rows ldmatrix gathers from all groups.
constexpr int group_shift = 32;
constexpr int gathered_bytes = score_bytes + 4 * group_shift;

// Row values of a query tile for the KV kernel: lse in 4 groups of 16 queries, then Delta, without dropout negated, as
// the accumulators of dP start. Padding keeps a warp's reads of four groups free of bank conflicts.
constexpr int value_group = 16 * 4 + 16;
constexpr int lse_bytes = 4 * value_group;
constexpr int statistics_bytes = 2 * lse_bytes;

__device__ __forceinline__ void store_statistics(unsigned char* to, int row, float lse, float delta) {
    float* at = reinterpret_cast<float*>(to + (row >> 4) * value_group + (row & 15) * 4);
    at[0] = lse;
    at[lse_bytes / 4] = dropout ? delta : -delta;
}

constexpr int record_q = 0, record_dout = operand_bytes, record_paired = 2 * operand_bytes,
              record_statistics = 3 * operand_bytes, statistics_stride = 1024,
              record_shifted = record_statistics + 3 * statistics_stride;
static_assert(tiled || !tiled_keys, "records have keys besides queries");
static_assert(statistics_bytes + 16 <= statistics_stride, "row values of a record");

__device__ __forceinline__ u32 record_keys(const BackwardParams& p) {
    return record_shifted + (p2c && has_far_tiles(p) ? 2 * operand_bytes : 0);
}
__device__ __forceinline__ u32 record_stride(const BackwardParams& p) {
    return record_keys(p) + (tiled_keys ? 2 * operand_bytes : 0);
}
__device__ __forceinline__ unsigned char* record(const BackwardParams& p, s64 tile) {
    return region<unsigned char>(p, region_records) + tile * record_stride(p);
}

struct Block {
    int batch, head, tile, length;
    s64 first;  // packed: row of the tensors where the sequence starts
    s64 row0;   // row of the statistics where the sequence starts
    s64 base;   // number of the sequence's tile 0
    bool exists;

    // Blocks are numbered by tile, then batch, then head.
    __device__ __forceinline__ Block(const BackwardParams& p, int index) {
        const int tiles = tiles_of(p.length), pair = index / tiles;
        head = pair / p.batch;
        batch = pair - head * p.batch;
        tile = index - pair * tiles;
        first = 0;
        length = p.length;
        row0 = (s64(batch) * p.heads + head) * p.length;
        if constexpr (packed) {
            first = p.cu_seqlens[batch];
            length = p.cu_seqlens[batch + 1] - int(first);
            row0 = head * p.tokens + first;
        }
        base = tile_base(p, batch, head);
        exists = tile * block_rows < length;
    }

    // Row 0 of the sequence's head in a tensor.
    __device__ __forceinline__ const u16* rows(const void* tensor, s64 per_batch, s64 per_row, s64 per_head) const {
        return static_cast<const u16*>(tensor) + (packed ? 0 : batch * per_batch) + first * per_row + head * per_head;
    }
};

// What a block of keys or of queries knows. With keys the other kind of tiles is that of queries, and the reverse.
struct BlockState {
    const BackwardParams& p;
    unsigned char* memory;
    u32 shared;
    int thread;
    Lane lane;
    Block block;
    int near_begin, near_end, tiles;  // tiles of the other kind; near ones are [near_begin, near_end)

    __device__ __forceinline__ BlockState(const BackwardParams& params, unsigned char* block_memory, u32 address,
                                          int thread_number, const Block& of)
        : p(params), memory(block_memory), shared(address), thread(thread_number), lane(thread_number), block(of) {
        lane.warp = int(__reduce_max_sync(nothing, u32(lane.warp)));
        tiles = tiles_of(block.length);
        const int width = near_width(p);
        near_begin = has_bias ? min(max(block.tile - width, 0), tiles) : 0;
        near_end = has_bias ? min(block.tile + width + 1, tiles) : 0;
    }

    // The number-th operand at `offset`, in units of 16 bytes.
    __device__ __forceinline__ u32 operand(int offset, int number) const {
        return (shared >> 4) + offset / 16 + number * (operand_bytes / 16);
    }
};

// Where row `row` of 64 lies in a tile whose rows are in the order of accumulator runs: position 8n + 2c + b of a tile
// holds row 16c + 2n + b.
__device__ __forceinline__ int run_position(int row) {
    return 8 * (row >> 1 & 7) + 2 * (row >> 4) + (row & 1);
}
// The same for order_of() of the layout.
__device__ __forceinline__ int near_position(int row) {
    return (row & ~7) | 2 * (row & 3) | (row >> 2 & 1);
}

enum : int { order_natural, order_runs, order_near };

// Tiles of 64 rows of a tensor, one after the other, into shared memory: this thread's 16 bytes of every few rows.
template <int order>
struct TileRows {
    const u16* from;

    // `rows`: row 0 of the next tile.
    __device__ __forceinline__ void aim(const u16* rows, s64 stride, int thread) {
        from = rows + thread / row_chunks * stride + thread % row_chunks * 8;
    }

    // Rows at or beyond `count` become zeros.
    __device__ __forceinline__ void copy(u32 to, s64 stride, int count, int thread) {
        constexpr int row_step = threads / row_chunks, steps = block_rows / row_step;
        const int row = thread / row_chunks, chunk = thread % row_chunks;
        const s64 step = row_step * stride;
        if (count >= block_rows) {
#pragma unroll
            for (int i = 0; i < steps; ++i, from += step)
                copy_async16(chunk_address<block_rows>(to, position(row + i * row_step), chunk), from, true);
        } else {
            const u16* first = from - row * stride;
#pragma unroll
            for (int i = 0; i < steps; ++i, from += step) {
                const bool valid = row + i * row_step < count;
                copy_async16(chunk_address<block_rows>(to, position(row + i * row_step), chunk), valid ? from : first,
                             valid);
            }
        }
    }

  private:
    static __device__ __forceinline__ int position(int row) {
        return order == order_runs ? run_position(row) : order == order_near ? near_position(row) : row;
    }
};

// The expanded tables of one head.
struct PositionTables {
    const unsigned char* first;
    int low, high;  // chunks

    __device__ __forceinline__ PositionTables(const BackwardParams& p, int head)
        : low(first_chunk(p.band)), high(last_chunk(p.band)) {
        first = region<const unsigned char>(p, region_tables) +
                s64(head) * (high - low + 1) * (expanded_tables * operand_bytes);
    }
    __device__ __forceinline__ const unsigned char* chunk(int number, int table) const {
        const int e = min(max(number, low), high) - low;
        return first + u32(e * expanded_tables + table) * u32(operand_bytes);
    }
};

__device__ __forceinline__ u16* shifted_tile(const BackwardParams& p, int end, s64 tile) {
    return region<u16>(p, region_shifted) + (end * tile_count(p) + tile) * (block_rows * head_dim);
}

// One thread's bulk copy of an operand.
__device__ __forceinline__ void copy_operand(u32 to, const void* from, u32 barrier) {
    barrier_expect_bytes(barrier, operand_bytes);
    copy_bulk(to, from, operand_bytes, barrier);
    barrier_arrive(barrier);
}

// dP = a . b and the like: both operands have head_dim along their rows. In units of 16 bytes.
__device__ __forceinline__ void scores_product(float (&d)[32], u32 a, u32 b) {
    wgmma_shared<dtype, operand_high, false>(d, key_operand<block_rows>(a, 0), key_operand<block_rows>(b, 0));
#pragma unroll
    for (int step = 1; step < dim_steps; ++step)
        wgmma_shared<dtype, operand_high, true>(d, key_operand<block_rows>(a, step), key_operand<block_rows>(b, step));
}
__device__ __forceinline__ void add_scores_product(float (&d)[32], u32 a, u32 b) {
#pragma unroll
    for (int step = 0; step < dim_steps; ++step)
        wgmma_shared<dtype, operand_high, true>(d, key_operand<block_rows>(a, step), key_operand<block_rows>(b, step));
}
// d += a . b, where b's rows are a's columns.
__device__ __forceinline__ void add_rows_product(float (&d)[out_dim / 2], const u32 (&a)[4][4], u32 b) {
#pragma unroll
    for (int step = 0; step < 4; ++step)
        wgmma<dtype, operand_high, true, true>(d, a[step], value_operand<block_rows>(b, step));
}

// 16 rows of a warp, sheared: element x of row r goes to column x + first - r of 80, so that a column is one distance;
// the rest is zero. A thread brings 16 neighbours (16c ..) of two rows, and takes those columns of a chunk of 64
// distances that an A operand needs, in the order of the chunk's rows. The pitch keeps both free of bank conflicts.
constexpr int shear_pitch = 180;
constexpr int shear_bytes = 16 * shear_pitch;  // of a warp

struct Shear {
    u32 rows;   // address of the warp's row 0
    u32 zeros;  // address of 8 zero words
    const Lane& lane;

    // Zeroes what store<first> leaves alone, and at most a word of what it writes.
    template <int first>
    __device__ __forceinline__ void clear() const {
        const int row = lane.lane >> 1, below = (first - row) >> 1;
        const u32 to = rows + row * shear_pitch;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int word = 4 * (lane.lane & 1) + i;
            store_word(to + 4 * (word < below ? word : word + 32), 0);
        }
    }

    template <int first>
    __device__ __forceinline__ void store(const u32 (&words)[8], int row) const {
        const u32 at = rows + row * shear_pitch + 2 * (16 * lane.c + first - row);
        const bool odd = at & 2;
        const u32 to = at & ~3u, selector = odd ? 0x5432u : 0x7654u;
        u32 before = __shfl_up_sync(nothing, words[7], 1);
        if (lane.c == 0) before = 0;
#pragma unroll
        for (int n = 0; n < 8; ++n)
            store_word(to + 4 * n, permute_bytes(n == 0 ? before : words[n - 1], words[n], selector));
        if (odd && lane.c == 3) store_word(to + 32, words[7] >> 16);
    }

    // Chunk 0 or 1, in order of columns; row `row` and the one 8 below.
    __device__ __forceinline__ void load(u32 (&a)[4][4], int number, int row) const {
        const int piece = 4 * number + lane.c + lane.warp - 3;
        const bool inside = piece >= 0 && piece <= 4;
        const u32 low = inside ? rows + row * shear_pitch + 32 * piece : zeros;
        const u32 high = inside ? low + 8 * shear_pitch : zeros;
#pragma unroll
        for (int step = 0; step < 4; ++step)
#pragma unroll
            for (int part = 0; part < 4; ++part)
                a[step][part] = load_word((part & 1 ? high : low) + 8 * step + 4 * (part >> 1));
    }
};

// Rows of a warp's accumulators as 16-bit rows in shared memory, then to a tensor in pieces of 16 bytes. Row 16w + g +
// 8h of the tile lies in row order[h] of the staging.
constexpr int out_chunks = out_dim / 8;  // of 16 bytes
constexpr int stage_pitch = 2 * out_dim + 16;
constexpr int stage_bytes = block_rows * stage_pitch;

__device__ __forceinline__ void store_rows(const float (&d)[out_dim / 2], float factor, unsigned char* memory,
                                           u32 shared, u32 offset, const Lane& lane, const int (&row)[2], u16* to,
                                           s64 stride, int count) {
    const u32 stage = shared + offset + 16 * lane.warp * stage_pitch;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int n = 0; n < out_chunks; ++n)
            store_word(stage + row[half] * stage_pitch + 16 * n + 4 * lane.c,
                       pack2<dtype>(d[4 * n + 2 * half] * factor, d[4 * n + 2 * half + 1] * factor));
    __syncwarp();
    const unsigned char* from = memory + (stage - shared);
#pragma unroll
    for (int i = 0; i < 16 * out_chunks / 32; ++i) {
        const int at = lane.lane + 32 * i, r = at / out_chunks, chunk = at % out_chunks;
        if (16 * lane.warp + r < count)
            *reinterpret_cast<Words4*>(to + (16 * lane.warp + r) * stride + chunk * 8) =
                *reinterpret_cast<const Words4*>(from + r * stage_pitch + chunk * 16);
    }
}
