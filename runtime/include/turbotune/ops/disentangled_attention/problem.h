// Disentangled attention (DeBERTa-v2/v3). Per batch b and head h:
//   s_ij = scale * (q_i.k_j + [c2p] q_i.PK[slot(i-j)] + [p2c] k_j.PQ[slot(i-j)])
//   scale = 1/sqrt(D * (1 + c2p + p2c)),  O = softmax_j(s) V
// He et al., "DeBERTa: Decoding-enhanced BERT with Disentangled Attention", ICLR 2021.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "turbotune/base/dtype.h"
#include "turbotune/base/fields.h"

namespace turbotune::disentangled_attention {

// training_forward also gives lse; backward takes out and lse of it and gives the gradients of q, k, v and both tables.
enum class Pass { inference, training_forward, backward };
enum class Layout { padded, packed };
enum class Math { strict, fast };   // fp32 only: IEEE fp32, or tf32 tensor cores

// Where an element lies, in elements: tensor[batch * b + row * i + head * h + d]. The innermost stride is 1. Packed
// tensors ignore `batch`.
struct Strides {
    std::int64_t batch = 0, row = 0, head = 0;
    bool defaulted() const { return row == 0; }   // dense [B, L, H*D] (tables: [2*span, H*D])
};

struct Problem {
    Pass pass = Pass::inference;
    Layout layout = Layout::padded;
    DType dtype = DType::bf16;          // f16, bf16 or f32, of q, k, v, tables and out
    Math math = Math::strict;
    int batch = 1;                      // packed: number of sequences
    int heads = 1;
    int length = 1;                     // padded: rows of every sequence; packed: max_seqlen
    int head_dim = 64;                  // 32, 64 or 128
    std::int64_t tokens = 0;            // packed: T, rows of q, k, v, out; padded: 0
    bool c2p = true, p2c = true;
    int position_buckets = 256;         // <= 0: none, a slot per distance
    int max_relative_positions = 512;   // > 0
    bool mask = false;                  // padded: a keep mask [B, L] is given
    float dropout = 0;                  // probability in [0, 1) that a weight is dropped; training passes
    Strides q, k, v, out, position_key, position_query;
    Strides dout, dq, dk, dv, d_position_key, d_position_query;   // backward
    std::int64_t mask_batch_stride = 0; // bytes; 0: L

    int span() const { return position_buckets > 0 ? position_buckets : max_relative_positions; }
    float scale() const;

    // Throws InvalidArgument (a mistake) or Unsupported (outside the envelope), naming field and value.
    void validate() const;

    // Field names: pass, layout, dtype, math, batch, heads, length, head_dim, tokens, c2p, p2c, position_buckets,
    // max_relative_positions, mask, dropout (text). Strides are not part of it: from_fields gives dense ones.
    Fields to_fields() const;
    static Problem from_fields(const Fields& fields);   // throws InvalidArgument
};

// slot(delta) for delta in [-band, band], index delta + band; beyond the band the slot is that of its end. The band is
// the smallest such. Logarithms in float64. Hugging Face transformers, modeling_deberta_v2.py: make_log_bucket_position.
struct SlotTable {
    int band = 0;
    std::vector<std::int32_t> slots;   // 2 * band + 1
    std::int32_t slot(std::int64_t delta) const;
};
SlotTable make_slot_table(int position_buckets, int max_relative_positions);

std::string to_string(Pass pass);       // "inference", "training_forward", ...
std::string to_string(Layout layout);

}  // namespace turbotune::disentangled_attention
