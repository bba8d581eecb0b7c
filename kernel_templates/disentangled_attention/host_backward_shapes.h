// Sizes, scratch memory and operand shapes of backward_host.cpp, and the small loops over them.

#include "common/host_product.h"
#include "common/host_vector.h"
#include "config"
#include "disentangled_attention/host_backward_layout.h"

namespace {

constexpr int kDim = config::head_dim;
constexpr int kBlockM = config::block_m;
constexpr int kBlockN = config::block_n;
constexpr int kParts = config::key_parts;
constexpr int kChunk = HostBackwardLayout::chunk;
constexpr HostBackwardLayout kLayout{kDim, kBlockM, kBlockN};
constexpr int kRing = kLayout.ring();
constexpr int kPitch = kLayout.score_pitch();
constexpr int kStripPitch = kLayout.strip_pitch();
constexpr int kDimVectors = kDim / kLanes;
constexpr bool kPositions = config::c2p || config::p2c;
constexpr float kInfinity = __builtin_inff();

static_assert(kBlockM % kChunk == 0 && kBlockN % kChunk == 0, "blocks are whole chunks");
static_assert(kChunk % config::micro_rows == 0, "a chunk is whole register tiles");
static_assert(kDim % kChunk == 0, "head_dim is whole chunks");

// Panels are [vector][depth][lane], everything else is in rows.
struct ScoreShape {  // rows x a panel of keys
    static constexpr int left_row = kDim, left_depth = 1, right_vector = kDim * kLanes, right_depth = kLanes;
    static constexpr int result_row = kPitch, result_vector = kLanes;
};
struct StripShape {  // queries x a panel of position keys
    static constexpr int left_row = kDim, left_depth = 1, right_vector = kDim * kLanes, right_depth = kLanes;
    static constexpr int result_row = kStripPitch, result_vector = kLanes;
};
struct KeyGradientShape {  // rows transposed x their scores, into a panel of keys
    static constexpr int left_row = 1, left_depth = kDim, right_vector = kLanes, right_depth = kPitch;
    static constexpr int result_row = kLanes, result_vector = kDim * kLanes;
};
struct RowGradientShape {  // scores x rows of keys
    static constexpr int left_row = kPitch, left_depth = 1, right_vector = kLanes, right_depth = kDim;
    static constexpr int result_row = kDim, result_vector = kLanes;
};
struct StripRowShape {  // strip x rows of position keys
    static constexpr int left_row = kStripPitch, left_depth = 1, right_vector = kLanes, right_depth = kDim;
    static constexpr int result_row = kDim, result_vector = kLanes;
};
struct StripTableShape {  // strip transposed x rows of queries
    static constexpr int left_row = 1, left_depth = kStripPitch, right_vector = kLanes, right_depth = kDim;
    static constexpr int result_row = kDim, result_vector = kLanes;
};

template <class Shape, Result how>
inline void multiply(const float* left, int rows, const float* right, int vectors, float* result, int depth) {
    product<Shape, config::micro_rows, config::micro_vectors, how>(left, rows, right, vectors, result, depth);
}

inline void clear(float* to, int floats) {
    for (int n = 0; n < floats; ++n) to[n] = 0;
}

inline void add_row(float* to, const float* from) {
    for (int d = 0; d < kDim; ++d) to[d] += from[d];
}

inline float dot(const float* a, const float* b) {
    Vec sum = Vec{};
    for (int d = 0; d < kDim; d += kLanes) sum += load(a + d) * load(b + d);
    return sum_of(sum);
}

// Parts of the scratch memory, in the order and of the sizes of HostBackwardLayout::bytes.
struct ScratchMemory {
    explicit ScratchMemory(float* next) {
        const auto take = [&](int floats) {
            float* part = next;
            next += floats;
            return part;
        };
        keys_ = take(kLayout.keys());
        far_keys_ = take(kLayout.keys());
        key_rows_ = take(kLayout.keys());
        values_ = take(kLayout.keys());
        dk_ = take(kLayout.keys());
        dv_ = take(kLayout.keys());
        queries_ = take(kLayout.query_tile());
        dout_ = take(kLayout.query_tile());
        weights_ = take(kLayout.scores());
        d_scores_ = take(kLayout.scores());
        content_ = take(kLayout.content_positions());
        d_content_ = take(kLayout.content_positions());
        position_panel_ = take(kLayout.position_rows());
        position_rows_ = take(kLayout.position_rows());
        d_position_rows_ = take(kLayout.position_rows());
        chunk_rows_ = take(kLayout.chunk_rows());
        d_chunk_rows_ = take(kLayout.chunk_rows());
        strip_ = take(kLayout.strip());
        d_strip_ = take(kLayout.strip());
        ranks_ = reinterpret_cast<int*>(take(kLayout.ranks()));
        first_of_rank_ = reinterpret_cast<int*>(take(kLayout.ranks()));
        slots_ = reinterpret_cast<int*>(take(kLayout.ring()));
        key_bias_ = take(kBlockM);
        offset_ = take(kBlockN);
        delta_tile_ = take(kBlockN);
        hidden_sum_ = take(kDim);
    }

    float *keys_, *far_keys_, *values_, *dk_, *dv_;  // [vector][head_dim][lane]
    float* key_rows_;                                // [key][head_dim]
    float *queries_, *dout_;                         // [query][head_dim]
    float *weights_, *d_scores_;                     // [query][key]
    float *content_, *d_content_;                    // C, dC [rank in the ring][key]
    float* position_panel_;                          // [rank in the ring / lanes][head_dim][lane]
    float *position_rows_, *d_position_rows_;        // [rank in the ring][head_dim]
    float *chunk_rows_, *d_chunk_rows_;              // [rank of the chunk][head_dim]
    float *strip_, *d_strip_;                        // T, dT [query of the chunk][rank - base]
    int *ranks_, *first_of_rank_;                    // [distance of the window], [rank - that of the window]
    int* slots_;                                     // [rank in the ring]
    float *key_bias_, *offset_, *delta_tile_, *hidden_sum_;
};

}  // namespace
