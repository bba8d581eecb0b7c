// Which rows a block works on. Blocks are numbered batch-major, then head, then block of query rows, so that
// neighbours share K and V in L2.
// needs: common/types.cuh, disentangled_attention/params.h

struct Sequence {
    int batch, head;
    int row0;          // first query row of the block
    int length;        // rows of this sequence
    s64 q, k, v, out;  // element offset of row 0 of this head
    s64 lse;           // element offset of row 0
};

template <int rows, bool is_packed>
__device__ __forceinline__ Sequence locate(const ForwardParams& p) {
    const int row_blocks = (p.length + rows - 1) / rows;
    const int row_block = int(blockIdx.x) % row_blocks;
    const int batch_head = int(blockIdx.x) / row_blocks;
    Sequence s;
    s.head = batch_head % p.heads;
    s.batch = batch_head / p.heads;
    s.row0 = row_block * rows;
    s64 first = 0;  // packed: row of the whole tensor at which the sequence starts
    if constexpr (is_packed) {
        first = p.cu_seqlens[s.batch];
        s.length = p.cu_seqlens[s.batch + 1] - int(first);
        s.q = first * p.q_row, s.k = first * p.k_row, s.v = first * p.v_row, s.out = first * p.out_row;
        s.lse = s.head * p.tokens + first;
    } else {
        s.length = p.length;
        s.q = s.batch * p.q_batch, s.k = s.batch * p.k_batch, s.v = s.batch * p.v_batch, s.out = s.batch * p.out_batch;
        s.lse = s64(batch_head) * p.length;
    }
    s.q += s.head * p.q_head, s.k += s.head * p.k_head, s.v += s.head * p.v_head, s.out += s.head * p.out_head;
    return s;
}

// Slot of distance delta = i - j.
template <class Params>
__device__ __forceinline__ int slot_of(const Params& p, int delta) {
    return p.slots[min(max(delta, -p.band), p.band) + p.band];
}

// The key tiles of a query block by distance. Tiles [begin, near_begin): every delta >= band; [near_begin, near_end):
// mixed; [near_end, end): every delta <= -band.
struct KeyTiles {
    int begin, near_begin, near_end, end;
};

template <int block_rows, int block_keys, bool has_bias>
__device__ __forceinline__ KeyTiles key_tiles(const ForwardParams& p, int row0, int first_key, int key_count) {
    KeyTiles t;
    t.begin = first_key / block_keys;
    t.end = (key_count + block_keys - 1) / block_keys;
    if constexpr (has_bias) {
        // far on the high side: row0 - (j0 + block_keys - 1) >= band
        const int high = row0 - p.band + 1;
        t.near_begin = min(max(high > 0 ? high / block_keys : 0, t.begin), t.end);
        // far on the low side: row0 + block_rows - 1 - j0 <= -band
        const int low = row0 + block_rows - 1 + p.band;
        t.near_end = max(min((low + block_keys - 1) / block_keys, t.end), t.near_begin);
    } else {
        t.near_begin = t.near_end = t.end;
    }
    return t;
}
