// One head of one sequence, as the backward kernels on the host see it.

#include "common/host_dtype.h"
#include "config"
#include "disentangled_attention/host_backward_layout.h"
#include "disentangled_attention/params.h"

namespace {

using Scalar = Element<config::dtype>::Type;

// Rows of the workspace, of all sequences.
inline long long workspace_rows(const BackwardParams& p) {
    const long long rows = config::packed ? p.tokens : static_cast<long long>(p.batch) * p.length;
    return rows + static_cast<long long>(HostBackwardDivision::padding_rows) * p.batch;
}

struct HeadOfSequence {
    HeadOfSequence(const BackwardParams& p, int b, int h) {
        const long long first = config::packed ? p.cu_seqlens[b] : static_cast<long long>(b) * p.length;
        length = config::packed ? p.cu_seqlens[b + 1] - p.cu_seqlens[b] : p.length;
        const auto offset = [&](long long batch, long long row, long long head) {
            return (config::packed ? first * row : b * batch) + h * head;
        };
        q = static_cast<const Scalar*>(p.q) + offset(p.q_batch, p.q_row, p.q_head);
        k = static_cast<const Scalar*>(p.k) + offset(p.k_batch, p.k_row, p.k_head);
        v = static_cast<const Scalar*>(p.v) + offset(p.v_batch, p.v_row, p.v_head);
        out = static_cast<const Scalar*>(p.out) + offset(p.out_batch, p.out_row, p.out_head);
        dout = static_cast<const Scalar*>(p.dout) + offset(p.dout_batch, p.dout_row, p.dout_head);
        dq = static_cast<Scalar*>(p.dq) + offset(p.dq_batch, p.dq_row, p.dq_head);
        dk = static_cast<Scalar*>(p.dk) + offset(p.dk_batch, p.dk_row, p.dk_head);
        dv = static_cast<Scalar*>(p.dv) + offset(p.dv_batch, p.dv_row, p.dv_head);
        lse = p.lse + (config::packed ? h * p.tokens + first : (static_cast<long long>(b) * p.heads + h) * p.length);
        keep = config::mask ? p.mask + b * p.mask_batch : nullptr;
        workspace_row = first + static_cast<long long>(HostBackwardDivision::padding_rows) * b;
        batch_head = static_cast<unsigned>(b) * static_cast<unsigned>(p.heads) + static_cast<unsigned>(h);
    }

    bool kept(int row) const {
        if constexpr (config::mask) return keep[row] != 0;
        return true;
    }

    const Scalar *q, *k, *v, *out, *dout;
    Scalar *dq, *dk, *dv;
    const float* lse;
    const unsigned char* keep;
    int length;
    long long workspace_row;
    unsigned batch_head;  // of dropout
};

// A region of the workspace for one part of one head.
inline float* workspace_part(const BackwardParams& p, int region, int part, int head, long long floats) {
    auto* base = reinterpret_cast<float*>(static_cast<char*>(p.workspace) + p.regions[region]);
    return base + (static_cast<long long>(part) * p.heads + head) * floats;
}

// The lowest and the highest slot that any distance within the longest sequence has.
struct SlotRange {
    explicit SlotRange(const BackwardParams& p) {
        const int farthest = p.length - 1 < p.band ? p.length - 1 : p.band;
        lowest = highest = p.slots[p.band];
        for (int distance = -farthest; distance <= farthest; ++distance) {
            const int slot = p.slots[distance + p.band];
            if (slot < lowest) lowest = slot;
            if (slot > highest) highest = slot;
        }
    }
    bool contains(int slot) const { return slot >= lowest && slot <= highest; }
    int lowest, highest;
};

}  // namespace
