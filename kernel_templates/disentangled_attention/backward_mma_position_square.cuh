// One square of backward_mma_position.cu: its copy to shared memory and its products.
// needs: backward_layout.cuh, backward_sequence.cuh, backward_squares.cuh, mma_shear.cuh, config

constexpr int threads = 256;
constexpr int column_parts = head_dim / dim_part;
constexpr int part_steps = dim_part / 16;
constexpr int part_chunks = dim_part / 8;  // of 16 bytes, of a row
constexpr int part_bytes = 2 * dim_part;
constexpr int row_blocks = span / 16;
constexpr int owned = 2 * tiles;  // blocks of 16 distances of a warp
constexpr int q_offset = tiles * tiles * tile_bytes_16;
constexpr int k_offset = q_offset + span * part_bytes;
constexpr int stage_bytes = k_offset + span * part_bytes;

static_assert(stages * stage_bytes + 16 == shared_bytes, "the launch asks for another size of shared memory");
static_assert(tiles == 1 || tiles == 2, "tiles along a side of a square");
static_assert(head_dim % dim_part == 0 && (dim_part == 32 || dim_part == 64), "columns of a block");
static_assert(stages >= 2 && stages <= 4, "depth of the ring");

__device__ __forceinline__ u32 swizzled_part(int row, int chunk) {
    const int turn = dim_part == 32 ? (row >> 1) & 3 : row & 7;
    return u32(row * part_bytes + ((chunk ^ turn) << 4));
}

struct SquareCopier {
    const BackwardParams& p;
    int head, width, slots;
    u32 inverse;       // 2^32 / slots, rounded up
    const u16 *q, *k;  // at this head and this thread's columns
    int row, chunk;

    __device__ __forceinline__ SquareCopier(const BackwardParams& p_, int head_, int column0)
        : p(p_), head(head_), width(near_width(p)), slots(near_slots(p)) {
        inverse = 0xffffffffu / unsigned(slots) + 1;
        row = int(threadIdx.x) / part_chunks, chunk = int(threadIdx.x) % part_chunks;
        q = static_cast<const u16*>(p.q) + head * p.q_head + column0 + chunk * 8;
        k = static_cast<const u16*>(p.k) + head * p.k_head + column0 + chunk * 8;
    }

    __device__ __forceinline__ void rows(const u16* tensor, s64 row_stride, int first, int length, u32 to) const {
        constexpr int row_step = threads / part_chunks;
        to += swizzled_part(row, chunk);
        const u16* from = tensor + (first + row) * row_stride;
#pragma unroll
        for (int i = 0; i < span; i += row_step) {
            const bool valid = first + row + i < length;
            const u16* source = valid ? from : tensor;
            if constexpr (aligned) {
                copy_async16(to + i * part_bytes, source, valid);
            } else {
                u32 word[4] = {0, 0, 0, 0};
                if (valid)
                    for (int n = 0; n < 4; ++n) word[n] = u32(source[2 * n]) | u32(source[2 * n + 1]) << 16;
                store_shared16(to + i * part_bytes, {word[0], word[1], word[2], word[3]});
            }
            from += row_step * row_stride;
        }
    }

    __device__ __forceinline__ void square(const Square& s, u32 to) const {
        const HeadRows sequence(p, s.batch, head);
        const int count = tiles_of(sequence.length), tid = int(threadIdx.x);
#pragma unroll
        for (int n = 0; n < tiles * tiles; ++n) {
            const int key = s.key * tiles + n / tiles, query = s.query * tiles + n % tiles;
            const bool exists = key < count && query < count && abs(query - key) <= width;
            const u16* from = region<u16>(p, region_near);
            // Exact while query * slots < 2^32; a single slot has no quotient that fits.
            const int slot = slots == 1 ? 0 : query - int(__umulhi(unsigned(query), inverse)) * slots;
            if (exists) from += ((sequence.tiles + key) * slots + slot) * (tile_rows * tile_rows) + tid * 8;
#pragma unroll
            for (int i = 0; i < tile_bytes_16; i += 16 * threads)
                copy_async16(to + n * tile_bytes_16 + i + 16 * tid, from + i / 2, exists);
        }
        const s64 first = packed ? sequence.first : 0;
        if constexpr (c2p)
            rows(q + (packed ? first * p.q_row : s.batch * p.q_batch), p.q_row, s.query * span, sequence.length,
                 to + q_offset);
        if constexpr (p2c)
            rows(k + (packed ? first * p.k_row : s.batch * p.k_batch), p.k_row, s.key * span, sequence.length,
                 to + k_offset);
    }
};

struct PositionWarp {
    int lane, g, c, table;
    int run[2];        // first block of 16 distances of each of two runs of `tiles` neighbours
    Shear shear;       // rows in accumulator order
    u32 values, turn;  // this lane's row of 16 rows, in accumulator order, and its chunk
    u32 matrix;        // this lane's row of four matrices of dS
    u32 zeros;         // 16 bytes
    float sum[owned][dim_part / 8][4];

    __device__ __forceinline__ PositionWarp(int tid, u32 zeros_)
        : lane(tid % 32), g(lane >> 2), c(lane & 3), shear(lane, order_of(g)), zeros(zeros_) {
        const int index = __shfl_sync(0xffffffffu, tid / 32, 0);  // shuffled, to be known as the same in all lanes
        table = index / 4;
        // Block b has min(b + 1, 8 * tiles - b) products per square.
        const int warp = index % 4;
        if constexpr (tiles == 2) {
            run[0] = 2 * warp, run[1] = 2 * warp + 8;
        } else {
            run[0] = warp == 3 ? 4 : warp, run[1] = warp == 0 ? 3 : warp == 3 ? 7 : warp + 4;
        }
        const int row = ((lane >> 3) & 1) * 8 + order_of(lane & 7);
        values = row * part_bytes, turn = swizzled_part(row, lane >> 4) - values;
        // Matrices: (rows 0-7, columns 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15). Queries are the matrices' columns.
        const int lower = lane >> 3 & 1, right = lane >> 4;
        matrix = (table == table_key ? right * 8 + lower : lower * 8 + right) * 128 + order_of(lane & 7) * 16;
        clear();
    }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < owned; ++i)
#pragma unroll
            for (int n = 0; n < dim_part / 8; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[i][n][e] = 0.0f;
    }

    // dS of 16 rows (queries for PK, keys for PQ) and 16 columns (the others), as an operand; zeros outside the square.
    template <int which>
    __device__ __forceinline__ void load_block(u32 (&a)[4], u32 square, int rows, int columns) const {
        const int key = which == table_key ? columns : rows, query = which == table_key ? rows : columns;
        const u32 inside =
            square + ((key >> 2) * tiles + (query >> 2)) * tile_bytes_16 + ((key & 3) * 8 + (query & 3)) * 256 + matrix;
        const u32 at = columns >= 0 && columns < row_blocks ? inside : zeros;
        if constexpr (which == table_key)
            load_matrices_transposed(a, at);
        else
            load_matrices(a, at);
    }

    // For every own block of 16 distances and every 16 rows that reach it: sum += (dS by distance)^T * rows.
    template <int which>
    __device__ __forceinline__ void add(u32 square) {
        const u32 rows_at = square + (which == table_key ? q_offset : k_offset) + values;
#pragma unroll 1
        for (int rows = 0; rows < row_blocks; ++rows) {
            u32 b[part_steps][4];
#pragma unroll
            for (int n = 0; n < part_steps; ++n)
                load_matrices_transposed(b[n], rows_at + rows * 16 * part_bytes + (turn ^ (n << 5)));
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int first = run[r] + rows - (row_blocks - 1);  // the later columns of the run's first block
                if (first + tiles <= 0 || first > row_blocks) continue;
                u32 before[4], here[4];
                load_block<which>(before, square, rows, first - 1);
#pragma unroll
                for (int i = 0; i < tiles; ++i) {
                    load_block<which>(here, square, rows, first + i);
                    ScatterCarry carry;
                    carry.top[0] = before[0], carry.top[1] = before[2], carry.bottom = before[3];
                    u32 by_distance[4], a[4];
                    carry.next(by_distance, here, shear);
                    // Transposed: rows = distances.
                    a[0] = transpose_matrix(by_distance[0]), a[1] = transpose_matrix(by_distance[2]);
                    a[2] = transpose_matrix(by_distance[1]), a[3] = transpose_matrix(by_distance[3]);
#pragma unroll
                    for (int n = 0; n < part_steps; ++n) {
                        multiply<dtype>(sum[r * tiles + i][2 * n], a, b[n][0], b[n][1]);
                        multiply<dtype>(sum[r * tiles + i][2 * n + 1], a, b[n][2], b[n][3]);
                    }
#pragma unroll
                    for (int word = 0; word < 4; ++word) before[word] = here[word];
                }
            }
        }
    }
    __device__ __forceinline__ void add_square(u32 square) {
        if (table == table_key) {
            if constexpr (c2p) add<table_key>(square);
        } else {
            if constexpr (p2c) add<table_query>(square);
        }
    }

    __device__ __forceinline__ void store(float* to) const {
#pragma unroll
        for (int i = 0; i < owned; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int t = 16 * (run[i / tiles] + i % tiles) + 8 * half + order_of(g);
                const int x = table == table_key ? 2 * span - 2 - t : t;
                if (t == 2 * span - 1) continue;
#pragma unroll
                for (int n = 0; n < dim_part / 8; ++n) {
                    const RowStatistics pair{sum[i][n][2 * half], sum[i][n][2 * half + 1]};
                    *reinterpret_cast<RowStatistics*>(to + x * head_dim + 8 * n + 2 * c) = pair;
                }
            }
    }
};
