// Disentangled attention, backward, as plain as it can be written: float64 loops, the weights computed anew from the
// inputs (neither out nor lse is read), nothing shared with the kernels that it judges but the parameters and which
// weights are dropped. Each block computes one head of all sequences, one after the other; grid.x = heads.

#include <cmath>

#include "common/host_block.h"
#include "common/host_dtype.h"
#include "common/philox.h"
#include "config"
#include "disentangled_attention/params.h"
#include "disentangled_attention/reference_workspace.h"
// After what it needs.
#include "disentangled_attention/dropout.h"

namespace {

constexpr int kDim = config::head_dim;

using Scalar = Element<config::dtype>::Type;

double element(const void* tensor, long long at) {
    return to_float<config::dtype>(static_cast<const Scalar*>(tensor)[at]);
}

double dot(const void* a, long long a_at, const void* b, long long b_at) {
    double sum = 0;
    for (int d = 0; d < kDim; ++d) sum += element(a, a_at + d) * element(b, b_at + d);
    return sum;
}

// sum += factor * the row of a tensor.
void add(double* sum, double factor, const void* tensor, long long at) {
    for (int d = 0; d < kDim; ++d) sum[d] += factor * element(tensor, at + d);
}

void write(void* tensor, long long at, const double* values) {
    for (int d = 0; d < kDim; ++d)
        static_cast<Scalar*>(tensor)[at + d] = from_float<config::dtype>(static_cast<float>(values[d]));
}

void clear(double* values, long long count) {
    for (long long n = 0; n < count; ++n) values[n] = 0;
}

class Head {
  public:
    Head(const BackwardParams& p, int h) : p_(p), h_(h) {
        const ReferenceWorkspace sizes{kDim, p.span, p.length};
        d_position_key_ = static_cast<double*>(p.workspace) + h * sizes.per_head();
        d_position_query_ = d_position_key_ + sizes.table();
        dk_ = d_position_query_ + sizes.table();
        dv_ = dk_ + sizes.rows();
        weights_ = dv_ + sizes.rows();
        d_weights_ = weights_ + p.length;
    }

    void run() {
        const long long slots = 2LL * p_.span;
        clear(d_position_key_, slots * kDim);
        clear(d_position_query_, slots * kDim);
        for (b_ = 0; b_ < p_.batch; ++b_) run_sequence();
        for (long long slot = 0; slot < slots; ++slot) {
            if (config::c2p)
                write(p_.d_position_key, slot * p_.d_position_key_row + h_ * p_.d_position_key_head,
                      d_position_key_ + slot * kDim);
            if (config::p2c)
                write(p_.d_position_query, slot * p_.d_position_query_row + h_ * p_.d_position_query_head,
                      d_position_query_ + slot * kDim);
        }
    }

  private:
    void run_sequence() {
        first_ = config::packed ? p_.cu_seqlens[b_] : 0;
        length_ = config::packed ? p_.cu_seqlens[b_ + 1] - p_.cu_seqlens[b_] : p_.length;
        clear(dk_, static_cast<long long>(length_) * kDim);
        clear(dv_, static_cast<long long>(length_) * kDim);
        for (int i = 0; i < length_; ++i) run_query(i);
        for (int j = 0; j < length_; ++j) {
            write(p_.dk, at(j, p_.dk_batch, p_.dk_row, p_.dk_head), dk_ + static_cast<long long>(j) * kDim);
            write(p_.dv, at(j, p_.dv_batch, p_.dv_row, p_.dv_head), dv_ + static_cast<long long>(j) * kDim);
        }
    }

    // Where row i of this head and sequence begins in a tensor of the given strides.
    long long at(int i, long long batch, long long row, long long head) const {
        return b_ * (config::packed ? 0 : batch) + (first_ + i) * row + h_ * head;
    }
    long long q_at(int i) const { return at(i, p_.q_batch, p_.q_row, p_.q_head); }
    long long k_at(int j) const { return at(j, p_.k_batch, p_.k_row, p_.k_head); }

    bool kept(int row) const { return !config::mask || p_.mask[b_ * p_.mask_batch + row]; }

    long long slot_of(int delta) const {
        return p_.slots[(delta < -p_.band ? -p_.band : delta > p_.band ? p_.band : delta) + p_.band];
    }

    // The scaled score. A padded query scores 0 everywhere, so that it attends every key equally.
    double score(int i, int j) const {
        if (!kept(i)) return 0;
        if (!kept(j)) return -HUGE_VAL;
        double sum = dot(p_.q, q_at(i), p_.k, k_at(j));
        if (config::c2p)
            sum +=
                dot(p_.q, q_at(i), p_.position_key, slot_of(i - j) * p_.position_key_row + h_ * p_.position_key_head);
        if (config::p2c)
            sum += dot(p_.k, k_at(j), p_.position_query,
                       slot_of(i - j) * p_.position_query_row + h_ * p_.position_query_head);
        return sum * p_.scale;
    }

    void run_query(int i) {
        double largest = -HUGE_VAL, total = 0;
        for (int j = 0; j < length_; ++j) largest = std::fmax(largest, weights_[j] = score(i, j));
        for (int j = 0; j < length_; ++j) total += weights_[j] = std::exp(weights_[j] - largest);
        // Softmax, dropout, and the gradient of the weight before dropout.
        const long long dout = at(i, p_.dout_batch, p_.dout_row, p_.dout_head);
        const auto batch_head = static_cast<unsigned>(b_ * p_.heads + h_);
        double delta = 0;
        for (int j = 0; j < length_; ++j) {
            weights_[j] /= total;
            d_weights_[j] = 0;
            double left = 1;
            if (config::dropout) left = is_dropped(p_.dropout, batch_head, i, j) ? 0 : p_.dropout.scale;
            if (weights_[j] == 0 || left == 0) continue;
            d_weights_[j] = left * dot(p_.dout, dout, p_.v, at(j, p_.v_batch, p_.v_row, p_.v_head));
            delta += weights_[j] * d_weights_[j];
            add(dv_ + static_cast<long long>(j) * kDim, left * weights_[j], p_.dout, dout);
        }
        double dq[kDim] = {};
        for (int j = 0; j < length_ && kept(i); ++j)
            if (weights_[j] != 0) add_score_gradient(i, j, weights_[j] * (d_weights_[j] - delta) * p_.scale, dq);
        write(p_.dq, at(i, p_.dq_batch, p_.dq_row, p_.dq_head), dq);
    }

    void add_score_gradient(int i, int j, double ds, double* dq) {
        double* dk = dk_ + static_cast<long long>(j) * kDim;
        add(dq, ds, p_.k, k_at(j));
        add(dk, ds, p_.q, q_at(i));
        if (config::c2p) {
            const long long slot = slot_of(i - j);
            add(dq, ds, p_.position_key, slot * p_.position_key_row + h_ * p_.position_key_head);
            add(d_position_key_ + slot * kDim, ds, p_.q, q_at(i));
        }
        if (config::p2c) {
            const long long slot = slot_of(i - j);
            add(dk, ds, p_.position_query, slot * p_.position_query_row + h_ * p_.position_query_head);
            add(d_position_query_ + slot * kDim, ds, p_.k, k_at(j));
        }
    }

    const BackwardParams& p_;
    const int h_;
    int b_ = 0, length_ = 0;
    long long first_ = 0;                         // packed: row of the sequence's start
    double *d_position_key_, *d_position_query_;  // [slot][head_dim]
    double *dk_, *dv_;                            // [key][head_dim]
    double *weights_, *d_weights_;                // [key], of one query
};

}  // namespace

extern "C" void disentangled_attention_backward_reference(const HostBlock* block, void** parameters) {
    Head(*static_cast<const BackwardParams*>(parameters[0]), static_cast<int>(block->x)).run();
}
