// How the backward pass on the host divides its work, its workspace, and the scratch memory of one thread. Included by
// the templates and by the runtime, which must agree, so it uses built-in types only.
#pragma once

// A unit of work is a head, one of `groups` runs of consecutive sequences, and one of key_parts parts of the key blocks
// of every one of them. A unit sums its own dQ rows and its own gradients of the position tables; the finish kernel
// adds them up in order. None of this depends on how many threads there are.
struct HostBackwardDivision {
    static constexpr int most_tables = 8;  // of one head: groups * key_parts
    // A sequence's rows of the workspace are padded: tiles write whole chunks.
    static constexpr int padding_rows = 16;

    int key_parts, batch;

    constexpr int groups() const {
        const int most = most_tables / key_parts;
        return batch < most ? batch : most;
    }
    constexpr int units() const { return groups() * key_parts; }

    // Parts that a sequence of so many key blocks is divided into; part n has blocks first_block(n) to first_block(n +
    // 1).
    static constexpr int parts_of(int blocks, int key_parts) { return blocks < key_parts ? blocks : key_parts; }
    static constexpr int first_block(int blocks, int parts, int part) {
        return static_cast<int>(static_cast<long long>(blocks) * part / parts);
    }
};

// Regions of the workspace, as indices into BackwardParams::regions; all fp32.
struct HostBackwardRegions {
    static constexpr int delta = 0;             // [key_parts][heads][workspace rows]
    static constexpr int dq = 1;                // [key_parts][heads][workspace rows][head_dim]
    static constexpr int d_position_key = 2;    // [units][heads][2 * span][head_dim]
    static constexpr int d_position_query = 3;  // the same
};

struct HostBackwardLayout {
    // Position rows are prepared and retired, and queries meet them, in chunks of this many: no vector is longer.
    static constexpr int chunk = 16;

    int head_dim, block_m, block_n;  // block_m keys of a block, block_n queries of a tile

    // Distinct position rows alive at once, as in HostLayout.
    constexpr int ring() const {
        int rows = chunk;
        while (rows < block_m + block_n + 2 * chunk) rows *= 2;
        return rows;
    }
    // Floats between rows of scores: no power of two, which would crowd the columns into few sets of the cache.
    constexpr int score_pitch() const { return block_m + chunk; }
    // One query's products with the position keys of its distances; a vector may be read past the last.
    constexpr int strip_pitch() const { return block_m + 4 * chunk; }

    // Floats, each part a multiple of 16.
    constexpr int keys() const { return block_m * head_dim; }
    constexpr int query_tile() const { return block_n * head_dim; }
    constexpr int scores() const { return block_n * score_pitch(); }
    constexpr int content_positions() const { return ring() * score_pitch(); }
    constexpr int position_rows() const { return ring() * head_dim; }
    constexpr int chunk_rows() const { return chunk * head_dim; }
    constexpr int strip() const { return chunk * strip_pitch(); }
    constexpr int ranks() const { return block_m + block_n + 2 * chunk; }

    constexpr long long bytes() const {
        const long long floats = 6LL * keys() + 2LL * query_tile() + 2LL * scores() + 2LL * content_positions() +
                                 3LL * position_rows() + 2LL * chunk_rows() + 2LL * strip() + 2LL * ranks() + ring() +
                                 block_m + 2LL * block_n + head_dim;
        return 4 * floats;
    }
};
