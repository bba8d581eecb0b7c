// Which attention weights are dropped: a function of (seed, offset, batch * heads + head, row, column) alone, whatever
// the tile shape. The same text on the GPU and on the host.
// needs: common/philox.h, disentangled_attention/params.h
//
// Two Philox calls serve a patch of 32 elements, those that one thread holds of a 16 x 64 accumulator of mma or wgmma:
//   rows 16R + g + 8h (h 0 to 1), columns 64C + 8n + 2c + b (n 0 to 7, b 0 to 1)
// of row group 8R + g and column group 4C + c. Element (h, n, b) is bit 16b + 8h + n of a word, so that the two elements
// of a packed pair are 16 bits apart.
//
// An element is dropped when its 16-bit number is below round(p * 2^16). The numbers are bit planes of 32 elements, the
// most significant first: planes 0 to 7 are the eight words of the two calls, plane 8 + i is plane i rotated by 11, that
// is the bits of another element. So each number is uniform on 16 bits, and two elements are dependent only where the
// first eight bits tie (1 in 256).
#pragma once

struct DropoutPatch {
    int row_group, column_group, bit;
};

PHILOX_INLINE DropoutPatch dropout_patch(int row, int column) {
    return {(row >> 4) * 8 + (row & 7), (column >> 6) * 4 + ((column >> 1) & 3),
            (column & 1) * 16 + ((row >> 3) & 1) * 8 + ((column >> 3) & 7)};
}

// Bit set: dropped.
PHILOX_INLINE unsigned dropped_patch(const DropoutParams& p, unsigned batch_head, int row_group, int column_group) {
    unsigned planes[8];
#ifdef __CUDACC_RTC__
#pragma unroll
#endif
    for (int call = 0; call < 2; ++call) {
        const Philox4 words =
            philox({unsigned(column_group) * 2 + unsigned(call), unsigned(row_group), batch_head, p.offset}, p.keys);
        planes[4 * call] = words.x, planes[4 * call + 1] = words.y;
        planes[4 * call + 2] = words.z, planes[4 * call + 3] = words.w;
    }
    // number < threshold, from the least significant bit up: where bits differ the threshold's 1 decides.
    unsigned below = 0;
#ifdef __CUDACC_RTC__
#pragma unroll
#endif
    for (int i = 15; i >= 0; --i) {
        const unsigned plane = i < 8 ? planes[i] : (planes[i - 8] << 11 | planes[i - 8] >> 21);
        below = (~plane & below) | (p.threshold[i] & (~plane | below));
    }
    return below;
}

PHILOX_INLINE bool is_dropped(const DropoutParams& p, unsigned batch_head, int row, int column) {
    const DropoutPatch patch = dropout_patch(row, column);
    return dropped_patch(p, batch_head, patch.row_group, patch.column_group) >> patch.bit & 1u;
}
