// Rows of head_dim 16-bit elements in shared memory, in 16-byte chunks swizzled by row, for ldmatrix.
// needs: common/types.cuh, common/math.cuh, common/async_copy.cuh, config

constexpr int row_bytes = 2 * head_dim;
constexpr int row_chunks = head_dim / 8;  // 16 bytes each
constexpr int dim_steps = head_dim / 16;  // k steps of the products over head_dim

static_assert(dtype == dtype_f16 || dtype == dtype_bf16, "mma.sync m16n8k16 takes 16-bit elements");
static_assert(head_dim == 32 || head_dim == 64 || head_dim == 128, "head_dim must be 32, 64 or 128");

// Byte offset of a 16-byte chunk in a tile of head_dim-wide rows, such that 8 rows of one chunk column fill all banks.
__device__ __forceinline__ u32 swizzled(int row, int chunk) {
    const int turn = head_dim == 32 ? (row >> 1) & 3 : row & 7;
    return u32(row * row_bytes + ((chunk ^ turn) << 4));
}

// Eight elements from global to shared memory; zeros when not valid.
__device__ __forceinline__ void copy_chunk(u32 to, const u16* from, bool valid) {
    if constexpr (aligned) {
        copy_async16(to, from, valid);
    } else {
        u32 word[4] = {0, 0, 0, 0};
        if (valid)
            for (int i = 0; i < 4; ++i) word[i] = u32(from[2 * i]) | u32(from[2 * i + 1]) << 16;
        store_shared16(to, {word[0], word[1], word[2], word[3]});
    }
}

__device__ __forceinline__ u32 load_pair(const u16* from) {
    if constexpr (aligned) return *reinterpret_cast<const u32*>(from);
    return u32(from[0]) | u32(from[1]) << 16;
}

// fp16 saturates instead of turning into infinity.
__device__ __forceinline__ u32 pack_operand(float low, float high) {
    if constexpr (dtype == dtype_f16) {
        low = fminf(fmaxf(low, -65504.0f), 65504.0f);
        high = fminf(fmaxf(high, -65504.0f), 65504.0f);
    }
    return pack2<dtype>(low, high);
}

// Where a lane's row and chunk of a block of 16 rows lie, for ldmatrix. Bases of blocks are multiples of 8 rows.
struct BlockOffsets {
    u32 row, turn;

    __device__ __forceinline__ BlockOffsets(int row_in_block, int chunk)
        : row(row_in_block * row_bytes), turn(swizzled(row_in_block, chunk) - row_in_block * row_bytes) {}
    // `step`: which 16 of the head_dim columns.
    __device__ __forceinline__ u32 address(u32 base, int step) const { return base + row + (turn ^ (step << 5)); }
};
