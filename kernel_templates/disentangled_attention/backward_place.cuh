// Where the tensors and tables of one head of one sequence lie, for backward kernels whose blocks hold queries or keys.
// needs: common/types.cuh, disentangled_attention/params.h, config: packed, own_keys

// A head of a sequence.
struct Place {
    int batch, head, length;
    s64 first;     // packed: row at which the sequence starts
    s64 position;  // of row 0 in lse and Delta
    __device__ __forceinline__ s64 offset(s64 batch_stride, s64 row, s64 head_stride) const {
        return (packed ? first * row : batch * batch_stride) + head * head_stride;
    }
};

__device__ __forceinline__ Place place_of(const BackwardParams& p, int batch, int head) {
    Place place{batch, head, p.length, 0, (s64(batch) * p.heads + head) * p.length};
    if constexpr (packed) {
        place.first = p.cu_seqlens[batch];
        place.length = p.cu_seqlens[batch + 1] - int(place.first);
        place.position = head * p.tokens + place.first;
    }
    return place;
}

struct Rows {
    const void* tensor;
    s64 base, row;
};

// The tensors of queries (q, dO) and of keys (k, v).
struct Sides {
    Rows q, dout, k, v;
};

__device__ __forceinline__ Sides sides_of(const BackwardParams& p, const Place& at) {
    return {{p.q, at.offset(p.q_batch, p.q_row, p.q_head), p.q_row},
            {p.dout, at.offset(p.dout_batch, p.dout_row, p.dout_head), p.dout_row},
            {p.k, at.offset(p.k_batch, p.k_row, p.k_head), p.k_row},
            {p.v, at.offset(p.v_batch, p.v_row, p.v_head), p.v_row}};
}

// The tables T1 and T2 of a head.
__device__ __forceinline__ Rows table_of(const BackwardParams& p, int head, bool first) {
    if (first != own_keys) return {p.position_key, head * p.position_key_head, p.position_key_row};
    return {p.position_query, head * p.position_query_head, p.position_query_row};
}
