// What the KV and the Q kernels of the backward pass share: packing, the probabilities, and stores of row gradients.
// needs: backward_layout.cuh, backward_sequence.cuh, mma_rows.cuh, mma_shear.cuh, config

constexpr int warps = 4;
constexpr int threads = 32 * warps;

constexpr u32 pair_of_ones = dtype == dtype_f16 ? 0x3c003c00u : 0x3f803f80u;

// Two elements of dS; fp16 saturates.
__device__ __forceinline__ u32 pack_gradient(float low, float high) {
    if constexpr (dtype == dtype_f16) return pack_scores(low, high);
    return pack2<dtype>(low, high);
}

// 2^(scale_log2 * s - lse), at most 1 although s is rounded in another way than in the forward pass.
__device__ __forceinline__ float probability(float s, float scale_log2, float lse) {
    return exp2_approx(-fabsf(s * scale_log2 - lse));
}

__device__ __forceinline__ RowStatistics load_statistics(u32 from) {
    RowStatistics r;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(r.lse), "=f"(r.delta) : "r"(from) : "memory");
    return r;
}

__device__ __forceinline__ void copy_statistics(u32 to, const RowStatistics* from, bool valid) {
    // Rows beyond the end get P = 0.
    if (valid)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(__cvta_generic_to_global(from))
                     : "memory");
    else
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(__int_as_float(0x7f800000)), "f"(0.0f)
                     : "memory");
}

// acc += row sums * the table's end rows, for both ends, and the end vectors: sum over the block's 64 rows of (row sum)
// * row, whose operands `operand` gives. `sums`: of this lane's rows g and g + 8, by end. Uses 32 * head_dim bytes at
// `shared`, which the whole block may overwrite.
template <class Operand>
__device__ __forceinline__ void finish_ends(const BackwardParams& p, float (&acc)[head_dim / 8][4],
                                            const float (&sums)[2][2], const u16* table, s64 table_row, u32 shared,
                                            int tid, Operand operand, float* vectors) {
    const int g = tid % 32 / 4, c = tid % 4, warp = tid / 32;
#pragma unroll 1
    for (int end = 0; end < 2; ++end) {
        const u16* from = table + slot_at(p, end == end_high ? p.band : -p.band) * table_row + 2 * c;
        const float low = end == 0 ? sums[0][0] : sums[1][0], high = end == 0 ? sums[0][1] : sums[1][1];
        const u32 to = shared + ((warp * 2 + end) * head_dim + 2 * c) * 4;
#pragma unroll
        for (int n = 0; n < head_dim / 8; ++n) {
            const u32 pair = load_word(from + n * 8);
            acc[n][0] += low * low_of<dtype>(pair), acc[n][1] += low * high_of<dtype>(pair);
            acc[n][2] += high * low_of<dtype>(pair), acc[n][3] += high * high_of<dtype>(pair);
        }
#pragma unroll
        for (int step = 0; step < dim_steps; ++step) {
            u32 a[4];
            operand(a, step);
#pragma unroll
            for (int part = 0; part < 4; part += 2) {
                float x = low * low_of<dtype>(a[part]) + high * low_of<dtype>(a[part + 1]);
                float y = low * high_of<dtype>(a[part]) + high * high_of<dtype>(a[part + 1]);
#pragma unroll
                for (int lanes = 4; lanes < 32; lanes *= 2) {
                    x += __shfl_xor_sync(0xffffffffu, x, lanes);
                    y += __shfl_xor_sync(0xffffffffu, y, lanes);
                }
                if (g == 0) {
                    store_shared(to + (16 * step + 4 * part) * 4, x);
                    store_shared(to + (16 * step + 4 * part + 1) * 4, y);
                }
            }
        }
    }
    __syncthreads();
    for (int i = tid; i < 2 * head_dim; i += threads) {
        float sum = 0.0f;
        for (int w = 0; w < warps; ++w) sum += load_shared(shared + (w * 2 * head_dim + i) * 4);
        vectors[i] = sum;
    }
    __syncthreads();
}

// Gradient rows of one warp, staged through its own 16 rows of shared memory at `stage`. Row g (+ 8) of the accumulator
// is row `row` (+ 8) of the 16; rows at or beyond `valid` are not stored.
__device__ __forceinline__ void store_gradient(const float (&acc)[head_dim / 8][4], float factor, u32 stage, int lane,
                                               int row, u16* to, s64 row_stride, int valid) {
    __syncwarp();
    const int c = lane & 3;
#pragma unroll
    for (int n = 0; n < head_dim / 8; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const u32 pair = pack_operand(acc[n][2 * half] * factor, acc[n][2 * half + 1] * factor);
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(stage + swizzled(row + 8 * half, n) + 4 * c), "r"(pair)
                         : "memory");
        }
    __syncwarp();
    constexpr int rows_at_once = 32 / row_chunks;
#pragma unroll
    for (int i = 0; i < 16; i += rows_at_once) {
        const int r = i + lane / row_chunks, chunk = lane % row_chunks;
        Words4 w;
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
                     : "r"(stage + swizzled(r, chunk))
                     : "memory");
        if (r >= valid) continue;
        u16* out = to + r * row_stride + chunk * 8;
        if constexpr (aligned) {
            *reinterpret_cast<Words4*>(out) = w;
        } else {
            const u32 word[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
            for (int k = 0; k < 4; ++k) out[2 * k] = u16(word[k] & 0xffffu), out[2 * k + 1] = u16(word[k] >> 16);
        }
    }
}
