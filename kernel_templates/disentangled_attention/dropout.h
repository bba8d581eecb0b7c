// Which attention weights are dropped: a function of (seed, offset, batch * heads + head, row, column) alone, whatever
// the tile shape. The same text on the GPU and on the host.
// needs: common/philox.h, disentangled_attention/params.h
//
// A patch is 32 elements, those that one thread holds of a 16 x 64 accumulator of mma or wgmma:
//   rows 16R + g + 8h (h 0 to 1), columns 64C + 8n + 2c + b (n 0 to 7, b 0 to 1)
// of row group 8R + g and column group 4C + c. Element (h, n, b) is bit 16b + 8h + n of a word, so that the two elements
// of a packed pair are 16 bits apart.
//
// An element is dropped when its number is below p. The number's first eight bits are bit planes of 32 elements, the most
// significant first. One run of Philox serves the patches of two neighbouring C: an even one has the words x y z w after
// 10 rounds, as Philox4x32-10 has them, then those after 8; an odd one goes on and has those after 14 and 12. What two
// rounds make of a word is too intricate to be told from independent.
// Whether an element whose eight bits equal those of p is dropped is decided for its whole patch at once, by a number of
// 32 bits: so p counts to 40 bits, and two elements of a patch depend on each other where both tie, 1 in 65536.
#pragma once

struct DropoutPatch {
    int row_group, column_group, bit;
};

PHILOX_INLINE DropoutPatch dropout_patch(int row, int column) {
    return {(row >> 4) * 8 + (row & 7), (column >> 6) * 4 + ((column >> 1) & 3),
            (column & 1) * 16 + ((row >> 3) & 1) * 8 + ((column >> 3) & 7)};
}

// The patch of the words after some rounds and after two more. Bit set: dropped.
PHILOX_INLINE unsigned dropped_bits(const DropoutParams& p, const Philox4& early, const Philox4& late) {
    const unsigned planes[8] = {late.x, late.y, late.z, late.w, early.x, early.y, early.z, early.w};
    // The product's upper bits depend on all bits of the word, and hardly on any one.
    unsigned below = late.x * 0x9e3779b1u < p.fraction ? ~0u : 0u;
    // From the least significant bit up: where bits differ the threshold's 1 decides.
#ifdef __CUDACC_RTC__
#pragma unroll
#endif
    for (int i = 7; i >= 0; --i) below = (~planes[i] & below) | (p.threshold[i] & (~planes[i] | below));
    return below;
}

// The counter of the patches of column groups 8C + c and 8C + 4 + c.
PHILOX_INLINE Philox4 dropout_counter(const DropoutParams& p, unsigned batch_head, int row_group, int column_group) {
    return {unsigned((column_group >> 3) * 4 + (column_group & 3)), unsigned(row_group), batch_head, p.offset};
}

// Both of its patches. `State`: how philox_advance is to work.
template <class State>
PHILOX_INLINE void dropped_patches(const DropoutParams& p, unsigned batch_head, int row_group, int column_group,
                                   unsigned& even, unsigned& odd) {
    State early(dropout_counter(p, batch_head, row_group, column_group));
    philox_advance<0, 8>(early, p.keys);
    State late = early;
    philox_advance<8, 10>(late, p.keys);
    even = dropped_bits(p, early, late);
    early = late;
    philox_advance<10, 12>(early, p.keys);
    late = early;
    philox_advance<12, 14>(late, p.keys);
    odd = dropped_bits(p, early, late);
}

// One of them: that of an odd group of 64 columns, or of an even one.
template <bool odd>
PHILOX_INLINE unsigned dropped_patch_of(const DropoutParams& p, unsigned batch_head, int row_group, int column_group) {
    constexpr int last = odd ? 14 : 10;
    Philox4 early = dropout_counter(p, batch_head, row_group, column_group);
    philox_advance<0, last - 2>(early, p.keys);
    Philox4 late = early;
    philox_advance<last - 2, last>(late, p.keys);
    return dropped_bits(p, early, late);
}

PHILOX_INLINE unsigned dropped_patch(const DropoutParams& p, unsigned batch_head, int row_group, int column_group) {
    return column_group & 4 ? dropped_patch_of<true>(p, batch_head, row_group, column_group)
                            : dropped_patch_of<false>(p, batch_head, row_group, column_group);
}

PHILOX_INLINE bool is_dropped(const DropoutParams& p, unsigned batch_head, int row, int column) {
    const DropoutPatch patch = dropout_patch(row, column);
    return dropped_patch(p, batch_head, patch.row_group, patch.column_group) >> patch.bit & 1u;
}
