// The dropout mask for vectors of attention weights on the host: dropout.h by blocks of 16 rows x 64 columns.

#include "common/host_vector.h"
#include "common/philox.h"
#include "disentangled_attention/params.h"
// After what it needs.
#include "disentangled_attention/dropout.h"

// The 32 patches of a block; place(row group, column pair) is where each goes. Branch-free and independent: the compiler
// computes sixteen at once.
template <bool odd, class Place>
void draw_patches(const DropoutParams& p, unsigned batch_head, int row, int column, Place place) {
    unsigned words[32];
    for (int n = 0; n < 32; ++n)
        words[n] = dropped_patch_of<odd>(p, batch_head, row / 16 * 8 + n % 8, column / 64 * 4 + n / 8);
    for (int n = 0; n < 32; ++n) place(n % 8, n / 8) = words[n];
}

template <class Place>
void draw_block(const DropoutParams& p, unsigned batch_head, int row, int column, Place place) {
    if (column / 64 % 2)
        draw_patches<true>(p, batch_head, row, column, place);
    else
        draw_patches<false>(p, batch_head, row, column, place);
}

// The patches of a block, spread so that a vector of columns loads the words of its lanes.
struct DroppedColumns {
    unsigned across[8][16];

    void fill(const DropoutParams& p, unsigned batch_head, int row, int column) {
        unsigned words[32];
        draw_block(p, batch_head, row, column, [&](int group, int c) -> unsigned& { return words[group * 4 + c]; });
        for (int group = 0; group < 8; ++group)
            for (int lane = 0; lane < 16; ++lane) across[group][lane] = words[group * 4 + lane / 2 % 4];
    }

    // For the columns column, column + 1, ... of one row.
    VecInt dropped(int row, int column) const {
        const VecInt words = load(reinterpret_cast<const int*>(across[row & 7]) + (column & 15));
        const VecInt j = lane_numbers() + column;
        return (words >> ((j & 1) * 16 + (row & 8) + (j >> 3 & 7)) & 1) != 0;
    }
};

// The same for vectors of rows.
struct DroppedRows {
    unsigned down[4][16];

    void fill(const DropoutParams& p, unsigned batch_head, int row, int column) {
        unsigned words[32];
        draw_block(p, batch_head, row, column, [&](int group, int c) -> unsigned& { return words[c * 8 + group]; });
        for (int group = 0; group < 4; ++group)
            for (int lane = 0; lane < 16; ++lane) down[group][lane] = words[group * 8 + lane % 8];
    }

    // For the rows row, row + 1, ... of one column.
    VecInt dropped(int row, int column) const {
        const VecInt words = load(reinterpret_cast<const int*>(down[column >> 1 & 3]) + (row & 15));
        const VecInt i = lane_numbers() + row;
        return (words >> ((column & 1) * 16 + (i & 8) + (column >> 3 & 7)) & 1) != 0;
    }
};
