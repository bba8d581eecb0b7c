// Disentangled attention, backward, as plain as it can be: tiles of 16 x 16 pairs, one pair to a thread, fp32 products,
// float64 sums over tiles. Shares no code with the tiled kernels. With params.h's P, dP, Delta and dS:
//
//   dQ_i = sum_j dS_ij (k_j + [c2p] PK[slot(i-j)]),   dK_j = sum_i dS_ij (q_i + [p2c] PQ[slot(i-j)])
//   dV_j = sum_i P_ij dO_i,   dPK[r] = sum_{slot(i-j) = r} dS_ij q_i,   dPQ[r] = sum_{slot(i-j) = r} dS_ij k_j
//
// Three kernels, one after the other:
//   rows      dQ; a block owns some tiles of query rows of one batch and head, and sums its position gradients in a
//             table of its own in the workspace, double [blocks][PK | PQ][2 * span][head_dim]
//   columns   dK and dV; a block owns one tile of keys
//   tables    sums the blocks' tables, one thread per element
#include "config"
#include "disentangled_attention/params.h"
#include "common/types.cuh"
#include "common/math.cuh"
#include "common/philox.h"
#include "disentangled_attention/dropout.h"

namespace {

using namespace config;

constexpr int side = 16, threads = side * side;
constexpr int pitch = head_dim + 1;
constexpr int columns = head_dim / side;  // of a gradient, of one thread

static_assert(2 * head_dim <= threads, "one thread per column of each table");
static_assert(!lse, "the backward pass reads lse, it writes none");

struct Shared {
    float q[side][pitch], dout[side][pitch], k[side][pitch], v[side][pitch];
    float ds[side][side + 1], weight[side][side + 1], partial[side][side + 1];
};

struct Head {
    int batch, head, number, length;
    s64 first;  // packed: row at which the sequence starts
    __device__ s64 offset(s64 batch_stride, s64 row, s64 head_stride) const {
        return (packed ? first * row : batch * batch_stride) + head * head_stride;
    }
};

__device__ Head head_of(const BackwardParams& p, int number) {
    Head h{number / p.heads, number % p.heads, number, p.length, 0};
    if (packed) {
        h.first = p.cu_seqlens[h.batch];
        h.length = p.cu_seqlens[h.batch + 1] - int(h.first);
    }
    return h;
}

__device__ s64 slot_of_distance(const BackwardParams& p, int delta) {
    const int clamped = delta < -p.band ? -p.band : delta > p.band ? p.band : delta;
    return p.slots[clamped + p.band];
}

__device__ void load_tile(float (&to)[side][pitch], const void* tensor, s64 base, s64 row_stride, int first,
                          int length) {
    for (int n = int(threadIdx.x); n < side * head_dim; n += threads) {
        const int row = n / head_dim, d = n % head_dim;
        to[row][d] = first + row < length ? load_element<dtype>(tensor, base + (first + row) * row_stride + d) : 0.0f;
    }
}

__device__ void load_queries(Shared& s, const BackwardParams& p, const Head& h, int row0) {
    load_tile(s.q, p.q, h.offset(p.q_batch, p.q_row, p.q_head), p.q_row, row0, h.length);
    load_tile(s.dout, p.dout, h.offset(p.dout_batch, p.dout_row, p.dout_head), p.dout_row, row0, h.length);
    // Delta, in parts
    const int r = int(threadIdx.x) / side, c = int(threadIdx.x) % side;
    const s64 out = h.offset(p.out_batch, p.out_row, p.out_head),
              dout = h.offset(p.dout_batch, p.dout_row, p.dout_head);
    float sum = 0.0f;
    for (int d = c; d < head_dim && row0 + r < h.length; d += side)
        sum += load_element<dtype>(p.out, out + (row0 + r) * p.out_row + d) *
               load_element<dtype>(p.dout, dout + (row0 + r) * p.dout_row + d);
    s.partial[r][c] = sum;
}

__device__ void load_keys(Shared& s, const BackwardParams& p, const Head& h, int key0) {
    load_tile(s.k, p.k, h.offset(p.k_batch, p.k_row, p.k_head), p.k_row, key0, h.length);
    load_tile(s.v, p.v, h.offset(p.v_batch, p.v_row, p.v_head), p.v_row, key0, h.length);
}

// P, as dV takes it, and dS without its factor `scale`, of this thread's pair of the tile.
__device__ void compute_pair(Shared& s, const BackwardParams& p, const Head& h, int row0, int key0) {
    const int r = int(threadIdx.x) / side, c = int(threadIdx.x) % side, i = row0 + r, j = key0 + c;
    float weight = 0.0f, ds = 0.0f;
    if (i < h.length && j < h.length) {
        const u8* keep = mask ? p.mask + h.batch * p.mask_batch : nullptr;
        const bool hidden = mask && !keep[i], key_kept = !mask || keep[j];
        const bool drop = dropout && is_dropped(p.dropout, unsigned(h.number), i, j);
        const float factor = drop ? 0.0f : dropout ? p.dropout.scale : 1.0f;
        if (hidden) {
            weight = factor / float(h.length);
        } else if (key_kept) {
            const s64 slot = c2p || p2c ? slot_of_distance(p, i - j) : 0;
            const s64 pk = slot * p.position_key_row + h.head * p.position_key_head;
            const s64 pq = slot * p.position_query_row + h.head * p.position_query_head;
            float score = 0.0f, dp = 0.0f, delta = 0.0f;
            for (int d = 0; d < head_dim; ++d) {
                score += s.q[r][d] * s.k[c][d];
                dp += s.dout[r][d] * s.v[c][d];
            }
#pragma unroll 1
            for (int d0 = 0; d0 < head_dim; d0 += 8) {
                float table[8];
                if (c2p) load_elements<dtype>(table, p.position_key, pk + d0);
                for (int d = 0; c2p && d < 8; ++d) score += s.q[r][d0 + d] * table[d];
                if (p2c) load_elements<dtype>(table, p.position_query, pq + d0);
                for (int d = 0; p2c && d < 8; ++d) score += s.k[c][d0 + d] * table[d];
            }
            for (int n = 0; n < side; ++n) delta += s.partial[r][n];
            const s64 row = packed ? h.head * p.tokens + h.first + i : s64(h.number) * p.length + i;
            const float probability = exp2f(score * p.scale_log2 - p.lse[row]);
            weight = probability * factor;
            ds = probability * (dp * factor - delta);
        }
    }
    s.weight[r][c] = weight;
    s.ds[r][c] = ds;
}

// Adds a tile's sums to this block's tables. Distances of a tile rise by one, and so the slots never fall.
__device__ void add_positions(const Shared& s, const BackwardParams& p, double* table, int distance0) {
    const int which = int(threadIdx.x) / head_dim, d = int(threadIdx.x) % head_dim;
    if (which > 1 || !(which == 0 ? c2p : p2c)) return;
    double* column = table + s64(which) * 2 * p.span * head_dim + d;
    s64 slot = slot_of_distance(p, distance0 - side + 1);
    double sum = 0.0;
    for (int u = -side + 1; u < side; ++u) {
        const s64 next = slot_of_distance(p, distance0 + u);
        if (next != slot) {
            column[slot * head_dim] += sum;
            slot = next, sum = 0.0;
        }
        float part = 0.0f;
        for (int r = u > 0 ? u : 0; r < side && r - u < side; ++r)
            part += s.ds[r][r - u] * (which == 0 ? s.q[r][d] : s.k[r - u][d]);
        sum += part;
    }
    column[slot * head_dim] += sum;
}

}  // namespace

// Grid: batch * heads * any number of parts, each of neighbouring tiles.
extern "C" __global__ __launch_bounds__(threads) void disentangled_attention_backward_reference_rows(
    const __grid_constant__ BackwardParams p) {
    __shared__ Shared s;
    const int parts = int(gridDim.x) / (p.batch * p.heads), part = int(blockIdx.x) % parts;
    const Head h = head_of(p, int(blockIdx.x) / parts);
    const int tiles = (p.length + side - 1) / side, share = (tiles + parts - 1) / parts;
    const int r = int(threadIdx.x) / side, c = int(threadIdx.x) % side;

    const s64 table_size = 2 * s64(2) * p.span * head_dim;
    double* table =
        reinterpret_cast<double*>(static_cast<char*>(p.workspace) + p.regions[0]) + s64(blockIdx.x) * table_size;
    if (c2p || p2c)
        for (s64 n = threadIdx.x; n < table_size; n += threads) table[n] = 0.0;

    const s64 pk = h.head * p.position_key_head, dq = h.offset(p.dq_batch, p.dq_row, p.dq_head);
    for (int row0 = part * share * side; row0 < (part + 1) * share * side && row0 < h.length; row0 += side) {
        double sum[columns] = {};
        __syncthreads();
        load_queries(s, p, h, row0);
        for (int key0 = 0; key0 < h.length; key0 += side) {
            load_keys(s, p, h, key0);
            __syncthreads();
            compute_pair(s, p, h, row0, key0);
            __syncthreads();
            float now[columns] = {};
            for (int n = 0; n < side && key0 + n < h.length; ++n) {
                const s64 row = c2p ? slot_of_distance(p, row0 + r - key0 - n) * p.position_key_row : 0;
                for (int m = 0; m < columns; ++m) {
                    const int d = c + side * m;
                    now[m] += s.ds[r][n] * s.k[n][d];
                    if (c2p) now[m] += s.ds[r][n] * load_element<dtype>(p.position_key, pk + row + d);
                }
            }
            for (int m = 0; m < columns; ++m) sum[m] += now[m];
            if (c2p || p2c) add_positions(s, p, table, row0 - key0);
            __syncthreads();
        }
        for (int m = 0; m < columns && row0 + r < h.length; ++m)
            store_element<dtype>(p.dq, dq + (row0 + r) * p.dq_row + c + side * m, float(sum[m] * p.scale));
    }
}

// Grid: batch * heads * tiles of the longest sequence.
extern "C" __global__ __launch_bounds__(threads) void disentangled_attention_backward_reference_columns(
    const __grid_constant__ BackwardParams p) {
    __shared__ Shared s;
    const int tiles = (p.length + side - 1) / side;
    const Head h = head_of(p, int(blockIdx.x) / tiles);
    const int key0 = int(blockIdx.x) % tiles * side;
    if (key0 >= h.length) return;
    const int n = int(threadIdx.x) / side, c = int(threadIdx.x) % side;
    const s64 pq = h.head * p.position_query_head;

    double dk[columns] = {}, dv[columns] = {};
    load_keys(s, p, h, key0);
    for (int row0 = 0; row0 < h.length; row0 += side) {
        load_queries(s, p, h, row0);
        __syncthreads();
        compute_pair(s, p, h, row0, key0);
        __syncthreads();
        float dk_now[columns] = {}, dv_now[columns] = {};
        for (int r = 0; r < side && row0 + r < h.length; ++r) {
            const s64 row = p2c ? slot_of_distance(p, row0 + r - key0 - n) * p.position_query_row : 0;
            for (int m = 0; m < columns; ++m) {
                const int d = c + side * m;
                dk_now[m] += s.ds[r][n] * s.q[r][d];
                if (p2c) dk_now[m] += s.ds[r][n] * load_element<dtype>(p.position_query, pq + row + d);
                dv_now[m] += s.weight[r][n] * s.dout[r][d];
            }
        }
        for (int m = 0; m < columns; ++m) dk[m] += dk_now[m], dv[m] += dv_now[m];
        __syncthreads();
    }
    if (key0 + n >= h.length) return;
    const s64 dk_at = h.offset(p.dk_batch, p.dk_row, p.dk_head) + (key0 + n) * p.dk_row;
    const s64 dv_at = h.offset(p.dv_batch, p.dv_row, p.dv_head) + (key0 + n) * p.dv_row;
    for (int m = 0; m < columns; ++m) {
        store_element<dtype>(p.dk, dk_at + c + side * m, float(dk[m] * p.scale));
        store_element<dtype>(p.dv, dv_at + c + side * m, float(dv[m]));
    }
}

// Grid: every element of both tables, [PK | PQ][heads][2 * span][head_dim], `threads` to a block. regions[1]: blocks of
// the first kernel per batch and head.
extern "C" __global__ __launch_bounds__(threads) void disentangled_attention_backward_reference_tables(
    const __grid_constant__ BackwardParams p) {
    const s64 n = s64(blockIdx.x) * threads + threadIdx.x, size = s64(2) * p.span * head_dim;
    const int d = int(n % head_dim), head = int(n / size % p.heads), which = int(n / size / p.heads);
    const s64 slot = n / head_dim % (2 * p.span), parts = p.regions[1];
    if (which > 1 || !(which == 0 ? c2p : p2c)) return;
    const double* tables = reinterpret_cast<const double*>(static_cast<const char*>(p.workspace) + p.regions[0]);
    double sum = 0.0;
    for (int b = 0; b < p.batch; ++b)
        for (s64 part = 0; part < parts; ++part)
            sum += tables[(((b * s64(p.heads) + head) * parts + part) * 2 + which) * size + slot * head_dim + d];
    if (which == 0)
        store_element<dtype>(p.d_position_key, slot * p.d_position_key_row + head * p.d_position_key_head + d,
                             float(sum * p.scale));
    else
        store_element<dtype>(p.d_position_query, slot * p.d_position_query_row + head * p.d_position_query_head + d,
                             float(sum * p.scale));
}
