// The squares of a part of the distance sums, in order.
// needs: backward_distances.cuh

struct Square {
    int batch, query, key;  // numbers of the square along the queries and the keys
};

// The items of a part that exist: sequences of a packed batch are shorter than the longest.
struct Cursor {
    const BackwardParams& p;
    const DistanceParts& list;
    s64 left;       // items from here on
    int d;          // index of the diagonal
    int n, length;  // place on the diagonal of the sequence, and its size
    int batch;
    Square square;

    __device__ __forceinline__ Cursor(const BackwardParams& p_, const DistanceParts& list_, int part)
        : p(p_), list(list_), left(list.part_end(part) - list.part_begin(part)), d(0) {
        const s64 item = list.part_begin(part);
        while (list.first(d + 1) <= item) ++d;
        length = list.on_diagonal(d);
        batch = int(item - list.first(d)) / length, n = int(item - list.first(d)) % length;
    }
    __device__ __forceinline__ void next() {
        --left;
        if (++n < length) return;
        n = 0;
        if (++batch < list.batch) return;
        batch = 0;
        length = list.on_diagonal(++d);
    }
    // Moves on to the first existing item from here; false at the end.
    __device__ __forceinline__ bool find() {
        for (; left > 0; next()) {
            const int diagonal = d - list.width;
            square = {batch, n + max(diagonal, 0), n + max(-diagonal, 0)};
            const int rows = packed ? p.cu_seqlens[batch + 1] - p.cu_seqlens[batch] : p.length;
            if (max(square.query, square.key) * span < rows) return true;
        }
        return false;
    }
};
