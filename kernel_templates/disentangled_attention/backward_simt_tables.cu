// The last kernel of the backward pass on the ordinary arithmetic units: a block adds up one row of a position table's
// gradient, its distances' sums (backward_simt_positions.cu) and for the end slots every block's share
// (backward_simt.cu), in an order that depends on sizes alone.
#include "config"
#include "disentangled_attention/params.h"
#include "common/types.cuh"
#include "common/math.cuh"

namespace {

using namespace config;

constexpr int groups = threads / head_dim;  // that share the terms of a row

static_assert(threads % head_dim == 0, "threads are whole groups of one thread per column");
static_assert(!lse && !mask && !packed && !dropout, "not of this kernel's concern");

// First index in [0, count) whose slot is at least `slot`; slots never fall.
__device__ __forceinline__ int first_at_least(const int* slots, int count, int slot) {
    int low = 0, high = count;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (slots[middle] < slot)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

}  // namespace

// Grid: [tables][heads][2 * span].
extern "C" __global__ __launch_bounds__(threads) void disentangled_attention_backward_simt_tables(
    const __grid_constant__ BackwardParams p) {
    __shared__ float sums[groups][head_dim];
    const int d = int(threadIdx.x) % head_dim, group = int(threadIdx.x) / head_dim;
    const int slot = int(blockIdx.x) % (2 * p.span), head = int(blockIdx.x) / (2 * p.span) % p.heads;
    const int table = int(blockIdx.x) / (2 * p.span) / p.heads;  // among those that are there
    const bool is_key = c2p && table == 0;
    const int splits = int(p.regions[4]), diagonals = int(p.regions[5]), reach = diagonals / 2;
    const int count = 2 * p.band + 1, most_tiles = (p.length + block - 1) / block;
    const char* workspace = static_cast<const char*>(p.workspace);
    float sum = 0.0f;

    // The distances of the slot within the near tiles; those of an end slot go on to the last tile.
    const bool low_end = slot == p.slots[0], high_end = slot == p.slots[2 * p.band];
    const int most = reach * block + block - 1;
    int first = first_at_least(p.slots, count, slot) - p.band,
        last = first_at_least(p.slots, count, slot + 1) - p.band - 1;
    first = low_end ? -most : max(first, -most);
    last = high_end ? most : min(last, most);
    const float* near = reinterpret_cast<const float*>(workspace + p.regions[3]) + d;
    const int terms = last < first ? 0 : (last - first + 1) * 2 * splits;
#pragma unroll 4
    for (int n = group; n < terms; n += groups) {
        const int split = n % splits, delta = first + n / splits / 2;
        // The distance is in two neighbouring diagonals.
        const int floor = delta >= 0 ? delta / block : -((block - 1 - delta) / block);
        const int diagonal = floor + n / splits % 2, row = delta - diagonal * block + block - 1;
        if (row < 0 || diagonal < -reach || diagonal > reach) continue;
        const int number = diagonal > 0 ? 2 * diagonal - 1 : -2 * diagonal;
        sum +=
            near[((((s64(split) * p.heads + head) * diagonals + number) * (int(c2p) + int(p2c)) + table) * 2 * block +
                  row) *
                 head_dim];
    }

    if (low_end || high_end) {
        const float* far = reinterpret_cast<const float*>(workspace + p.regions[is_key ? 1 : 2]) + d;
        const int shares = p.batch * most_tiles;
        for (int end = high_end ? 0 : 1; end < (low_end ? 2 : 1); ++end)
#pragma unroll 4
            for (int n = group; n < shares; n += groups) {
                const s64 batch_head = s64(n / most_tiles) * p.heads + head;
                sum += far[((batch_head * most_tiles + n % most_tiles) * 2 + end) * head_dim];
            }
    }

    sums[group][d] = sum;
    __syncthreads();
    if (group != 0) return;
#pragma unroll
    for (int n = 1; n < groups; ++n) sum += sums[n][d];
    if (is_key)
        store_element<dtype>(p.d_position_key, slot * p.d_position_key_row + head * p.d_position_key_head + d,
                             sum * p.scale);
    else
        store_element<dtype>(p.d_position_query, slot * p.d_position_query_row + head * p.d_position_query_head + d,
                             sum * p.scale);
}
