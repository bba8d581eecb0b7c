// Disentangled attention, backward: row statistics (backward_layout.cuh) for the KV and Q kernels.
//
//   Delta_i = sum_d O_id dO_id; planes for far tiles: lse_i - scale_log2 * q_i.PK_e, the same as lse in hidden rows
//
// head_dim / 8 threads share a row.
#include "config"
#include "disentangled_attention/params.h"
#include "common/types.cuh"
#include "common/math.cuh"

namespace {

using namespace config;

#include "disentangled_attention/backward_layout.cuh"
#include "disentangled_attention/backward_sequence.cuh"

constexpr int threads = 256;
constexpr int row_threads = head_dim / 8;
constexpr int block_rows = threads / row_threads;

struct Eight {
    float value[8];
};

__device__ __forceinline__ Eight load_eight(const u16* from) {
    u32 word[4];
    if constexpr (aligned) {
        const Words4 w = *reinterpret_cast<const Words4*>(from);
        word[0] = w.x, word[1] = w.y, word[2] = w.z, word[3] = w.w;
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) word[i] = u32(from[2 * i]) | u32(from[2 * i + 1]) << 16;
    }
    Eight e;
#pragma unroll
    for (int i = 0; i < 4; ++i) e.value[2 * i] = low_of<dtype>(word[i]), e.value[2 * i + 1] = high_of<dtype>(word[i]);
    return e;
}

// Of the whole row, in each of its threads.
__device__ __forceinline__ float dot(const Eight& a, const Eight& b) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += a.value[i] * b.value[i];
#pragma unroll
    for (int lanes = 1; lanes < row_threads; lanes *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    return sum;
}

}  // namespace

// Grid: one block per block_rows rows of every (batch, head); block_rows = 256 / (head_dim / 8).
extern "C" __global__ __launch_bounds__(threads) void disentangled_attention_backward_prepare(
    const __grid_constant__ BackwardParams p) {
    const int blocks = (p.length + block_rows - 1) / block_rows;
    const int batch_head = int(blockIdx.x) / blocks, row0 = int(blockIdx.x) % blocks * block_rows;
    const HeadRows rows(p, batch_head / p.heads, batch_head % p.heads);
    if (row0 >= rows.length) return;
    const int thread = int(threadIdx.x) % row_threads, i = row0 + int(threadIdx.x) / row_threads;
    const int row = min(i, rows.length - 1);
    const u16* out = static_cast<const u16*>(p.out) + rows.offset(p.out_batch, p.out_row, p.out_head);
    const u16* dout = static_cast<const u16*>(p.dout) + rows.offset(p.dout_batch, p.dout_row, p.dout_head);
    RowStatistics statistics;
    statistics.delta =
        dot(load_eight(out + row * p.out_row + thread * 8), load_eight(dout + row * p.dout_row + thread * 8));
    const float lse = p.lse[rows.statistics + row];
    statistics.lse = lse;
    const bool stores = thread == 0 && i < rows.length;
    RowStatistics* to = region<RowStatistics>(p, region_statistics) + rows.statistics + row;
    if (stores) *to = statistics;
    if (c2p && has_far_tiles(p)) {
        const u16* q = static_cast<const u16*>(p.q) + rows.offset(p.q_batch, p.q_row, p.q_head);
        const u16* pk = static_cast<const u16*>(p.position_key) + rows.head * p.position_key_head;
        const Eight query = load_eight(q + row * p.q_row + thread * 8);
        const bool hidden = mask && !p.mask[rows.batch * p.mask_batch + row];
#pragma unroll
        for (int end = 0; end < 2; ++end) {
            const int slot = slot_at(p, end == end_high ? p.band : -p.band);
            const float bias = dot(query, load_eight(pk + slot * p.position_key_row + thread * 8));
            statistics.lse = hidden ? lse : lse - p.scale_log2 * bias;
            if (stores) to[(end + 1) * statistics_rows(p)] = statistics;
        }
    }
}
