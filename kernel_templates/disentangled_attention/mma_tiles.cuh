// Tiles that a block of own rows walks over, as forward_mma.cu and the tf32 backward kernels share them: `warps` warps,
// column_warps of them side by side, own block_m rows x. They meet tiles of block_n other rows z (with partners w), and
// in near tiles the strip, the rows of the position tables T1 (times x) and T2 (times z) for the block_m + block_n - 1
// distances of the tile. The strip is a ring: the next tile's strip is this one's moved by block_n rows.
//
// Dynamic shared memory, from its start on, in this order:
//   z      [stages][block_n][head_dim]       16-byte chunks swizzled by row, rows in accumulator order (key_of)
//   w      [stages][block_n][head_dim]       likewise
//   T1     [ring_rows][head_dim]             when has_t1, likewise, in the order of other - own
//   T2     [ring_rows][head_dim]             when has_t2
//   shift  [warps][warp_rows][shift_pitch]   fp32, when has_t1 or has_t2
// needs: mma_rows.cuh, common/mma.cuh, disentangled_attention/sequence.cuh, config: block_m, block_n, warps, stages;
// has_t1, has_t2, column_warps, sign of the includer: the distance i - j is sign * (own - other)

constexpr int threads = 32 * warps;
constexpr int warp_rows = block_m / (warps / column_warps);
constexpr int row_tiles = warp_rows / 16;  // accumulator tiles of a warp, one above the other
constexpr int key_blocks = block_n / 16;
constexpr int key_group = row_bytes <= 128 ? 2 : 1;  // blocks of 16 z rows whose fragments a warp holds at a time
constexpr int tile_bytes = block_n * row_bytes;

constexpr int strip_chunks = (block_m + block_n - 1) / block_n + 1;  // pieces of block_n distances under one tile
constexpr int ring_chunks = strip_chunks + stages - 1;
constexpr int ring_rows = ring_chunks * block_n;
constexpr int ring_bytes = ring_rows * row_bytes;
// A pitch of 4 mod 32 words: the reads and the stores of T2.z touch every bank once.
constexpr int shift_pitch = block_n + 4;

constexpr int z_offset = 0;
constexpr int w_offset = z_offset + stages * tile_bytes;
constexpr int t1_offset = w_offset + stages * tile_bytes;
constexpr int t2_offset = t1_offset + (has_t1 ? ring_bytes : 0);
constexpr int shift_offset = t2_offset + (has_t2 ? ring_bytes : 0);
constexpr int shift_bytes = warp_rows * shift_pitch * 4;  // of a warp
constexpr int tiles_end = shift_offset + (has_t1 || has_t2 ? warps * shift_bytes : 0);

static_assert(warps % column_warps == 0 && block_m % (16 * (warps / column_warps)) == 0,
              "each warp owns whole tiles of 16 rows");
static_assert(block_n % 32 == 0 && block_n <= 128, "key masks are 32-bit words; shared offsets are immediates");
static_assert((block_n * row_chunks) % threads == 0, "every thread copies the same number of chunks of a tile");
static_assert(stages >= 1 && stages <= 4, "depth of the ring of tiles");

// Row at accumulator column `position` of a group of 8: column 2c + b holds row c + 4b, which spreads a warp's accesses
// to the shift buffer over the banks.
__device__ __forceinline__ int key_of(int position) {
    return (position & ~7) | ((position & 7) >> 1) | ((position & 1) << 2);
}

// The swizzle repeats every 128 bytes of a row: so only four addresses differ by more than an immediate.
__device__ __forceinline__ u32 turned(u32 turn, int step) {
    return (turn ^ ((step & 3) << 5)) + (step >> 2) * 128;
}

struct Lane {
    int g, c;  // row and column pair of an accumulator
    // Offsets of this lane's row and chunk in a 16 x 16 block, for ldmatrix.
    u32 b_row, b_turn;  // rows = n (z, T1): matrices (rows 0-7, k 0-7), (0-7, 8-15), (8-15, 0-7), (8-15, 8-15)
    u32 a_row, a_turn;  // rows = m (x, T2) or k (w): (rows 0-7, 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15)

    __device__ __forceinline__ explicit Lane(int lane) {
        g = lane >> 2, c = lane & 3;
        const int b = (lane >> 4) * 8 + (lane & 7), a = ((lane >> 3) & 1) * 8 + (lane & 7);
        b_row = b * row_bytes, b_turn = swizzled(b, (lane >> 3) & 1) - b_row;
        a_row = a * row_bytes, a_turn = swizzled(a, lane >> 4) - a_row;
    }
    // `base`: address of a block of 16 rows; `step`: which 32 bytes.
    __device__ __forceinline__ u32 b_address(u32 base, int step) const { return base + b_row + turned(b_turn, step); }
    __device__ __forceinline__ u32 a_address(u32 base, int step) const { return base + a_row + turned(a_turn, step); }
};

// ldmatrix, rounded for multiply.
__device__ __forceinline__ void load_operand(u32 (&r)[4], u32 address) {
    load_matrices(r, address);
    if constexpr (dtype == dtype_f32)
#pragma unroll
        for (int i = 0; i < 4; ++i) r[i] = round_tf32(r[i]);
}

// Issues the copies of one tile. Rows of z and w at or beyond `length` become zeros.
template <class Params>
struct TileLoader {
    const Params& p;
    const Element *z, *w, *t1, *t2;  // this head's row 0
    s64 z_row, w_row, t1_row, t2_row;
    u32 shared;
    int row, chunk;         // this thread's first row of a tile, and its chunk of every row
    int length, distance0;  // own - other of ring row 0

    static constexpr int row_step = threads / row_chunks;
    static constexpr int copies = block_n / row_step;
    static constexpr bool regular = row_step % 8 == 0;  // this thread's rows of a tile are equal mod 8

    // Of this thread's chunk i, counted from `to`, that of its first row in a tile.
    __device__ __forceinline__ u32 chunk_at(u32 tile, u32 to, int i) const {
        return regular ? to + i * row_step * row_bytes : tile + swizzled(row + i * row_step, chunk);
    }

    static __device__ __forceinline__ int ordered(bool natural, int position) {
        return natural ? position : key_of(position);
    }

    // A tile of z or w; `natural`: rows in their own order.
    template <bool natural = false>
    __device__ __forceinline__ void rows(const Element* tensor, s64 row_stride, u32 offset, int tile) const {
        const int key0 = tile * block_n + ordered(natural, row);
        const u32 to = shared + offset + swizzled(row, chunk);
        const Element* from = tensor + key0 * row_stride + chunk * chunk_elements;
#pragma unroll
        for (int i = 0; i < copies; ++i) {
            const int key = regular ? key0 + i * row_step : tile * block_n + ordered(natural, row + i * row_step);
            if constexpr (!regular) from = tensor + key * row_stride + chunk * chunk_elements;
            const bool valid = key < length;
            copy_chunk(chunk_at(shared + offset, to, i), valid ? from : tensor, valid);
            from += row_step * row_stride;
            asm volatile("" : "+l"(from));  // opaque, or the multiples of the stride are kept in registers
        }
    }

    // Distances own - other from distance0 - n * block_n down.
    __device__ __forceinline__ void strip(int n) const {
        const u32 piece = shared + (n % ring_chunks) * tile_bytes, to = piece + swizzled(row, chunk);
        int slot[copies];
#pragma unroll
        for (int i = 0; i < copies; ++i) slot[i] = slot_of(p, sign * (distance0 - n * block_n - row - i * row_step));
#pragma unroll
        for (int i = 0; i < copies; ++i) {
            const u32 at = chunk_at(piece, to, i);
            if constexpr (has_t1) copy_chunk(at + t1_offset, t1 + slot[i] * t1_row + chunk * chunk_elements, true);
            if constexpr (has_t2) copy_chunk(at + t2_offset, t2 + slot[i] * t2_row + chunk * chunk_elements, true);
        }
    }

    __device__ __forceinline__ void partners(int t, int stage) const {
        rows(w, w_row, w_offset + stage * tile_bytes, t);
    }

    // z and, for near tiles, the part of the strip that the tile before did not need.
    __device__ __forceinline__ void others(int t, int stage, int near_begin, int near_end) const {
        rows(z, z_row, z_offset + stage * tile_bytes, t);
        if constexpr (has_t1 || has_t2) {
            if (t >= near_begin && t < near_end) {
                const int n = t - near_begin;
                if (n == 0)
                    for (int piece = 0; piece < strip_chunks - 1; ++piece) strip(piece);
                strip(n + strip_chunks - 1);
            }
        }
    }
};

// Address of the 16 ring rows that start `block` blocks after the tile's first.
__device__ __forceinline__ u32 ring_block(u32 ring, int first_row, int block) {
    int row = first_row + block * 16;
    // Opaque, or every block's address is kept in registers from one key block to the next.
    asm volatile("" : "+r"(row));
    row -= row >= ring_rows ? ring_rows : 0;
    return ring + row * row_bytes;
}
