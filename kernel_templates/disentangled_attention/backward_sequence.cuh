// Where the rows of one head of one sequence lie, and which of its tiles are near, for the backward kernels.
// needs: backward_layout.cuh

struct HeadRows {
    int batch, head, length;
    s64 first;       // packed: row of the tensors at which the sequence starts
    s64 statistics;  // index of its first row in a plane of row statistics, and in lse
    s64 tiles;       // tile_base()

    __device__ __forceinline__ HeadRows(const BackwardParams& p, int batch_, int head_) : batch(batch_), head(head_) {
        length = p.length, first = 0;
        statistics = (s64(batch) * p.heads + head) * p.length;
        if constexpr (packed) {
            first = p.cu_seqlens[batch];
            length = p.cu_seqlens[batch + 1] - int(first);
            statistics = head * p.tokens + first;
        }
        tiles = tile_base(p, batch, head);
    }
    // Element offset of row 0.
    __device__ __forceinline__ s64 offset(s64 batch_stride, s64 row_stride, s64 head_stride) const {
        return (packed ? first * row_stride : batch * batch_stride) + head * head_stride;
    }
};

__device__ __forceinline__ int slot_at(const BackwardParams& p, int delta) {
    return p.slots[min(max(delta, -p.band), p.band) + p.band];
}

// Near tiles [begin, end) of tile `tile` of one kind among the `count` tiles of the other kind.
struct NearRange {
    int begin, end;

    __device__ __forceinline__ NearRange(const BackwardParams& p, int tile, int count) {
        begin = end = 0;
        if constexpr (c2p || p2c) {
            begin = max(tile - near_width(p), 0);
            end = min(tile + near_width(p) + 1, count);
        }
    }
};
