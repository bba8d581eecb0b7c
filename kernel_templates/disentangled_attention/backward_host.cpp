// Disentangled attention, backward, on the CPU device; gradients of one head of some sequences
// (host_backward_layout.h).
//   P = 2^(scale_log2 * s - lse),  dS = scale * P * (dO V^T - Delta),  dV = P^T dO,
//   dQ_i = sum_j dS_ij (k_j + PK[slot]),  dK_j = sum_i dS_ij (q_i + PQ[slot]),
//   dPK[slot] = sum dS_ij q_i,  dPQ[slot] = sum dS_ij k_j
// For each block of block_m keys, which lie along the lanes of vectors, over tiles of block_n queries, last tile first:
//   1. position rows that come into reach: C = PQ rows x K (one row per rank, kept in a ring), PK rows transposed
//   2. S = Q x K + C along its diagonals + T = Q x PK stretched from ranks to distances;  dP = dO x V
//   3. P, dS; dS summed along its diagonals into dC, and from distances to ranks into dT
//   4. dV += P^T dO,  dK += dS^T Q,  dQ += dS K;  dQ += dT PK rows,  dPK += dT^T Q
//   5. position rows that leave reach: dK += dC^T PQ rows,  dPQ += dC K
// A tile whose distances share one slot needs neither shear nor T: that position key is added to K beforehand, the
// position query gives every key one number, and dC and dT are column and row sums.

#include "common/host_block.h"
#include "common/host_dtype.h"
#include "common/host_product.h"
#include "common/host_vector.h"
#include "config"
#include "disentangled_attention/host_backward_layout.h"
#include "disentangled_attention/host_backward_sequence.h"
#include "disentangled_attention/host_backward_shapes.h"
#include "disentangled_attention/host_dropout.h"
#include "disentangled_attention/host_positions.h"
#include "disentangled_attention/params.h"

namespace {

class Gradients : ScratchMemory {
  public:
    Gradients(const HostBlock& block, const BackwardParams& p)
        : ScratchMemory(static_cast<float*>(block.scratch)),
          p_(p),
          head_(static_cast<int>(block.y)),
          group_(static_cast<int>(block.x) / kParts),
          part_(static_cast<int>(block.x) % kParts) {
        if constexpr (config::c2p)
            position_key_ = static_cast<const Scalar*>(p.position_key) + head_ * p.position_key_head;
        if constexpr (config::p2c)
            position_query_ = static_cast<const Scalar*>(p.position_query) + head_ * p.position_query_head;
    }

    void run() {
        if constexpr (kPositions) clear_tables();
        for (int b = 0; b < p_.batch; ++b)
            if (group_of(b) == group_) run_sequence(b);
    }

  private:
    // Consecutive sequences, about the same number of rows in each group.
    int group_of(int b) const {
        const int groups = HostBackwardDivision{kParts, p_.batch}.groups();
        if constexpr (config::packed) {
            const long long group = p_.tokens > 0 ? p_.cu_seqlens[b] * static_cast<long long>(groups) / p_.tokens : 0;
            return group < groups ? static_cast<int>(group) : groups - 1;
        }
        return static_cast<int>(static_cast<long long>(b) * groups / p_.batch);
    }

    void clear_tables() {
        const int unit = group_ * kParts + part_;
        const long long floats = 2LL * p_.span * kDim;
        const SlotRange range(p_);
        const auto table = [&](int region) {
            float* rows = workspace_part(p_, region, unit, head_, floats);
            for (int slot = range.lowest; slot <= range.highest; ++slot)
                clear(rows + static_cast<long long>(slot) * kDim, kDim);
            return rows;
        };
        if constexpr (config::c2p) d_position_key_ = table(HostBackwardRegions::d_position_key);
        if constexpr (config::p2c) d_position_query_ = table(HostBackwardRegions::d_position_query);
    }

    void run_sequence(int b) {
        const HeadOfSequence sequence(p_, b, head_);
        s_ = &sequence;
        const int blocks = (sequence.length + kBlockM - 1) / kBlockM;
        const int parts = HostBackwardDivision::parts_of(blocks, kParts);
        if (part_ >= parts) return;
        const long long rows = workspace_rows(p_);
        delta_ = workspace_part(p_, HostBackwardRegions::delta, part_, head_, rows) + sequence.workspace_row;
        dq_ = workspace_part(p_, HostBackwardRegions::dq, part_, head_, rows * kDim) + sequence.workspace_row * kDim;
        prepare_rows();
        const int last = HostBackwardDivision::first_block(blocks, parts, part_ + 1);
        for (int block = HostBackwardDivision::first_block(blocks, parts, part_); block < last; ++block)
            run_block(block * kBlockM);
        if constexpr (kParts == 1) write_dq();
    }

    // Delta, dQ = 0, and the sum of dO over hidden queries, each of which gives every key the weight 1 / length.
    void prepare_rows() {
        double hidden_sum[kDim] = {};
        any_hidden_ = false;
        for (int row = 0; row < s_->length; ++row) {
            float out[kDim], dout[kDim];
            load_row<config::dtype, kDim>(s_->out + row * p_.out_row, out);
            load_row<config::dtype, kDim>(s_->dout + row * p_.dout_row, dout);
            delta_[row] = dot(out, dout);
            if (s_->kept(row)) continue;
            any_hidden_ = true;
            for (int d = 0; d < kDim; ++d) hidden_sum[d] += dout[d];
        }
        for (int d = 0; d < kDim; ++d) hidden_sum_[d] = static_cast<float>(hidden_sum[d] / s_->length);
        const int padded = (s_->length + kChunk - 1) / kChunk * kChunk;
        for (int row = 0; row < padded; ++row) clear(dq_ + static_cast<long long>(row) * kDim, kDim);
    }

    // With dropout the weights of hidden queries differ from key to key, and their tiles are computed like the others.
    bool visits_hidden() const { return config::dropout && config::mask && any_hidden_; }

    void run_block(int key0) {
        key0_ = key0;
        const int keys = s_->length - key0 < kBlockM ? s_->length - key0 : kBlockM;
        int attended = keys;
        if (!visits_hidden())
            while (attended > 0 && !s_->kept(key0 + attended - 1)) --attended;
        clear(dk_, (keys + kLanes - 1) / kLanes * kLanes * kDim);
        clear(dv_, (keys + kLanes - 1) / kLanes * kLanes * kDim);
        if (attended > 0) visit_queries(attended);
        write_keys(keys);
    }

    void visit_queries(int keys) {
        vectors_ = (keys + kLanes - 1) / kLanes;
        load_keys(keys);
        int query0 = (s_->length - 1) / kBlockN * kBlockN;
        const int slotless = 0;
        DistanceRanks distances(kPositions ? p_.slots : &slotless, kPositions ? p_.band : 0, ranks_,
                                vectors_ * kLanes + kBlockN - 1, key0_ - query0 - kBlockN + 1,
                                key0_ + vectors_ * kLanes - 1, DistanceRanks::Sign::key_minus_query);
        for (;; query0 -= kBlockN) {
            if (load_tile(query0)) {
                if constexpr (kPositions) prepare_positions(distances);
                visit_tile(distances);
            }
            if (query0 == 0) break;
            if constexpr (kPositions) distances.advance(kBlockN);
        }
        if constexpr (kPositions) retire_positions(chunks_);
    }

    // Hidden keys become zero, whatever the tensors hold there.
    void load_keys(int keys) {
        for (int key = 0; key < vectors_ * kLanes; ++key) {
            float k[kDim] = {}, v[kDim] = {};
            const bool in_range = key < keys, attended = in_range && s_->kept(key0_ + key);
            key_bias_[key] = attended ? 0.0f : -kInfinity;
            if (attended) {
                load_row<config::dtype, kDim>(s_->k + (key0_ + key) * p_.k_row, k);
                load_row<config::dtype, kDim>(s_->v + (key0_ + key) * p_.v_row, v);
            }
            const int at = key / kLanes * (kDim * kLanes) + key % kLanes;
            for (int d = 0; d < kDim; ++d) {
                keys_[at + d * kLanes] = k[d];
                values_[at + d * kLanes] = v[d];
                key_rows_[key * kDim + d] = k[d];
            }
        }
        keys_in_range_ = keys;
        far_slot_ = -1;
        chunks_ = retired_ = 0;
    }

    // False when no query of the tile gives anything.
    bool load_tile(int query0) {
        query0_ = query0;
        int rows = s_->length - query0 < kBlockN ? s_->length - query0 : kBlockN;
        if (!visits_hidden())
            while (rows > 0 && !s_->kept(query0 + rows - 1)) --rows;
        tile_rows_ = (rows + kChunk - 1) / kChunk * kChunk;
        for (int row = 0; row < tile_rows_; ++row) {
            float *q = queries_ + row * kDim, *dout = dout_ + row * kDim;
            const bool attends = row < rows && s_->kept(query0 + row);
            if (attends) {
                load_row<config::dtype, kDim>(s_->q + (query0 + row) * p_.q_row, q);
            } else {
                clear(q, kDim);
            }
            if (attends || (row < rows && visits_hidden())) {
                load_row<config::dtype, kDim>(s_->dout + (query0 + row) * p_.dout_row, dout);
            } else {
                clear(dout, kDim);
            }
            offset_[row] = attends ? -s_->lse[query0 + row] : -kInfinity;
            delta_tile_[row] = attends ? delta_[query0 + row] : 0.0f;
        }
        return tile_rows_ > 0;
    }

    // Makes every rank of the window available: products with the keys, columns of the panel, and room for gradients.
    void prepare_positions(DistanceRanks& distances) {
        const int* ranks = distances.ranks();
        const int window = vectors_ * kLanes + kBlockN - 1;
        retire_positions(ranks[0] / kChunk);
        for (; chunks_ * kChunk <= ranks[window - 1]; ++chunks_) {
            int* slots = slots_ + place_of(chunks_);
            distances.next_slots(slots, kChunk);
            if ((chunks_ + 1) * kChunk <= ranks[0]) {  // of tiles that were skipped
                retired_ = chunks_ + 1;
                continue;
            }
            prepare_chunk(place_of(chunks_), slots);
        }
        find_first_of_ranks(ranks, window, first_of_rank_);
    }

    static int place_of(int chunk) { return chunk * kChunk & (kRing - 1); }

    void prepare_chunk(int place, const int* slots) {
        if constexpr (config::p2c) {
            for (int n = 0; n < kChunk; ++n) load_position_query(slots[n], chunk_rows_ + n * kDim);
            multiply<ScoreShape, Result::replaced>(chunk_rows_, kChunk, keys_, vectors_, content_ + place * kPitch,
                                                   kDim);
            clear(d_content_ + place * kPitch, kChunk * kPitch);
        }
        if constexpr (config::c2p) {
            for (int n = 0; n < kChunk; ++n) {
                float* row = position_rows_ + (place + n) * kDim;
                load_row<config::dtype, kDim>(position_key_ + slots[n] * p_.position_key_row, row);
                float* to = position_panel_ + (place + n) / kLanes * (kDim * kLanes) + n % kLanes;
                for (int d = 0; d < kDim; ++d) to[d * kLanes] = row[d];
            }
            clear(d_position_rows_ + place * kDim, kChunk * kDim);
        }
    }

    void load_position_query(int slot, float* to) const {
        load_row<config::dtype, kDim>(position_query_ + slot * p_.position_query_row, to);
    }

    void retire_positions(int before) {
        for (; retired_ < before && retired_ < chunks_; ++retired_) {
            const int place = place_of(retired_);
            const int* slots = slots_ + place;
            if constexpr (config::p2c) {
                const float* d_content = d_content_ + place * kPitch;
                for (int n = 0; n < kChunk; ++n) load_position_query(slots[n], chunk_rows_ + n * kDim);
                multiply<KeyGradientShape, Result::added>(chunk_rows_, kDim, d_content, vectors_, dk_, kChunk);
                multiply<RowGradientShape, Result::replaced>(d_content, kChunk, key_rows_, kDimVectors, d_chunk_rows_,
                                                             vectors_ * kLanes);
                add_to_table(d_position_query_, slots, d_chunk_rows_);
            }
            if constexpr (config::c2p) add_to_table(d_position_key_, slots, d_position_rows_ + place * kDim);
        }
    }

    static void add_to_table(float* table, const int* slots, const float* rows) {
        for (int n = 0; n < kChunk; ++n) add_row(table + static_cast<long long>(slots[n]) * kDim, rows + n * kDim);
    }

    // K plus the position key of one slot, kept until another slot is asked for.
    const float* keys_at(int place) {
        if (slots_[place] != far_slot_) {
            const float* position = position_rows_ + place * kDim;
            for (int v = 0; v < vectors_; ++v) {
                for (int d = 0; d < kDim; ++d) {
                    const int at = (v * kDim + d) * kLanes;
                    store(far_keys_ + at, load(keys_ + at) + position[d]);
                }
            }
            far_slot_ = slots_[place];
        }
        return far_keys_;
    }

    void visit_tile(const DistanceRanks& distances) {
        const int* ranks = distances.ranks();
        const int low_rank = ranks[kBlockN - tile_rows_], high_rank = ranks[vectors_ * kLanes + kBlockN - 2];
        const bool far = kPositions && low_rank == high_rank;
        const int far_place = low_rank & (kRing - 1);
        const float* keys = keys_;
        if constexpr (config::c2p)
            if (far) keys = keys_at(far_place);
        multiply<ScoreShape, Result::replaced>(queries_, tile_rows_, keys, vectors_, weights_, kDim);
        multiply<ScoreShape, Result::replaced>(dout_, tile_rows_, values_, vectors_, d_scores_, kDim);
        for (int row0 = 0; row0 < tile_rows_; row0 += kChunk) {
            if (far || !kPositions) {
                finish_chunk<false>(row0, nullptr, far_place);
            } else {
                near_chunk(row0, ranks);
            }
        }
        if (far) far_gradients(far_place);
        float* dq = dq_ + static_cast<long long>(query0_) * kDim;
        multiply<KeyGradientShape, Result::added>(dout_, kDim, weights_, vectors_, dv_, tile_rows_);
        multiply<KeyGradientShape, Result::added>(queries_, kDim, d_scores_, vectors_, dk_, tile_rows_);
        multiply<RowGradientShape, Result::added>(d_scores_, tile_rows_, key_rows_, kDimVectors, dq, vectors_ * kLanes);
    }

    void near_chunk(int row0, const int* ranks) {
        // Whole chunks of ranks that the distances of these queries have.
        const int first = ranks[kBlockN - kChunk - row0] / kChunk;
        const int count = ranks[kBlockN - 1 - row0 + vectors_ * kLanes - 1] / kChunk - first + 1;
        if constexpr (config::c2p) {
            for_each_run(first, count, [&](int place, int column, int columns) {
                multiply<StripShape, Result::replaced>(queries_ + row0 * kDim, kChunk, position_panel_ + place * kDim,
                                                       columns / kLanes, strip_ + column, kDim);
            });
            for (int row = 0; row < kChunk; ++row) clear(d_strip_ + row * kStripPitch, (count + 1) * kChunk);
        }
        finish_chunk<true>(row0, ranks, first * kChunk);
        if constexpr (config::c2p) {
            float* dq = dq_ + (static_cast<long long>(query0_) + row0) * kDim;
            for_each_run(first, count, [&](int place, int column, int columns) {
                multiply<StripRowShape, Result::added>(d_strip_ + column, kChunk, position_rows_ + place * kDim,
                                                       kDimVectors, dq, columns);
                multiply<StripTableShape, Result::added>(d_strip_ + column, columns, queries_ + row0 * kDim,
                                                         kDimVectors, d_position_rows_ + place * kDim, kChunk);
            });
        }
    }

    // Calls visit(place in the ring, column of the strip, columns) for each run of ranks that does not wrap around.
    template <class Visit>
    static void for_each_run(int first, int count, Visit visit) {
        constexpr int chunks = kRing / kChunk;
        for (int done = 0; done < count;) {
            const int place = (first + done) & (chunks - 1);
            const int run = count - done < chunks - place ? count - done : chunks - place;
            visit(place * kChunk, done * kChunk, run * kChunk);
            done += run;
        }
    }

    // Products become weights and the gradients of scores, for one chunk of queries.
    template <bool near>
    void finish_chunk(int row0, const int* ranks, int base) {
        DroppedColumns dropped;
        for (int v = 0; v < vectors_; ++v) {
            if constexpr (config::dropout)
                if (v == 0 || (key0_ + v * kLanes) % 64 == 0)
                    dropped.fill(p_.dropout, s_->batch_head, query0_ + row0, key0_ + v * kLanes);
            for (int row = row0; row < row0 + kChunk; row += kLanes) finish<near>(v, row, base, ranks, dropped);
        }
    }

    // The same for kLanes queries and one vector of keys. `base`: of the strip, or the place of a far tile's rank.
    template <bool near>
    void finish(int v, int row0, int base, const int* ranks, const DroppedColumns& dropped) {
        // The distance of this vector's first key to the group's last query.
        const int lowest = v * kLanes + kBlockN - row0 - kLanes;
        float* weights = weights_ + row0 * kPitch + v * kLanes;
        float* d_scores = d_scores_ + row0 * kPitch + v * kLanes;
        Vec diagonals[2 * kLanes - 1];
        if constexpr (near && config::p2c) load_content(content_ + v * kLanes, ranks + lowest, diagonals);
        Vec bias = load(key_bias_ + v * kLanes);
        if constexpr (!near && config::p2c)
            bias += p_.scale_log2 * load(content_ + base * kPitch + v * kLanes);  // one rank
        Vec ds[kLanes];
#pragma GCC unroll 16
        for (int n = 0; n < kLanes; ++n) {
            Vec s = load(weights + n * kPitch);
            if constexpr (near && config::p2c) s += diagonals[kLanes - 1 - n];
            if constexpr (near && config::c2p) {
                const int* index = ranks + lowest + kLanes - 1 - n;
                const float* products = strip_ + ((row0 + n) % kChunk) * kStripPitch + (index[0] - base);
                s += permute(load(products), load(index) - index[0]);
            }
            Vec p = exp2_nonpositive(s * p_.scale_log2 + (bias + offset_[row0 + n]));
            Vec dp = load(d_scores + n * kPitch);
            VecInt drops = VecInt{};
            if constexpr (config::dropout) {
                drops = dropped.dropped(query0_ + row0 + n, key0_ + v * kLanes);
                dp = drops ? Vec{} : dp * p_.dropout.scale;
            }
            ds[n] = p * (dp - delta_tile_[row0 + n]) * p_.scale;
            if constexpr (config::dropout) {
                if constexpr (config::mask)
                    if (query0_ + row0 + n < s_->length && !s_->kept(query0_ + row0 + n)) p = equal_weights(v);
                p = drops ? Vec{} : p * p_.dropout.scale;
            }
            store(weights + n * kPitch, p);
            store(d_scores + n * kPitch, ds[n]);
        }
        if constexpr (near && config::p2c) {
#pragma GCC unroll 16
            for (int n = 0; n < kLanes; ++n) diagonals[kLanes - 1 - n] = ds[n];
            unshear(diagonals);
            float* d_content = d_content_ + v * kLanes;
#pragma GCC unroll 32
            for (int t = 0; t < 2 * kLanes - 1; ++t) {
                float* to = d_content + (ranks[lowest + t] & (kRing - 1)) * kPitch;
                store(to, load(to) + diagonals[t]);
            }
        }
        if constexpr (near && config::c2p) {
#pragma GCC unroll 16
            for (int n = 0; n < kLanes; ++n) {
                const int window = lowest + kLanes - 1 - n;
                float* to = d_strip_ + ((row0 + n) % kChunk) * kStripPitch + (ranks[window] - base);
                store(to, load(to) + sum_by_rank(ds[n], ranks, first_of_rank_, window));
            }
        }
    }

    static void load_content(const float* ring, const int* ranks, Vec (&content)[2 * kLanes - 1]) {
#pragma GCC unroll 32
        for (int t = 0; t < 2 * kLanes - 1; ++t) content[t] = load(ring + (ranks[t] & (kRing - 1)) * kPitch);
        shear(content);
    }

    // What a hidden query gives every key of its sequence.
    Vec equal_weights(int v) const {
        const VecInt in_range = lane_numbers() + v * kLanes < splat(keys_in_range_);
        return in_range ? splat(1.0f / static_cast<float>(s_->length)) : Vec{};
    }

    // Of a tile whose distances all have one rank.
    void far_gradients(int place) {
        if constexpr (config::p2c) {
            for (int v = 0; v < vectors_; ++v) {
                Vec sum = Vec{};
                for (int row = 0; row < tile_rows_; ++row) sum += load(d_scores_ + row * kPitch + v * kLanes);
                float* to = d_content_ + place * kPitch + v * kLanes;
                store(to, load(to) + sum);
            }
        }
        if constexpr (config::c2p) {
            const float* position = position_rows_ + place * kDim;
            Vec d_position[kDimVectors] = {};
            for (int row = 0; row < tile_rows_; ++row) {
                Vec sum = Vec{};
                for (int v = 0; v < vectors_; ++v) sum += load(d_scores_ + row * kPitch + v * kLanes);
                const float total = sum_of(sum);
                float* dq = dq_ + (static_cast<long long>(query0_) + row) * kDim;
                for (int d = 0; d < kDimVectors; ++d) {
                    store(dq + d * kLanes, load(dq + d * kLanes) + total * load(position + d * kLanes));
                    d_position[d] += total * load(queries_ + row * kDim + d * kLanes);
                }
            }
            float* to = d_position_rows_ + place * kDim;
            for (int d = 0; d < kDimVectors; ++d) store(to + d * kLanes, load(to + d * kLanes) + d_position[d]);
        }
    }

    void write_keys(int keys) {
        const bool adds_hidden = config::mask && !config::dropout && any_hidden_;
        for (int key = 0; key < keys; ++key) {
            const int at = key / kLanes * (kDim * kLanes) + key % kLanes;
            Scalar* dk = s_->dk + (key0_ + key) * p_.dk_row;
            Scalar* dv = s_->dv + (key0_ + key) * p_.dv_row;
            for (int d = 0; d < kDim; ++d) {
                float value = dv_[at + d * kLanes];
                if (adds_hidden) value += hidden_sum_[d];
                dk[d] = from_float<config::dtype>(dk_[at + d * kLanes]);
                dv[d] = from_float<config::dtype>(value);
            }
        }
    }

    void write_dq() {
        for (int row = 0; row < s_->length; ++row) {
            const float* from = dq_ + static_cast<long long>(row) * kDim;
            Scalar* to = s_->dq + row * p_.dq_row;
            for (int d = 0; d < kDim; ++d) to[d] = from_float<config::dtype>(from[d]);
        }
    }

    const BackwardParams& p_;
    int head_, group_, part_;
    const Scalar *position_key_ = nullptr, *position_query_ = nullptr;
    const HeadOfSequence* s_ = nullptr;
    bool any_hidden_ = false;
    int key0_ = 0, query0_ = 0;
    int keys_in_range_ = 0;
    int vectors_ = 0;               // of keys in use
    int tile_rows_ = 0;             // of the current tile, in whole chunks
    int chunks_ = 0, retired_ = 0;  // of position ranks
    int far_slot_ = -1;             // that far_keys_ holds
    // In the workspace: this unit's sums.
    float *delta_ = nullptr, *dq_ = nullptr;
    float *d_position_key_ = nullptr, *d_position_query_ = nullptr;  // [slot][head_dim]
};

}  // namespace

extern "C" void disentangled_attention_backward_host(const HostBlock* block, void** parameters) {
    Gradients(*block, *static_cast<const BackwardParams*>(parameters[0])).run();
}
