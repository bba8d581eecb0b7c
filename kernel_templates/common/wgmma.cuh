// Warpgroup matrix instructions (sm_90a): D[64, n] (+)= A[64, 16] B[16, n], A in registers, B in shared memory, fp32
// accumulators. With g = lane / 4, c = lane % 4, warp w of the warpgroup holds
//   A: a[0] (16w+g, 2c..2c+1), a[1] (row+8), a[2] (columns+8), a[3] (row+8, columns+8)
//   D: d[4i + 2h + b] = (16w + g + 8h, 8i + 2c + b)
// A descriptor's low word holds address and leading offset, its high word stride and swizzle: PTX ISA, "Matrix
// descriptor". The high word is a constant inside the asm, which keeps one register free per operand.
// needs: common/types.cuh, common/math.cuh

__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most `pending` of the newest groups are unfinished. Pass the accumulators to settle() before use.
template <int pending>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Keeps the compiler from moving uses of registers across this point.
template <int count>
__device__ __forceinline__ void settle(float (&d)[count]) {
#pragma unroll
    for (int i = 0; i < count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Swizzle of 128-byte rows is 1, of 64-byte rows 2, none 0. `stride`: bytes between groups of 8 rows; without swizzle
// and transposed, between blocks of 8 columns (`leading`: between groups of 8 rows).
__device__ constexpr u32 descriptor_high(int stride, int swizzle) {
    return u32(stride >> 4) | u32(swizzle) << 30;
}

// `address`: of shared memory, in units of 16 bytes, so that offsets are plain sums. `leading`: bytes between column
// blocks of 64, of a B operand with its n dimension along the rows' elements.
__device__ __forceinline__ u32 descriptor_low(u32 address, int leading) {
    return address + (u32(leading >> 4) << 16);
}

#define WGMMA_N32(types)                                                                                              \
    asm volatile(                                                                                                     \
        "{\n.reg .b64 b;\n.reg .pred add;\nmov.b64 b, {%20, %21};\nsetp.ne.s32 add, %22, 0;\n"                        \
        "wgmma.mma_async.sync.aligned.m64n32k16.f32." types "." types                                                 \
        " {"                                                                                                          \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"                                        \
        "}, {%16, %17, %18, %19}, b, add, 1, 1, %23;\n}"                                                              \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])                    \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(high), "n"(int(accumulate)), "n"(int(transposed)))

#define WGMMA_N40(types)                                                                                              \
    asm volatile(                                                                                                     \
        "{\n.reg .b64 b;\n.reg .pred add;\nmov.b64 b, {%24, %25};\nsetp.ne.s32 add, %26, 0;\n"                        \
        "wgmma.mma_async.sync.aligned.m64n40k16.f32." types "." types                                                 \
        " {"                                                                                                          \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19"                    \
        "}, {%20, %21, %22, %23}, b, add, 1, 1, %27;\n}"                                                              \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),             \
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),                    \
          "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])                                             \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(high), "n"(int(accumulate)), "n"(int(transposed)))

#define WGMMA_N64(types)                                                                                              \
    asm volatile(                                                                                                     \
        "{\n.reg .b64 b;\n.reg .pred add;\nmov.b64 b, {%36, %37};\nsetp.ne.s32 add, %38, 0;\n"                        \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." types "." types                                                 \
        " {"                                                                                                          \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "   \
        "%23, %24, %25, %26, %27, %28, %29, %30, %31"                                                                 \
        "}, {%32, %33, %34, %35}, b, add, 1, 1, %39;\n}"                                                              \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),      \
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),     \
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])                   \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(high), "n"(int(accumulate)), "n"(int(transposed)))

#define WGMMA_N72(types)                                                                                              \
    asm volatile(                                                                                                     \
        "{\n.reg .b64 b;\n.reg .pred add;\nmov.b64 b, {%40, %41};\nsetp.ne.s32 add, %42, 0;\n"                        \
        "wgmma.mma_async.sync.aligned.m64n72k16.f32." types "." types                                                 \
        " {"                                                                                                          \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "             \
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35"                                   \
        "}, {%36, %37, %38, %39}, b, add, 1, 1, %43;\n}"                                                              \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),             \
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),                    \
          "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),                  \
          "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),                  \
          "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])                   \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(high), "n"(int(accumulate)), "n"(int(transposed)))

#define WGMMA_SHARED_N64(types)                                                                                       \
    asm volatile(                                                                                                     \
        "{\n.reg .b64 a, b;\n.reg .pred add;\nmov.b64 a, {%32, %34};\nmov.b64 b, {%33, %35};\n"                       \
        "setp.ne.s32 add, %36, 0;\n"                                                                                  \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." types "." types                                                 \
        " {"                                                                                                          \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "   \
        "%23, %24, %25, %26, %27, %28, %29, %30, %31"                                                                 \
        "}, a, b, add, 1, 1, %37, %38;\n}"                                                                            \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),      \
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),     \
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])                   \
        : "r"(a), "r"(b), "n"(a_high), "n"(b_high), "n"(int(accumulate)), "n"(int(a_transposed)),                     \
          "n"(int(b_transposed)))

#define WGMMA_N128(types)                                                                                             \
    asm volatile(                                                                                                     \
        "{\n.reg .b64 b;\n.reg .pred add;\nmov.b64 b, {%68, %69};\nsetp.ne.s32 add, %70, 0;\n"                        \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." types "." types                                                \
        " {"                                                                                                          \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "   \
        "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "   \
        "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"          \
        "}, {%64, %65, %66, %67}, b, add, 1, 1, %71;\n}"                                                              \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),      \
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),     \
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),     \
          "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),     \
          "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),     \
          "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),     \
          "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])                   \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(high), "n"(int(accumulate)), "n"(int(transposed)))

// `high`: descriptor_high of B; `accumulate`: add to d, else overwrite; `transposed`: B's rows are k, not n.
template <int type, u32 high, bool accumulate, bool transposed>
__device__ __forceinline__ void wgmma(float (&d)[16], const u32 (&a)[4], u32 b) {
    if constexpr (type == dtype_f16)
        WGMMA_N32("f16");
    else
        WGMMA_N32("bf16");
}

template <int type, u32 high, bool accumulate, bool transposed>
__device__ __forceinline__ void wgmma(float (&d)[20], const u32 (&a)[4], u32 b) {
    if constexpr (type == dtype_f16)
        WGMMA_N40("f16");
    else
        WGMMA_N40("bf16");
}

template <int type, u32 high, bool accumulate, bool transposed>
__device__ __forceinline__ void wgmma(float (&d)[32], const u32 (&a)[4], u32 b) {
    if constexpr (type == dtype_f16)
        WGMMA_N64("f16");
    else
        WGMMA_N64("bf16");
}

template <int type, u32 high, bool accumulate, bool transposed>
__device__ __forceinline__ void wgmma(float (&d)[36], const u32 (&a)[4], u32 b) {
    if constexpr (type == dtype_f16)
        WGMMA_N72("f16");
    else
        WGMMA_N72("bf16");
}

template <int type, u32 high, bool accumulate, bool transposed>
__device__ __forceinline__ void wgmma(float (&d)[64], const u32 (&a)[4], u32 b) {
    if constexpr (type == dtype_f16)
        WGMMA_N128("f16");
    else
        WGMMA_N128("bf16");
}

// A in shared memory too. Transposed: rows in memory are k, not m or n.
template <int type, u32 a_high, u32 b_high, bool accumulate, bool a_transposed, bool b_transposed>
__device__ __forceinline__ void wgmma_shared(float (&d)[32], u32 a, u32 b) {
    if constexpr (type == dtype_f16)
        WGMMA_SHARED_N64("f16");
    else
        WGMMA_SHARED_N64("bf16");
}

// Both with rows of k and the same high word.
template <int type, u32 high, bool accumulate>
__device__ __forceinline__ void wgmma_shared(float (&d)[32], u32 a, u32 b) {
    wgmma_shared<type, high, high, accumulate, false, false>(d, a, b);
}

#undef WGMMA_SHARED_N64
#undef WGMMA_N32
#undef WGMMA_N40
#undef WGMMA_N64
#undef WGMMA_N72
#undef WGMMA_N128
