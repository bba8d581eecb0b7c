// Disentangled attention, forward, as plain as it can be: one block per query row, scores of the whole row recomputed
// in each of two passes (maximum, then sum and weighted values), fp32 throughout. Shares no code with the tiled
// kernels.
//
//   s_ij = scale_log2 * (q_i.k_j + [c2p] q_i.PK[slot(i-j)] + [p2c] k_j.PQ[slot(i-j)]),  O_i = sum_j 2^(s_ij - lse_i)
//   v_j
//
// Threads share the keys while scores are computed, and the head_dim columns while values are summed.
#include "config"
#include "disentangled_attention/params.h"
#include "common/types.cuh"
#include "common/math.cuh"
#include "common/philox.h"
#include "disentangled_attention/dropout.h"

namespace {

using namespace config;

constexpr int threads = 128;

static_assert(head_dim <= threads, "one thread per column of the output");

__device__ float score(const ForwardParams& p, const float* q_row, s64 k_row, s64 pk_head, s64 pq_head, int delta) {
    const int clamped = delta < -p.band ? -p.band : delta > p.band ? p.band : delta;
    const s64 slot = p.slots[clamped + p.band];
    float sum = 0.0f;
#pragma unroll 2
    for (int d0 = 0; d0 < head_dim; d0 += 8) {
        float k[8], pk[8], pq[8];
        load_elements<dtype>(k, p.k, k_row + d0);
        if (c2p) load_elements<dtype>(pk, p.position_key, pk_head + slot * p.position_key_row + d0);
        if (p2c) load_elements<dtype>(pq, p.position_query, pq_head + slot * p.position_query_row + d0);
        for (int d = 0; d < 8; ++d) {
            sum += q_row[d0 + d] * k[d];
            if (c2p) sum += q_row[d0 + d] * pk[d];
            if (p2c) sum += k[d] * pq[d];
        }
    }
    return sum * p.scale_log2;
}

// Sum or maximum over the block; the result is the same in every thread.
template <bool maximum>
__device__ float reduce(float value, float* scratch) {
    scratch[threadIdx.x] = value;
    __syncthreads();
    for (int step = threads / 2; step > 0; step /= 2) {
        if (int(threadIdx.x) < step) {
            const float a = scratch[threadIdx.x], b = scratch[threadIdx.x + step];
            scratch[threadIdx.x] = maximum ? fmaxf(a, b) : a + b;
        }
        __syncthreads();
    }
    const float result = scratch[0];
    __syncthreads();
    return result;
}

}  // namespace

// Grid: batch * heads * length blocks (packed: length of the longest sequence).
extern "C" __global__ __launch_bounds__(threads) void disentangled_attention_forward_reference(
    const __grid_constant__ ForwardParams p) {
    __shared__ float q_row[head_dim], scratch[threads], weight[threads];
    const int i = int(blockIdx.x % unsigned(p.length));
    const int batch_head = int(blockIdx.x / unsigned(p.length)), head = batch_head % p.heads,
              batch = batch_head / p.heads;
    const s64 first = packed ? p.cu_seqlens[batch] : 0;
    const int length = packed ? p.cu_seqlens[batch + 1] - int(first) : p.length;
    if (i >= length) return;
    const int tid = int(threadIdx.x);

    const s64 q = (packed ? 0 : batch * p.q_batch) + (first + i) * p.q_row + head * p.q_head;
    const s64 k = (packed ? 0 : batch * p.k_batch) + first * p.k_row + head * p.k_head;
    const s64 v = (packed ? 0 : batch * p.v_batch) + first * p.v_row + head * p.v_head;
    const s64 out = (packed ? 0 : batch * p.out_batch) + (first + i) * p.out_row + head * p.out_head;
    const s64 pk = head * p.position_key_head, pq = head * p.position_query_head;
    const u8* keep = mask ? p.mask + batch * p.mask_batch : nullptr;
    const bool hidden = mask && !keep[i];  // attends every key equally

    if (tid < head_dim) q_row[tid] = load_element<dtype>(p.q, q + tid);
    __syncthreads();

    float top = -__int_as_float(0x7f800000);
    for (int j = tid; j < length; j += threads)
        if (hidden || !mask || keep[j])
            top = fmaxf(top, hidden ? 0.0f : score(p, q_row, k + j * p.k_row, pk, pq, i - j));
    top = reduce<true>(top, scratch);

    float total = 0.0f, column = 0.0f;
    for (int j0 = 0; j0 < length; j0 += threads) {
        const int j = j0 + tid;
        float w = 0.0f;
        if (j < length && (hidden || !mask || keep[j]))
            w = exp2f((hidden ? 0.0f : score(p, q_row, k + j * p.k_row, pk, pq, i - j)) - top);
        total += w;
        if (dropout && j < length) w = is_dropped(p.dropout, unsigned(batch_head), i, j) ? 0.0f : w * p.dropout.scale;
        weight[tid] = w;
        __syncthreads();
        if (tid < head_dim)
            for (int n = 0; n < threads && j0 + n < length; ++n)
                column += weight[n] * load_element<dtype>(p.v, v + (j0 + n) * p.v_row + tid);
        __syncthreads();
    }
    total = reduce<false>(total, scratch);
    if (tid < head_dim) store_element<dtype>(p.out, out + tid, column / total);
    if (lse && tid == 0)
        p.lse[packed ? head * p.tokens + first + i : s64(batch_head) * p.length + i] = top + log2f(total);
}
