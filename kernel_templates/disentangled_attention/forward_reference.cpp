// Disentangled attention, forward, as plain as it can be written: float64 loops, two passes over the keys of each
// query, nothing shared with the kernels that it judges but the parameters and which weights are dropped. Each block
// computes 16 query rows; grid.x = batch * heads * ceil(length / 16).

#include <cmath>

#include "common/host_block.h"
#include "common/host_dtype.h"
#include "common/philox.h"
#include "config"
#include "disentangled_attention/params.h"
// After what it needs.
#include "disentangled_attention/dropout.h"

namespace {

using Scalar = Element<config::dtype>::Type;

double element(const void* tensor, long long at) {
    return to_float<config::dtype>(static_cast<const Scalar*>(tensor)[at]);
}

double dot(const void* a, long long a_at, const void* b, long long b_at) {
    double sum = 0;
    for (int d = 0; d < config::head_dim; ++d) sum += element(a, a_at + d) * element(b, b_at + d);
    return sum;
}

struct Sequence {
    long long q, k, v, out, mask, lse;  // where its rows begin
    int length;
};

Sequence sequence_of(const ForwardParams& p, int b, int h) {
    Sequence s;
    s.mask = b * p.mask_batch;
    if (config::packed) {
        const long long first = p.cu_seqlens[b];
        s.q = first * p.q_row + h * p.q_head;
        s.k = first * p.k_row + h * p.k_head;
        s.v = first * p.v_row + h * p.v_head;
        s.out = first * p.out_row + h * p.out_head;
        s.lse = h * p.tokens + first;
        s.length = p.cu_seqlens[b + 1] - p.cu_seqlens[b];
    } else {
        s.q = b * p.q_batch + h * p.q_head;
        s.k = b * p.k_batch + h * p.k_head;
        s.v = b * p.v_batch + h * p.v_head;
        s.out = b * p.out_batch + h * p.out_head;
        s.lse = (static_cast<long long>(b) * p.heads + h) * p.length;
        s.length = p.length;
    }
    return s;
}

// The scaled score in base 2. A padded query scores 0 everywhere, so that it attends every key equally.
double score(const ForwardParams& p, const Sequence& s, int h, int i, int j) {
    if (config::mask) {
        if (!p.mask[s.mask + i]) return 0;
        if (!p.mask[s.mask + j]) return -HUGE_VAL;
    }
    const long long q = s.q + i * p.q_row, k = s.k + j * p.k_row;
    double sum = dot(p.q, q, p.k, k);
    if (config::c2p || config::p2c) {
        int delta = i - j;
        if (delta < -p.band) delta = -p.band;
        if (delta > p.band) delta = p.band;
        const long long slot = p.slots[delta + p.band];
        if (config::c2p) sum += dot(p.q, q, p.position_key, slot * p.position_key_row + h * p.position_key_head);
        if (config::p2c) sum += dot(p.k, k, p.position_query, slot * p.position_query_row + h * p.position_query_head);
    }
    return sum * p.scale_log2;
}

void attend(const ForwardParams& p, const Sequence& s, int b, int h, int i) {
    const auto batch_head = static_cast<unsigned>(b * p.heads + h);
    double largest = -HUGE_VAL;
    for (int j = 0; j < s.length; ++j) largest = std::fmax(largest, score(p, s, h, i, j));
    double total = 0, sums[config::head_dim] = {};
    for (int j = 0; j < s.length; ++j) {
        const double weight = std::exp2(score(p, s, h, i, j) - largest);
        if (weight == 0) continue;
        total += weight;
        if (config::dropout && is_dropped(p.dropout, batch_head, i, j)) continue;
        for (int d = 0; d < config::head_dim; ++d) sums[d] += weight * element(p.v, s.v + j * p.v_row + d);
    }
    const double left = config::dropout ? p.dropout.scale : 1;
    for (int d = 0; d < config::head_dim; ++d) {
        static_cast<Scalar*>(p.out)[s.out + i * p.out_row + d] =
            from_float<config::dtype>(static_cast<float>(sums[d] / total * left));
    }
    if (config::lse) p.lse[s.lse + i] = static_cast<float>(largest + std::log2(total));
}

}  // namespace

extern "C" void disentangled_attention_forward_reference(const HostBlock* block, void** parameters) {
    constexpr int rows = 16;
    const ForwardParams& p = *static_cast<const ForwardParams*>(parameters[0]);
    const int blocks = (p.length + rows - 1) / rows;
    const int head = static_cast<int>(block->x) / blocks, row0 = static_cast<int>(block->x) % blocks * rows;
    const int b = head / p.heads, h = head % p.heads;
    const Sequence s = sequence_of(p, b, h);
    for (int i = row0; i < row0 + rows && i < s.length; ++i) attend(p, s, b, h, i);
}
