// Which attention weights are dropped: a function of (seed, offset, batch * heads + head, row, column) alone, whatever
// the tile shape. The same text on the GPU and on the host.
// needs: common/philox.h, disentangled_attention/params.h
//
// One Philox call serves a patch of 32 elements, those that one thread holds of a 16 x 64 accumulator of mma or wgmma:
//   rows 16R + g + 8h (h 0 to 1), columns 64C + 8n + 2c + b (n 0 to 7, b 0 to 1)
// of row group 8R + g and column group 4C + c. Element (h, n, b) is bit 16b + 8h + n of a word, so that the two elements
// of a packed pair are 16 bits apart.
//
// An element is dropped when its 16-bit number is below round(p * 2^16). The numbers are bit planes of 32 elements, the
// most significant first. Planes 0 to 3 are the words of the call, w0 to w3. Plane 4 + i is w_i rotated by 7 xor w_i+1
// rotated by 19: a bit of each of two other elements, placed so that the first eight bits of any two elements of a patch
// are independent. Plane 8 + i is plane i rotated by 11, that is the bits of another element. So each number is uniform
// on 16 bits, and two elements are dependent only where the first eight bits tie with the threshold's (1 in 256).
#pragma once

struct DropoutPatch {
    int row_group, column_group, bit;
};

PHILOX_INLINE DropoutPatch dropout_patch(int row, int column) {
    return {(row >> 4) * 8 + (row & 7), (column >> 6) * 4 + ((column >> 1) & 3),
            (column & 1) * 16 + ((row >> 3) & 1) * 8 + ((column >> 3) & 7)};
}

PHILOX_INLINE unsigned rotated(unsigned word, int left) {
    return word << left | word >> (32 - left);
}

// Bit set: dropped.
PHILOX_INLINE unsigned dropped_patch(const DropoutParams& p, unsigned batch_head, int row_group, int column_group) {
    const Philox4 words = philox({unsigned(column_group), unsigned(row_group), batch_head, p.offset}, p.keys);
    const unsigned w[4] = {words.x, words.y, words.z, words.w};
    unsigned planes[8];
#ifdef __CUDACC_RTC__
#pragma unroll
#endif
    for (int i = 0; i < 4; ++i) {
        planes[i] = w[i];
        planes[4 + i] = rotated(w[i], 7) ^ rotated(w[(i + 1) % 4], 19);
    }
    // number < threshold, from the least significant bit up: where bits differ the threshold's 1 decides.
    unsigned below = 0;
#ifdef __CUDACC_RTC__
#pragma unroll
#endif
    for (int i = 15; i >= 0; --i) {
        const unsigned plane = i < 8 ? planes[i] : rotated(planes[i - 8], 11);
        below = (~plane & below) | (p.threshold[i] & (~plane | below));
    }
    return below;
}

PHILOX_INLINE bool is_dropped(const DropoutParams& p, unsigned batch_head, int row, int column) {
    const DropoutPatch patch = dropout_patch(row, column);
    return dropped_patch(p, batch_head, patch.row_group, patch.column_group) >> patch.bit & 1u;
}
