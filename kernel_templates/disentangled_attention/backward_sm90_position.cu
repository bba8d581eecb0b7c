// Disentangled attention, backward, for Hopper (sm_90a): sums of dS_ij q_i and dS_ij k_j by distance i - j over the
// near tiles (backward_distances.cuh, with squares of one tile).
//
// A block owns one part of one head, and dim_part of the head_dim columns; each table has a warpgroup, and two more
// warps bring tiles. For every tile a warpgroup writes dS by distance into shared memory, 128 distances wide, and
// multiplies Q^T (for PK, distances in the order of j - i) or K^T (for PQ, in the order of i - j) by it.
//
// Dynamic shared memory:
//   strips   [tables][strip_bytes]                  sm90_strips.cuh
//   Q, K     [stages][2][64][dim_part]              swizzled for wgmma
//   dS       [stages][8 groups of 8 keys][near_pitch bytes]
//   full     [stages] barriers: the tile is there
//   empty    [stages] barriers: the warpgroups are done with it
//   numbers  [stages] i32: index of the tile's diagonal, or past_end
#include "config"
#include "disentangled_attention/params.h"
#include "common/types.cuh"
#include "common/math.cuh"
#include "common/async_copy.cuh"
#include "common/shared_memory.cuh"
#include "common/mma.cuh"
#include "common/bulk_copy.cuh"
#include "common/mbarrier.cuh"
#include "common/register_budget.cuh"
#include "common/wgmma.cuh"

namespace {

using namespace config;

#include "disentangled_attention/backward_layout.cuh"
#include "disentangled_attention/backward_sequence.cuh"
#include "disentangled_attention/backward_distances.cuh"
#include "disentangled_attention/backward_squares.cuh"
#include "disentangled_attention/sm90_tiles.cuh"
#include "disentangled_attention/sm90_shift.cuh"
#include "disentangled_attention/sm90_strips.cuh"

constexpr int tables = int(c2p) + int(p2c);
constexpr int producer_threads = 64;  // that work, of the last warpgroup
constexpr int threads = 128 * tables + 128;
// Of a thread; together those of the launch: 80 for three warpgroups, 128 for two.
constexpr int producer_registers = tables == 2 ? 32 : 40, sum_registers = tables == 2 ? 104 : 216;
constexpr int column_parts = head_dim / dim_part;
constexpr int tile_bytes = tile_rows * 2 * dim_part;

constexpr int operands_offset = tables * strip_bytes;
constexpr int ds_offset = operands_offset + stages * 2 * tile_bytes;
constexpr int full_offset = ds_offset + stages * 8 * near_pitch;
constexpr int empty_offset = full_offset + 8 * stages;
constexpr int numbers_offset = empty_offset + 8 * stages;
constexpr int past_end = 0x7fffffff;

static_assert(numbers_offset + 4 * stages == shared_bytes, "the launch's dynamic shared memory");
static_assert(tiles == 1, "a square is one tile");
static_assert(dim_part == (head_dim < 64 ? head_dim : 64), "columns of a block: one panel");
static_assert(aligned, "rows must be 16-byte aligned");

// The warps that bring the tiles of a part.
struct Producer {
    const BackwardParams& p;
    u32 shared;
    int head, slots, thread;
    u32 inverse;       // 2^32 / slots, rounded up
    const u16 *q, *k;  // at this head and this thread's 16 bytes
    RingPosition<stages> place;

    __device__ __forceinline__ Producer(const BackwardParams& params, u32 address, int head_number, int column0)
        : p(params), shared(address), head(head_number), slots(near_slots(p)), thread(int(threadIdx.x) % 128) {
        inverse = 0xffffffffu / unsigned(slots) + 1;
        const int column = column0 + thread % panel_chunks * 8;
        q = static_cast<const u16*>(p.q) + head * p.q_head + column;
        k = static_cast<const u16*>(p.k) + head * p.k_head + column;
    }

    // Rows at or beyond `count` become zeros.
    __device__ __forceinline__ void rows(const u16* from, s64 stride, int count, u32 to) const {
        constexpr int row_step = producer_threads / panel_chunks;
        const int first = thread / panel_chunks, chunk = thread % panel_chunks;
        if (count >= tile_rows) {
            from += first * stride;
#pragma unroll
            for (int row = 0; row < tile_rows; row += row_step, from += row_step * stride)
                copy_async16(chunk_address<tile_rows>(to, first + row, chunk), from, true);
        } else {
#pragma unroll 1
            for (int row = first; row < tile_rows; row += row_step)
                copy_async16(chunk_address<tile_rows>(to, row, chunk), from + (row < count ? row * stride : 0),
                             row < count);
        }
    }

    __device__ __forceinline__ void tile(const Square& s) const {
        const HeadRows sequence(p, s.batch, head);
        // Exact while query * slots < 2^32; a single slot has no quotient that fits.
        const int slot = slots == 1 ? 0 : s.query - int(__umulhi(unsigned(s.query), inverse)) * slots;
        const u16* ds =
            region<const u16>(p, region_near) + ((sequence.tiles + s.key) * slots + slot) * (tile_rows * tile_rows);
        const u32 to = shared + ds_offset + place.slot * 8 * near_pitch, full = shared + full_offset + 8 * place.slot;
        if (thread == 0) {
            barrier_expect_bytes(full, tile_bytes_16);
            for (int i = 0; i < 8; ++i) copy_bulk(to + i * near_pitch, ds + i * 512, 1024, full);
        }
        __syncwarp();
        const s64 first = packed ? sequence.first : 0;
        const u32 operands = shared + operands_offset + place.slot * 2 * tile_bytes;
        if constexpr (c2p)
            rows(q + (packed ? 0 : s.batch * p.q_batch) + (first + s.query * tile_rows) * p.q_row, p.q_row,
                 sequence.length - s.query * tile_rows, operands);
        if constexpr (p2c)
            rows(k + (packed ? 0 : s.batch * p.k_batch) + (first + s.key * tile_rows) * p.k_row, p.k_row,
                 sequence.length - s.key * tile_rows, operands + tile_bytes);
    }

    // The copies of the tile before have landed: hands it over.
    template <int pending>
    __device__ __forceinline__ void hand_over() const {
        copy_async_wait<pending>();
        async_proxy_fence();
        barrier_arrive(shared + full_offset + 8 * place.behind().slot);
    }

    __device__ __forceinline__ void begin(int diagonal) const {
        barrier_wait(shared + empty_offset + 8 * place.slot, place.parity ^ 1);
        if (thread == 0) store_word(shared + numbers_offset + 4 * place.slot, u32(diagonal));
        __syncwarp();
    }

    __device__ __forceinline__ void run(Cursor cursor) {
        bool behind = false;
        while (cursor.find()) {
            begin(cursor.d);
            tile(cursor.square);
            copy_async_commit();
            if (behind) hand_over<1>();
            behind = true;
            cursor.next();
            place.advance();
        }
        if (behind) hand_over<0>();
        begin(past_end);
        barrier_arrive(shared + full_offset + 8 * place.slot);
    }
};

// A table's warpgroup.
struct Sums {
    u32 shared;
    int table;
    Lane lane;
    Strips strips;
    RingPosition<stages> place;
    // [2 panels][dim_part, 64 distances]; with 32 columns the second half of the products' 64 rows is of no use.
    float sum[2][32];

    __device__ __forceinline__ Sums(u32 address, int thread, int group)
        : shared(address),
          table(tables == 2 ? group : c2p ? table_key : table_query),
          lane(thread),
          strips(address + group * strip_bytes, thread, table == table_key) {
        lane.warp = int(__reduce_max_sync(0xffffffffu, u32(lane.warp)));
        strips.clear(thread % 128);
#pragma unroll
        for (int i = 0; i < 32; ++i) sum[0][i] = sum[1][i] = 0.0f;
    }

    __device__ __forceinline__ int await_tile() const {
        barrier_wait(shared + full_offset + 8 * place.slot, place.parity);
        return int(load_word(shared + numbers_offset + 4 * place.slot));
    }

    // The diagonals [d, last], the first one's piece at `piece`.
    __device__ __forceinline__ void run(float* piece, int d, int last, int group) {
        for (bool started = false;; started = true) {
            const int next = await_tile();
            for (; d < next; ++d, piece += 2 * 2 * span * head_dim) {
                store(piece);
                if (d == last) return;
            }
            add_tile(group, started);
        }
    }

    // `started`: the tile before is still multiplied.
    __device__ __forceinline__ void add_tile(int group, bool started) {
        u32 words[8];
        const u32 tile = shared + ds_offset + place.slot * 8 * near_pitch;
        strips.load(words, tile, 0);
        wgmma_wait<0>();
        settle(sum[0]);
        settle(sum[1]);
        if (started) barrier_arrive(shared + empty_offset + 8 * place.behind().slot);
        named_barrier(1 + group, 128);
        strips.store(words, 0);
        strips.load(words, tile, 1);
        strips.store(words, 1);
        async_proxy_fence();
        named_barrier(1 + group, 128);
        const u32 rows =
            (shared + operands_offset + (2 * place.slot + (table == table_key ? 0 : 1)) * tile_bytes) >> 4;
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step)
#pragma unroll
            for (int panel = 0; panel < 2; ++panel)
                wgmma_shared<dtype, operand_high, strip_high, true, true, true>(
                    sum[panel], value_operand<tile_rows>(rows, step), strips.operand(panel, step));
        wgmma_commit();
        place.advance();
    }

    // `piece`: of the diagonal whose tiles are over, at the block's first column.
    __device__ __forceinline__ void store(float* piece) {
        wgmma_wait<0>();
        settle(sum[0]);
        settle(sum[1]);
        const int column = 16 * lane.warp + lane.g, first_x = table == table_key ? 2 * span - 2 : 0;
        const int step = table == table_key ? -head_dim : head_dim;  // to the next distance
        float* to = piece + first_x * head_dim + 2 * lane.c * step + column;
#pragma unroll
        for (int n = 0; n < 16; ++n, to += 8 * step)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int t = 8 * n + 2 * lane.c + (i & 1);
                if (t < 2 * span - 1 && column + 8 * (i >> 1) < dim_part)
                    to[(i & 1) * step + 8 * (i >> 1)] = sum[n >> 3][4 * (n & 7) + i];
                sum[n >> 3][4 * (n & 7) + i] = 0.0f;
            }
    }
};

}  // namespace

// Grid: heads * parts * (head_dim / dim_part) blocks.
extern "C" __global__ __launch_bounds__(threads, 2) void disentangled_attention_backward_sm90_position(
    const __grid_constant__ BackwardParams p) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 shared = shared_address(memory);
    const int thread = int(threadIdx.x), column0 = int(blockIdx.x) % column_parts * dim_part;
    const int group = int(__reduce_max_sync(0xffffffffu, unsigned(thread / 128)));
    const DistanceParts list(p);
    const int part = int(blockIdx.x) / column_parts % list.parts, head = int(blockIdx.x) / column_parts / list.parts;
    if (thread == 0) {
        for (int i = 0; i < stages; ++i) {
            barrier_init(shared + full_offset + 8 * i, producer_threads);
            barrier_init(shared + empty_offset + 8 * i, 128 * tables);
        }
        barrier_init_fence();
    }
    __syncthreads();
    const Cursor first(p, list, part);
    if (thread >= 128 * tables) {
        registers_lower<producer_registers>();
        if (thread < 128 * tables + producer_threads) Producer(p, shared, head, column0).run(first);
    } else {
        registers_raise<sum_registers>();
        int last = first.d;
        while (list.first(last + 1) < list.part_end(part)) ++last;
        Sums sums(shared, thread, group);
        float* piece = list.piece(p, head, part, first.d, sums.table) + column0;
        sums.run(piece, first.d, last, group);
    }
}
