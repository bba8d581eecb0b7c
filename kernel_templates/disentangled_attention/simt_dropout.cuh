// Dropout of a tile of weights in shared memory: a word per patch of 32 elements, each computed once by one thread.
// needs: common/types.cuh, common/philox.h, disentangled_attention/params.h, disentangled_attention/dropout.h,
// config: threads

template <int rows>
constexpr int dropped_words = rows / 2 * 4;  // row groups times column groups of 64 columns

// Fills the words of query rows row0 .. row0 + rows - 1 (row0 a multiple of 16) and the 64 keys about `key0`.
template <int rows>
__device__ __forceinline__ void load_dropped(const DropoutParams& p, u32* words, u32 batch_head, int row0, int key0) {
    for (int n = int(threadIdx.x); n < dropped_words<rows>; n += threads)
        words[n] = dropped_patch(p, batch_head, row0 / 2 + n / 4, (key0 >> 6) * 4 + n % 4);
}

// `row` within the tile, `key` within the sequence.
__device__ __forceinline__ bool dropped_in_tile(const u32* words, int row, int key) {
    const DropoutPatch patch = dropout_patch(row, key);
    return words[patch.row_group * 4 + (patch.column_group & 3)] >> patch.bit & 1u;
}
