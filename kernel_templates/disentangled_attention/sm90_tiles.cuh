// Tiles in shared memory as wgmma operands: rows of head_dim elements, swizzled by 128 or 64 bytes (head_dim 128: two
// panels). Chunks of 64 distances of the expanded position tables; places in rings of buffers.
// needs: common/types.cuh, common/math.cuh, common/wgmma.cuh, config

constexpr int row_chunks = head_dim / 8;  // of 16 bytes
constexpr int panel_chunks = row_chunks < 8 ? row_chunks : 8;
constexpr int row_bytes = 16 * panel_chunks;
constexpr int dim_steps = head_dim / 16;

static_assert(dtype == dtype_f16 || dtype == dtype_bf16, "wgmma here takes 16-bit elements");
static_assert(head_dim == 32 || head_dim == 64 || head_dim == 128, "head_dim must be 32, 64 or 128");

constexpr u32 operand_high = descriptor_high(8 * row_bytes, row_bytes == 128 ? 1 : 2);

// Address of a 16-byte chunk in a swizzled tile of `rows` rows.
template <int rows>
__device__ __forceinline__ u32 chunk_address(u32 tile, int row, int chunk) {
    const int turn = row_bytes == 128 ? row & 7 : (row >> 1) & 3;
    return tile + chunk / panel_chunks * (rows * row_bytes) + row * row_bytes + ((chunk % panel_chunks ^ turn) << 4);
}

// Descriptor of B = 16 elements of head_dim (from 16 * step) x all rows of a tile of `rows` rows at `tile`, in units of
// 16 bytes.
template <int rows>
__device__ __forceinline__ u32 key_operand(u32 tile, int step) {
    constexpr int panel_steps = panel_chunks / 2;
    return descriptor_low(tile + (step / panel_steps * (rows * row_bytes) + step % panel_steps * 32) / 16, 16);
}

// Descriptor of B = 16 rows (from 16 * step) x head_dim of a tile of `rows` rows.
template <int rows>
__device__ __forceinline__ u32 value_operand(u32 tile, int step) {
    return descriptor_low(tile + step * row_bytes, rows * row_bytes);
}

// Chunk e of the expanded tables holds the distances 64e .. 64e + 63. Chunks below first and above last repeat those.
__device__ __forceinline__ int first_chunk(int band) {
    return -((band + 126) / 64);
}
__device__ __forceinline__ int last_chunk(int band) {
    return (band + 63) / 64;
}

// Position in a ring of `depth` buffers, with the parity of its current round.
template <int depth>
struct RingPosition {
    int slot = 0;
    u32 parity = 0;

    __device__ __forceinline__ void advance() {
        if (++slot == depth) slot = 0, parity ^= 1;
    }
    __device__ __forceinline__ RingPosition ahead(int by) const {  // by <= depth
        RingPosition r = *this;
        r.slot += by;
        if (r.slot >= depth) r.slot -= depth, r.parity ^= 1;
        return r;
    }
    __device__ __forceinline__ RingPosition behind() const {
        RingPosition r = *this;
        if (--r.slot < 0) r.slot = depth - 1, r.parity ^= 1;
        return r;
    }
};
