// Disentangled attention, forward, on the CPU device.
//   s_ij = scale * (q_i.k_j + q_i.PK[slot(i-j)] + k_j.PQ[slot(i-j)]),  O = softmax_j(s) V
// A call computes block_m query rows of one head. Queries lie along the lanes of vectors everywhere: scores are kept
// transposed, so that the softmax needs no reduction within a vector and every product is a broadcast times a vector.
//
// Over tiles of block_n keys, last tile first:
//   1. position rows that come into reach: C = PK rows x Q (one row per rank, kept in a ring), PQ rows transposed
//   2. S = K x Q;  T = K x PQ for 16 keys at a time, only the ranks of their distances
//   3. S += C along its diagonals (shear) + T stretched from ranks to distances (one permutation)
//   4. online softmax in base 2;  O = O * alpha + V^T x P
// A tile whose distances share one slot needs no T: that position query is added to Q beforehand.

#include "common/host_block.h"
#include "common/host_dtype.h"
#include "common/host_product.h"
#include "common/host_vector.h"
#include "config"
#include "disentangled_attention/host_dropout.h"
#include "disentangled_attention/host_layout.h"
#include "disentangled_attention/host_positions.h"
#include "disentangled_attention/params.h"

namespace {

constexpr int kDim = config::head_dim;
constexpr int kBlockM = config::block_m;
constexpr int kBlockN = config::block_n;
constexpr int kChunk = HostLayout::chunk;
constexpr HostLayout kLayout{kDim, kBlockM, kBlockN};
constexpr int kRing = kLayout.ring();
constexpr int kPitch = kLayout.strip_pitch();
constexpr bool kPositions = config::c2p || config::p2c;
constexpr bool kHiddenAttend = config::mask && config::dropout;
constexpr float kLowest = -3.0e38f;  // below every score, and finite: its differences are no NaN

static_assert(kBlockM % kChunk == 0 && kBlockN % kChunk == 0, "blocks are whole chunks");
static_assert(kChunk % config::micro_rows == 0, "a chunk is whole register tiles");
static_assert(kDim % kChunk == 0, "head_dim is whole chunks");

using Scalar = Element<config::dtype>::Type;

// Panels: [vector][depth][lane].
struct ScoreShape {  // keys x queries
    static constexpr int left_row = kDim, left_depth = 1, right_vector = kDim * kLanes, right_depth = kLanes;
    static constexpr int result_row = kLanes, result_vector = kBlockN * kLanes;
};
struct ContentShape {  // position keys x queries
    static constexpr int left_row = kDim, left_depth = 1, right_vector = kDim * kLanes, right_depth = kLanes;
    static constexpr int result_row = kLanes, result_vector = kRing * kLanes;
};
struct StripShape {  // keys x position queries
    static constexpr int left_row = kDim, left_depth = 1, right_vector = kDim * kLanes, right_depth = kLanes;
    static constexpr int result_row = kPitch, result_vector = kLanes;
};
struct OutputShape {  // values transposed x probabilities
    static constexpr int left_row = 1, left_depth = kDim, right_vector = kBlockN * kLanes, right_depth = kLanes;
    static constexpr int result_row = kLanes, result_vector = kDim * kLanes;
};

template <class Shape>
inline void multiply(const float* left, int rows, const float* right, int vectors, float* result) {
    product<Shape, config::micro_rows, config::micro_vectors>(left, rows, right, vectors, result, kDim);
}

struct Scratch {
    explicit Scratch(void* memory) : next_(static_cast<float*>(memory)) {}
    float* take(int floats) {
        float* part = next_;
        next_ += floats;
        return part;
    }

  private:
    float* next_;
};

class QueryBlock {
  public:
    QueryBlock(const HostBlock& block, const ForwardParams& p) : p_(p), row0_(static_cast<int>(block.x) * kBlockM) {
        const long long b = block.z, h = block.y;
        long long first = 0, lse_row = (b * p.heads + h) * p.length;
        long long q_at = b * p.q_batch, k_at = b * p.k_batch, v_at = b * p.v_batch, out_at = b * p.out_batch;
        length_ = p.length;
        if constexpr (config::packed) {
            first = p.cu_seqlens[b];
            length_ = p.cu_seqlens[b + 1] - static_cast<int>(first);
            lse_row = h * p.tokens + first;
            q_at = first * p.q_row, k_at = first * p.k_row, v_at = first * p.v_row, out_at = first * p.out_row;
        }
        q_ = static_cast<const Scalar*>(p.q) + q_at + h * p.q_head;
        k_ = static_cast<const Scalar*>(p.k) + k_at + h * p.k_head;
        v_ = static_cast<const Scalar*>(p.v) + v_at + h * p.v_head;
        out_ = static_cast<Scalar*>(p.out) + out_at + h * p.out_head;
        if constexpr (config::c2p) position_key_ = static_cast<const Scalar*>(p.position_key) + h * p.position_key_head;
        if constexpr (config::p2c)
            position_query_ = static_cast<const Scalar*>(p.position_query) + h * p.position_query_head;
        if constexpr (config::mask) keep_ = p.mask + b * p.mask_batch;
        if constexpr (config::lse) lse_ = p.lse + lse_row;
        batch_head_ = static_cast<unsigned>(b) * static_cast<unsigned>(p.heads) + static_cast<unsigned>(h);
        rows_ = length_ - row0_ < kBlockM ? length_ - row0_ : kBlockM;
        carve(Scratch(block.scratch));
    }

    void run() {
        if (rows_ <= 0) return;
        const int attending = rows_that_attend();
        if (attending > 0) attend(attending);
        write();
    }

  private:
    void carve(Scratch scratch) {
        queries_ = scratch.take(kLayout.queries());
        far_queries_ = scratch.take(kLayout.queries());
        output_ = scratch.take(kLayout.queries());
        keys_ = scratch.take(kLayout.key_tile());
        values_ = scratch.take(kLayout.key_tile());
        scores_ = scratch.take(kLayout.scores());
        content_ = scratch.take(kLayout.content_positions());
        position_panel_ = scratch.take(kLayout.position_queries());
        position_rows_ = scratch.take(kLayout.position_rows());
        strip_ = scratch.take(kLayout.strip());
        ranks_ = reinterpret_cast<int*>(scratch.take(kLayout.ranks()));
        largest_ = scratch.take(kBlockM);
        sum_ = scratch.take(kBlockM);
        alpha_ = scratch.take(kBlockM);
        key_bias_ = scratch.take(kBlockN);
        mean_ = scratch.take(kDim);
        hidden_ = reinterpret_cast<int*>(scratch.take(kBlockM));
        range_bias_ = scratch.take(kBlockN);
    }

    bool kept(int row) const {
        if constexpr (config::mask) return keep_[row] != 0;
        return true;
    }

    // Up to the block's last kept query: padded ones need only the mean of V. With dropout they average what is left,
    // and their scores are made 0 instead.
    int rows_that_attend() const {
        if constexpr (kHiddenAttend) return rows_;
        int rows = rows_;
        while (rows > 0 && !kept(row0_ + rows - 1)) --rows;
        return rows;
    }

    void attend(int rows) {
        vectors_ = (rows + kLanes - 1) / kLanes;
        load_queries(rows);
        const int tiles = (length_ + kBlockN - 1) / kBlockN;
        int key0 = (tiles - 1) * kBlockN;
        const int window = vectors_ * kLanes + kBlockN - 1;
        const int slotless = 0;
        DistanceRanks distances(kPositions ? p_.slots : &slotless, kPositions ? p_.band : 0, ranks_, window,
                                row0_ - key0 - kBlockN + 1, row0_ + vectors_ * kLanes - 1);
        if constexpr (kPositions) look_ahead(distances);
        for (;; key0 -= kBlockN) {
            if (load_key_bias(key0)) {
                load_tile(k_, p_.k_row, key0, keys_);
                load_tile(v_, p_.v_row, key0, values_);
                if (key0 > 0) prefetch_tile(key0 - kBlockN);
                if constexpr (kPositions) prepare_positions(distances);
                score(distances, key0);
                exponentiate(key0);
                product<OutputShape, config::micro_rows, config::micro_vectors, Result::added_to_scaled>(
                    values_, kDim, scores_, vectors_, output_, tile_keys_, alpha_);
            }
            if (key0 == 0) break;
            if constexpr (kPositions) distances.advance(kBlockN);
        }
    }

    void load_queries(int rows) {
        for (int row = 0; row < vectors_ * kLanes; ++row) {
            float values[kDim] = {};
            if (row < rows) load_row<config::dtype, kDim>(q_ + (row0_ + row) * p_.q_row, values);
            float* to = queries_ + row / kLanes * (kDim * kLanes) + row % kLanes;
            for (int d = 0; d < kDim; ++d) to[d * kLanes] = values[d];
        }
        for (int n = 0; n < vectors_ * kLanes * kDim; ++n) output_[n] = 0;
        for (int row = 0; row < vectors_ * kLanes; ++row) largest_[row] = kLowest, sum_[row] = 0;
        if constexpr (kHiddenAttend) {
            any_hidden_ = false;
            for (int row = 0; row < vectors_ * kLanes; ++row) {
                hidden_[row] = row < rows && !kept(row0_ + row) ? -1 : 0;
                any_hidden_ |= hidden_[row] != 0;
            }
        }
        far_slot_ = -1;
        chunks_ = 0;
    }

    // 0 for a key that can be attended, else -infinity. False when nothing attends to any.
    bool load_key_bias(int key0) {
        const int keys = length_ - key0 < kBlockN ? length_ - key0 : kBlockN;
        tile_keys_ = (keys + kChunk - 1) / kChunk * kChunk;
        bool any = false;
        for (int key = 0; key < tile_keys_; ++key) {
            const bool attended = key < keys && kept(key0 + key);
            key_bias_[key] = attended ? 0.0f : -__builtin_inff();
            any |= attended;
            if constexpr (kHiddenAttend) range_bias_[key] = key < keys ? 0.0f : -__builtin_inff();
        }
        if constexpr (kHiddenAttend) any |= any_hidden_;
        return any;
    }

    void load_tile(const Scalar* from, long long row, int key0, float* to) const {
        for (int key = 0; key < tile_keys_; ++key) {
            if (key0 + key < length_) {
                load_row<config::dtype, kDim>(from + (key0 + key) * row, to + key * kDim);
            } else {
                for (int d = 0; d < kDim; ++d) to[key * kDim + d] = 0;
            }
        }
    }

    // The rows of one head are too far apart for the hardware to foresee the next.
    void prefetch_tile(int key0) const {
        for (int key = key0; key < key0 + kBlockN; ++key) {
            prefetch(k_ + key * p_.k_row);
            prefetch(v_ + key * p_.v_row);
        }
    }

    static void prefetch(const Scalar* row) {
        constexpr int line = 64 / sizeof(Scalar);
#pragma GCC unroll 8
        for (int d = 0; d < kDim; d += line) __builtin_prefetch(row + d, 0, 2);
    }

    // Makes every rank of the window available: products with the queries, and columns of the panel.
    void prepare_positions(DistanceRanks& distances) {
        const int highest = distances.ranks()[vectors_ * kLanes + kBlockN - 2];
        for (; chunks_ * kChunk <= highest; ++chunks_) {
            int slots[kChunk];
            for (int n = 0; n < kChunk; ++n) slots[n] = next_slots_[n];
            look_ahead(distances);
            const int place = chunks_ * kChunk & (kRing - 1);
            if constexpr (config::c2p) {
                load_positions(position_key_, p_.position_key_row, slots);
                multiply<ContentShape>(position_rows_, kChunk, queries_, vectors_, content_ + place * kLanes);
            }
            if constexpr (config::p2c) {
                load_positions(position_query_, p_.position_query_row, slots);
                for (int n = 0; n < kChunk; ++n) {
                    float* to = position_panel_ + (place + n) / kLanes * (kDim * kLanes) + n % kLanes;
                    for (int d = 0; d < kDim; ++d) to[d * kLanes] = position_rows_[n * kDim + d];
                }
            }
        }
    }

    void look_ahead(DistanceRanks& distances) {
        distances.next_slots(next_slots_, kChunk);
        for (const int slot : next_slots_) {
            if constexpr (config::c2p) prefetch(position_key_ + slot * p_.position_key_row);
            if constexpr (config::p2c) prefetch(position_query_ + slot * p_.position_query_row);
        }
    }

    void load_positions(const Scalar* from, long long row, const int* slots) {
        for (int n = 0; n < kChunk; ++n)
            load_row<config::dtype, kDim>(from + slots[n] * row, position_rows_ + n * kDim);
    }

    // Q plus the position query of one slot, kept until another slot is asked for.
    const float* queries_at(int slot) {
        if (slot != far_slot_) {
            float position[kDim];
            load_row<config::dtype, kDim>(position_query_ + slot * p_.position_query_row, position);
            for (int v = 0; v < vectors_; ++v) {
                for (int d = 0; d < kDim; ++d) {
                    const int at = (v * kDim + d) * kLanes;
                    store(far_queries_ + at, load(queries_ + at) + position[d]);
                }
            }
            far_slot_ = slot;
        }
        return far_queries_;
    }

    void score(const DistanceRanks& distances, int key0) {
        const float* queries = queries_;
        bool strips = config::p2c;
        if constexpr (config::p2c) {
            const int* ranks = distances.ranks();
            if (ranks[kBlockN - tile_keys_] == ranks[vectors_ * kLanes + kBlockN - 2]) {
                queries = queries_at(distances.slot_of(row0_ - key0));
                strips = false;
            }
        }
        multiply<ScoreShape>(keys_, tile_keys_, queries, vectors_, scores_);
        for (int v = 0; v < vectors_; ++v) store(alpha_ + v * kLanes, load(largest_ + v * kLanes));
        for (int chunk = 0; chunk < tile_keys_; chunk += kChunk) {
            const int base = strips ? multiply_strip(distances.ranks(), chunk) : 0;
            for (int v = 0; v < vectors_; ++v) {
                for (int key = chunk; key < chunk + kChunk; key += kLanes) {
                    if (strips) {
                        finish<config::p2c>(v, key, base, distances.ranks());
                    } else {
                        finish<false>(v, key, base, distances.ranks());
                    }
                }
            }
        }
    }

    // T of 16 keys for the ranks of their distances; returns the rank of its first column.
    int multiply_strip(const int* ranks, int chunk) {
        const int first = ranks[kBlockN - kChunk - chunk] / kLanes;
        const int last = ranks[kBlockN - 1 - chunk + vectors_ * kLanes - 1] / kLanes;
        constexpr int ring_vectors = kRing / kLanes;
        for (int vector = first; vector <= last;) {
            const int place = vector & (ring_vectors - 1);
            const int count = last - vector + 1 < ring_vectors - place ? last - vector + 1 : ring_vectors - place;
            multiply<StripShape>(keys_ + chunk * kDim, kChunk, position_panel_ + place * (kDim * kLanes), count,
                                 strip_ + (vector - first) * kLanes);
            vector += count;
        }
        return first * kLanes;
    }

    // Adds the position terms to kLanes keys of one vector of queries, scales, masks, and follows the maximum.
    template <bool with_strip>
    void finish(int v, int key, int base, const int* ranks) {
        float* scores = scores_ + (v * kBlockN + key) * kLanes;
        // The distance of this vector's first query to the group's last key.
        const int lowest = v * kLanes + kBlockN - key - kLanes;
        Vec content[2 * kLanes - 1];
        if constexpr (config::c2p) load_content(content_ + v * (kRing * kLanes), ranks + lowest, content);
        Vec largest = load(alpha_ + v * kLanes);
        const VecInt hidden = kHiddenAttend ? load(hidden_ + v * kLanes) : VecInt{};
#pragma GCC unroll 16
        for (int n = 0; n < kLanes; ++n) {
            Vec s = load(scores + n * kLanes);
            if constexpr (config::c2p) s += content[kLanes - 1 - n];
            if constexpr (with_strip) {
                const int* index = ranks + lowest + kLanes - 1 - n;
                const float* products = strip_ + ((key + n) % kChunk) * kPitch + (index[0] - base);
                s += permute(load(products), load(index) - index[0]);
            }
            s = s * p_.scale_log2 + key_bias_[key + n];
            if constexpr (kHiddenAttend) s = hidden ? splat(range_bias_[key + n]) : s;
            largest = larger(largest, s);
            store(scores + n * kLanes, s);
        }
        store(alpha_ + v * kLanes, largest);
    }

    void load_content(const float* ring, const int* ranks, Vec (&content)[2 * kLanes - 1]) const {
        if (ranks[0] == ranks[2 * kLanes - 2]) {
            const Vec same = load(ring + (ranks[0] & (kRing - 1)) * kLanes);
#pragma GCC unroll 32
            for (int t = 0; t < kLanes; ++t) content[t] = same;
            return;
        }
#pragma GCC unroll 32
        for (int t = 0; t < 2 * kLanes - 1; ++t) content[t] = load(ring + (ranks[t] & (kRing - 1)) * kLanes);
        shear(content);
    }

    // Scores become probabilities; alpha_ holds the new maximum on entry and the factor of the old sums after.
    // The sums are of all weights, before dropout.
    void exponentiate(int key0) {
        DroppedRows dropped;
        for (int v = 0; v < vectors_; ++v) {
            float* scores = scores_ + v * kBlockN * kLanes;
            const Vec largest = load(alpha_ + v * kLanes);
            const Vec alpha = exp2_nonpositive(load(largest_ + v * kLanes) - largest);
            Vec sum[2] = {load(sum_ + v * kLanes) * alpha, Vec{}};
            for (int key = 0; key < tile_keys_; key += 2) {
                if constexpr (config::dropout)
                    if (key == 0 || (key0 + key) % 64 == 0)
                        dropped.fill(p_.dropout, batch_head_, row0_ + v * kLanes, key0 + key);
#pragma GCC unroll 2
                for (int n = 0; n < 2; ++n) {
                    Vec p = exp2_nonpositive(load(scores + (key + n) * kLanes) - largest);
                    sum[n] += p;
                    if constexpr (config::dropout) p = dropped.dropped(row0_ + v * kLanes, key0 + key + n) ? Vec{} : p;
                    store(scores + (key + n) * kLanes, p);
                }
            }
            store(sum_ + v * kLanes, sum[0] + sum[1]);
            store(largest_ + v * kLanes, largest);
            store(alpha_ + v * kLanes, alpha);
        }
    }

    void write() {
        bool have_mean = false;
        for (int row = 0; row < rows_; ++row) {
            float result[kDim];
            float lse;
            if (kHiddenAttend || kept(row0_ + row)) {
                const float* from = output_ + row / kLanes * (kDim * kLanes) + row % kLanes;
                float factor = 1.0f / sum_[row];
                if constexpr (config::dropout) factor *= p_.dropout.scale;
                for (int d = 0; d < kDim; ++d) result[d] = from[d * kLanes] * factor;
                lse = largest_[row] + __builtin_log2f(sum_[row]);
            } else {
                if (!have_mean) average_values();
                have_mean = true;
                for (int d = 0; d < kDim; ++d) result[d] = mean_[d];
                lse = __builtin_log2f(static_cast<float>(length_));
            }
            Scalar* to = out_ + (row0_ + row) * p_.out_row;
            for (int d = 0; d < kDim; ++d) to[d] = from_float<config::dtype>(result[d]);
            if constexpr (config::lse) lse_[row0_ + row] = lse;
        }
    }

    // What a padded query gives: it attends every key of its sequence equally. Summed in parts against rounding.
    void average_values() {
        for (int d = 0; d < kDim; ++d) mean_[d] = 0;
        for (int key0 = 0; key0 < length_; key0 += kBlockN) {
            float part[kDim] = {};
            for (int key = key0; key < length_ && key < key0 + kBlockN; ++key) {
                float value[kDim];
                load_row<config::dtype, kDim>(v_ + key * p_.v_row, value);
                for (int d = 0; d < kDim; ++d) part[d] += value[d];
            }
            for (int d = 0; d < kDim; ++d) mean_[d] += part[d];
        }
        for (int d = 0; d < kDim; ++d) mean_[d] /= static_cast<float>(length_);
    }

    const ForwardParams& p_;
    const Scalar *q_, *k_, *v_, *position_key_ = nullptr, *position_query_ = nullptr;
    Scalar* out_;
    float* lse_ = nullptr;
    const unsigned char* keep_ = nullptr;
    int length_, row0_, rows_;
    int vectors_ = 0;                          // of queries in use
    int tile_keys_ = 0;                        // of the current tile, in whole chunks
    int chunks_ = 0;                           // of position ranks prepared
    int far_slot_ = -1;                        // that far_queries_ holds
    bool any_hidden_ = false;                  // queries of the block
    unsigned batch_head_;                      // of dropout
    int next_slots_[kChunk];                   // of the chunk to be prepared next
    float *queries_, *far_queries_, *output_;  // [vector][head_dim][lane]
    float *keys_, *values_;                    // [key][head_dim]
    float* scores_;                            // [vector][key][lane]
    float* content_;                           // [vector][rank in the ring][lane]
    float* position_panel_;                    // [rank in the ring / lanes][head_dim][lane]
    float* position_rows_;                     // [rank of the chunk][head_dim]
    float* strip_;                             // [key of the chunk][rank - base]
    int* ranks_;
    float *largest_, *sum_, *alpha_;  // [query]
    float *key_bias_, *mean_;
    int* hidden_;        // [query]: all bits set
    float* range_bias_;  // [key], as key_bias_ but for the end of the sequence alone
};

}  // namespace

extern "C" void disentangled_attention_forward_host(const HostBlock* block, void** parameters) {
    QueryBlock(*block, *static_cast<const ForwardParams*>(parameters[0])).run();
}
