// Warp-level matrix instructions (sm_80 and newer): ldmatrix, and mma.sync with fp32 accumulators, m16n8k16 for 16-bit
// elements and m16n8k8 for tf32. With g = lane / 4 and c = lane % 4, a thread holds
//   A [16, 16]: a0 (g, 2c..2c+1), a1 (g+8, 2c..), a2 (g, 2c+8..), a3 (g+8, 2c+8..)
//   B [16, 8]:  b0 (2c..2c+1, g), b1 (2c+8.., g)
//   C [16, 8]:  c0 c1 (g, 2c..2c+1), c2 c3 (g+8, 2c..2c+1)
// and of tf32
//   A [16, 8]:  a0 (g, c), a1 (g+8, c), a2 (g, c+4), a3 (g+8, c+4)
//   B [8, 8]:   b0 (c, g), b1 (c+4, g)
// In 32-bit words along k the fragments of both are the same, and so are their loads by ldmatrix.
// needs: common/types.cuh, common/math.cuh

// Four 8x8 matrices of 16-bit elements, or 8x4 of 32-bit ones; lanes 8q .. 8q+7 give the addresses of the rows of
// matrix q.
__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

// An 8x8 matrix, of which a thread holds (g, 2c..2c+1), transposed.
__device__ __forceinline__ u32 transpose_matrix(u32 word) {
    u32 result;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(word));
    return result;
}

// An fp32 value for an operand of multiply<dtype_f32>, which reads all but the lowest 13 bits. The factor makes of the
// cut a rounding: the result is within 2^-10.6 of the value (nearest: 2^-11), those with 11 significant bits stay what
// they are, so do infinities and NaN, and finite magnitudes from 3.4015e38 on become infinite. cvt.rna.tf32.f32 takes
// three instructions; half a unit added to the bits would turn the NaN that arithmetic makes, 0x7fffffff, into zero.
__device__ __forceinline__ u32 round_tf32(u32 bits) {
    return __float_as_uint(__uint_as_float(bits) * (1.0f + 0x1.8p-12f));
}

// c += a * b; with dtype_f32 in tf32.
template <int type>
__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if constexpr (type == dtype_f16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else if constexpr (type == dtype_f32)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
