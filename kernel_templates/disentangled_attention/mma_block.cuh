// Where a lane's row and chunk of a block of 16 rows lie, for ldmatrix. Bases of blocks are multiples of 8 rows.
// needs: mma_rows.cuh

struct BlockOffsets {
    u32 row, turn;

    __device__ __forceinline__ BlockOffsets(int row_in_block, int chunk)
        : row(row_in_block * row_bytes), turn(swizzled(row_in_block, chunk) - row_in_block * row_bytes) {}
    // `step`: which 32 bytes of the rows.
    __device__ __forceinline__ u32 address(u32 base, int step) const { return base + row + (turn ^ (step << 5)); }
};
