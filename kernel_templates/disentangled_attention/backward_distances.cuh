// The sums by distance that the position kernel leaves for the finish kernel.
//
// A block takes squares of `tiles` x `tiles` tiles (span x span pairs); a square's diagonal is its number along the
// queries less that along the keys. All squares of a head's near diagonals, listed by diagonal, then batch, then
// position, are cut into parts of the same size, one to a block: a function of the problem and the config alone, so
// that the order of every sum is fixed. A part that reaches into several diagonals leaves one piece for each: part p's
// piece of the diagonal with index d is number p + d of its head, which is unique because both only grow along the
// list.
//
// regions[3]  [heads][parts + diagonals - 1][2 tables: PK, PQ][2 * span][head_dim] fp32
//   Row x (0 to 2 * span - 2) of a piece is the sum over its squares of dS_ij q_i (PK) or dS_ij k_j (PQ) with
//   i - j = span * diagonal + x - (span - 1), without `scale`. The last row is not used.
// needs: backward_layout.cuh, config

constexpr int span = tiles * tile_rows;

struct DistanceParts {
    int squares;    // of the longest sequence, along one side
    int width;      // largest diagonal
    int diagonals;  // with index 0 for -width
    int batch;
    s64 items;
    s64 size;   // items of a part; the last one may have fewer
    int parts;  // of one head

    __device__ __forceinline__ explicit DistanceParts(const BackwardParams& p) : batch(p.batch) {
        squares = (tiles_of(p.length) + tiles - 1) / tiles;
        width = min((near_width(p) + tiles - 1) / tiles, squares - 1);
        diagonals = 2 * width + 1;
        items = first(diagonals);
        const int wanted = (position_blocks + p.heads - 1) / p.heads;
        size = (items + wanted - 1) / wanted;
        parts = int((items + size - 1) / size);
    }
    __device__ __forceinline__ int on_diagonal(int d) const { return squares - abs(d - width); }  // per sequence
    // The first item of diagonal d.
    __device__ __forceinline__ s64 first(int d) const {
        // Below the middle the diagonals grow by one each, above it they shrink.
        auto below = [&](s64 n) { return n * (squares - width) + n * (n - 1) / 2; };
        const s64 half = below(width + 1);
        return batch * (d <= width + 1 ? below(d) : half + below(width) - below(diagonals - d));
    }
    __device__ __forceinline__ s64 part_begin(int part) const { return part * size; }
    __device__ __forceinline__ s64 part_end(int part) const { return min((part + 1) * size, items); }
    __device__ __forceinline__ int part_of(s64 item) const { return int(item / size); }
    __device__ __forceinline__ float* piece(const BackwardParams& p, int head, int part, int d, int table) const {
        return region<float>(p, region_distances) +
               ((s64(head) * (parts + diagonals - 1) + part + d) * 2 + table) * (2 * span * head_dim);
    }
};
