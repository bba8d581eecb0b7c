// Scratch memory of one thread of the host kernel. Included by the template and by the runtime, which must agree on
// its size, so it uses built-in types only.
#pragma once

struct HostLayout {
    // Position rows are prepared, and keys meet them, in chunks of this many: no vector is longer.
    static constexpr int chunk = 16;

    int head_dim, block_m, block_n;

    // Distinct position rows alive at once: those of a tile's block_m + block_n - 1 distances, rounded outwards to
    // chunks. A power of two, for the ring.
    constexpr int ring() const {
        int rows = chunk;
        while (rows < block_m + block_n + 2 * chunk) rows *= 2;
        return rows;
    }
    // One key's products with the position queries of its distances; a vector may be read past the last.
    constexpr int strip_pitch() const { return block_m + 4 * chunk; }

    // Floats, each part a multiple of 16.
    constexpr int queries() const { return block_m * head_dim; }
    constexpr int key_tile() const { return block_n * head_dim; }
    constexpr int scores() const { return block_m * block_n; }
    constexpr int content_positions() const { return block_m * ring(); }
    constexpr int position_queries() const { return head_dim * ring(); }
    constexpr int position_rows() const { return chunk * head_dim; }
    constexpr int strip() const { return chunk * strip_pitch(); }
    constexpr int ranks() const { return block_m + block_n + chunk; }

    constexpr long long bytes() const {
        const long long floats = 3LL * queries() + 2LL * key_tile() + scores() + content_positions() +
                                 position_queries() + position_rows() + strip() + ranks() + 4LL * block_m +
                                 2LL * block_n + head_dim;
        return 4 * floats;
    }
};
