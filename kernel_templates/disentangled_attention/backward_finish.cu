// Disentangled attention, backward: the gradients of both position tables from the distance sums and the end vectors
// (backward_layout.cuh), every slot of them, in a fixed order.
//
// A warp sums one slot: the distances of a slot are neighbours, because slots never decrease with distance. The two end
// slots, with thousands of terms, take a block each, whose warps share the terms and are then added in order.
#include "config"
#include "disentangled_attention/params.h"
#include "common/types.cuh"
#include "common/math.cuh"

namespace {

using namespace config;

#include "disentangled_attention/backward_layout.cuh"
#include "disentangled_attention/backward_sequence.cuh"
#include "disentangled_attention/backward_distances.cuh"

constexpr int warps = 8;
constexpr int threads = 32 * warps;
constexpr int columns = head_dim / 32;  // of a lane
constexpr int tables = int(c2p) + int(p2c);

struct alignas(4 * columns) Columns {
    float value[columns];
};

__device__ __forceinline__ void add(Columns& sum, const float* from) {
    const Columns c = *reinterpret_cast<const Columns*>(from);
#pragma unroll
    for (int i = 0; i < columns; ++i) sum.value[i] += c.value[i];
}

// The first index of p.slots whose slot is at least `slot`; by a whole warp.
__device__ __forceinline__ int first_index(const BackwardParams& p, int slot) {
    const int lane = int(threadIdx.x) % 32, count = 2 * p.band + 1, step = (count + 31) / 32;
    const int below = __popc(__ballot_sync(0xffffffffu, lane * step < count && p.slots[lane * step] < slot));
    if (below == 0) return 0;
    const int start = (below - 1) * step + 1, end = min(start + step - 1, count);
    int index = start;
    for (int i = start; i < end; i += 32)
        index += __popc(__ballot_sync(0xffffffffu, i + lane < end && p.slots[i + lane] < slot));
    return index;
}

// The distances [begin, end) of a slot among those that near tiles have.
struct Distances {
    int begin, end;

    __device__ __forceinline__ Distances(const BackwardParams& p, int slot) {
        const int farthest = near_width(p) * tile_rows + tile_rows - 1;
        begin = first_index(p, slot) - p.band, end = first_index(p, slot + 1) - p.band;
        if (slot == p.slots[0]) begin = -farthest;
        if (slot == p.slots[2 * p.band]) end = farthest + 1;
        begin = max(begin, -farthest), end = min(end, farthest + 1);
    }
};

// sum += the sums of distance delta of diagonal d, over all pieces.
__device__ __forceinline__ void add_pieces(Columns& sum, const BackwardParams& p, const DistanceParts& list, int table,
                                           int head, int column, int d, int x) {
    const int first = list.part_of(list.first(d)), last = list.part_of(list.first(d + 1) - 1);
#pragma unroll 4
    for (int part = first; part <= last; ++part) add(sum, list.piece(p, head, part, d, table) + x * head_dim + column);
}

// sum += the sums of distance delta, which lies on one or two diagonals.
__device__ __forceinline__ void add_distance(Columns& sum, const BackwardParams& p, const DistanceParts& list,
                                             int table, int head, int column, int delta) {
    const int shifted = delta + span - 1 + span * list.diagonals;  // not negative
    const int d = shifted / span - list.diagonals + list.width, x = shifted % span;
    if (x < span - 1 && d >= 1) add_pieces(sum, p, list, table, head, column, d - 1, x + span);
    if (d < list.diagonals) add_pieces(sum, p, list, table, head, column, d, x);
}

__device__ __forceinline__ void store_slot(const Columns& sum, const BackwardParams& p, int table, int head, int column,
                                           int slot) {
    u16* to =
        table == table_key
            ? static_cast<u16*>(p.d_position_key) + slot * p.d_position_key_row + head * p.d_position_key_head
            : static_cast<u16*>(p.d_position_query) + slot * p.d_position_query_row + head * p.d_position_query_head;
#pragma unroll
    for (int i = 0; i < columns; ++i) {
        float value = sum.value[i] * p.scale;
        if constexpr (dtype == dtype_f16) value = fminf(fmaxf(value, -65504.0f), 65504.0f);
        store_element<dtype>(to, column + i, value);
    }
}

}  // namespace

// Grid: tables * heads * (2 + ceil(2 * span / 8)) blocks, tables = c2p + p2c.
extern "C" __global__ __launch_bounds__(threads) void disentangled_attention_backward_finish(
    const __grid_constant__ BackwardParams p) {
    __shared__ Columns parts[warps][32];
    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, column = lane * columns;
    const int per_head = 2 + (2 * p.span + warps - 1) / warps;
    const int block = int(blockIdx.x) % per_head, head = int(blockIdx.x) / per_head % p.heads;
    const int table = tables == 2 ? int(blockIdx.x) / per_head / p.heads : c2p ? table_key : table_query;
    const int low = p.slots[0], high = p.slots[2 * p.band];
    const DistanceParts list(p);
    Columns sum = {};
    if (block >= 2) {
        const int slot = (block - 2) * warps + warp;
        if (slot >= 2 * p.span || slot == low || slot == high) return;
        const Distances d(p, slot);
        for (int delta = d.begin; delta < d.end; ++delta) add_distance(sum, p, list, table, head, column, delta);
        store_slot(sum, p, table, head, column, slot);
        return;
    }
    const int end = block, slot = end == end_high ? high : low;
    const Distances d(p, slot);
    for (int delta = d.begin + warp; delta < d.end; delta += warps)
        add_distance(sum, p, list, table, head, column, delta);
    if (has_far_tiles(p)) {
        // Eight loads at a time: what takes time is their latency.
        constexpr int at_once = 8;
        const int per_sequence = tiles_of(p.length), count = p.batch * per_sequence;
        for (int n0 = warp; n0 < count; n0 += at_once * warps) {
            const float* from[at_once];
#pragma unroll
            for (int i = 0; i < at_once; ++i) {
                const int n = min(n0 + i * warps, count - 1), batch = n / per_sequence, tile = n % per_sequence;
                const int length = packed ? p.cu_seqlens[batch + 1] - p.cu_seqlens[batch] : p.length;
                const bool exists = n0 + i * warps < count && tile < tiles_of(length);
                from[i] = exists ? end_vector(p, table, tile_base(p, batch, head) + tile, end) + column : nullptr;
            }
#pragma unroll
            for (int i = 0; i < at_once; ++i)
                if (from[i]) add(sum, from[i]);
        }
    }
    parts[warp][lane] = sum;
    __syncthreads();
    if (warp != 0) return;
    for (int i = 1; i < warps; ++i)
#pragma unroll
        for (int k = 0; k < columns; ++k) sum.value[k] += parts[i][lane].value[k];
    store_slot(sum, p, table, head, column, slot);
}
