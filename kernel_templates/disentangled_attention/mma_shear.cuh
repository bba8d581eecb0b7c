// The shear between distances and columns of a 16-row accumulator, within registers.
//
// Row r (0 to 15) of a near tile has its pair of distance t (0 to 30 in 16 columns) at column x = t + r - 15. Columns
// and distances are in accumulator order (position 2c + b of a group of 8 is index c + 4b), so that index 4u + c of a
// row lies in lane c of the row's four lanes, and a packed word holds the indices c and c + 4 of a group: a shift by s
// is a byte permutation of two words, chosen by lane, and one shuffle, for two elements. needs: common/types.cuh

struct Shear {
    u32 gather_select, scatter_select;  // of __byte_perm
    int gather_lane, scatter_lane;

    // `row`: index within its group of 8 of this lane's accumulator row.
    __device__ __forceinline__ Shear(int lane, int row) {
        const int shift = 7 - row, by = shift & 3, c = lane & 3;
        const int ahead = (shift >> 2) + (c < by), behind = (shift >> 2) + (c >= 4 - by);
        gather_select = ahead == 0 ? 0x3210 : ahead == 1 ? 0x5432 : 0x7654;
        scatter_select = behind == 0 ? 0x7654 : behind == 1 ? 0x5432 : 0x3210;
        gather_lane = (lane & ~3) | ((c + by) & 3);
        scatter_lane = (lane & ~3) | ((c - by) & 3);
    }
    // Columns 8n .. 8n + 7 from distances 8m .. 8m + 15: m = n + 1 for rows 0 to 7, m = n for rows 8 to 15.
    __device__ __forceinline__ u32 gather(u32 first, u32 second) const {
        return __shfl_sync(0xffffffffu, __byte_perm(first, second, gather_select), gather_lane);
    }
    // Distances 8m .. 8m + 7 from columns 8n - 8 .. 8n + 7: n = m - 1 for rows 0 to 7, n = m for rows 8 to 15.
    __device__ __forceinline__ u32 scatter(u32 first, u32 second) const {
        return __shfl_sync(0xffffffffu, __byte_perm(first, second, scatter_select), scatter_lane);
    }
};

// Moves 16 columns at a time, in ascending order, from columns to distances: an A operand of 16 distances.
struct ScatterCarry {
    u32 top[2], bottom;  // rows 0 to 7: the last two groups of 8 columns; rows 8 to 15: the last one

    __device__ __forceinline__ void clear() { top[0] = top[1] = bottom = 0; }
    // columns: {rows 0-7 group 0, rows 8-15 group 0, rows 0-7 group 1, rows 8-15 group 1}, as an A operand.
    __device__ __forceinline__ void next(u32 (&distances)[4], const u32 (&columns)[4], const Shear& shear) {
        distances[0] = shear.scatter(top[0], top[1]);
        distances[1] = shear.scatter(bottom, columns[1]);
        distances[2] = shear.scatter(top[1], columns[0]);
        distances[3] = shear.scatter(columns[1], columns[3]);
        top[0] = columns[0], top[1] = columns[2], bottom = columns[3];
    }
};

// fp16 pairs; saturates.
__device__ __forceinline__ u32 pack_scores(float low, float high) {
    u32 packed;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

// c [16, 8] += a [16, 8] * b [8, 8], fp16 operands: a0 (g, 2c..), a1 (g+8, 2c..), b (2c.., g).
__device__ __forceinline__ void multiply_half_step(float (&c)[4], u32 a0, u32 a1, u32 b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}
