// Scores to probabilities: masks and the online softmax.
// needs: sm90_layout.cuh, common/math.cuh, common/shared_memory.cuh

struct Rows {
    float bias[2];     // q_i.PK_e in far tiles, else 0; rows g and g + 8
    float m[2], l[2];  // subtracted maximum (unscaled), sum of this thread's columns
    float hidden[2];   // score of hidden keys; with a mask 0 in masked rows, whose scores are all 0: they attend all equally

    __device__ __forceinline__ bool masked(int half) const { return mask && hidden[half] == 0.0f; }
};

// Keys of a unit that kept rows attend; bit = key. `keys_left`: keys in range, from the unit's first.
struct KeyBits {
    u32 keep[2];

    __device__ __forceinline__ explicit KeyBits(int keys_left) {
#pragma unroll
        for (int i = 0; i < 2; ++i) keep[i] = range_word(keys_left - 32 * i);
    }
    __device__ __forceinline__ KeyBits(u32 shared, int stage, int unit, int keys_left) : KeyBits(keys_left) {
#pragma unroll
        for (int i = 0; mask && i < 2; ++i) keep[i] = load_word(shared + bits_offset + 16 * stage + 8 * unit + 4 * i);
    }
};

// Masks the scores of a unit.
__device__ __forceinline__ void apply_mask(float (&s)[32], const KeyBits& bits, const Rows& rows, int c) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        if (bits.keep[i] == 0xffffffffu) continue;
        const u32 word = bits.keep[i] >> (2 * c);
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int b = 0; b < 2; ++b)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float& score = s[(4 * i + n) * 4 + 2 * half + b];
                    score = word >> (8 * n + b) & 1 ? score : rows.hidden[half];
                }
    }
}

// Saturates in fp16: rounding of huge scores may exceed the bounds of `lazy` and `largest_sum`.
__device__ __forceinline__ u32 pack_probability(float low, float high) {
    if constexpr (dtype == dtype_f16) {
        u32 packed;
        asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
        return packed;
    } else {
        return pack2<dtype>(low, high);
    }
}

// One tile's step of the online softmax. `ratio`: what O and the old sums must be multiplied by.
struct Softmax {
    float offset[2], ratio[2], sum[2][2];

    template <int count>
    static __device__ __forceinline__ void maxima(float (&most)[2], const float (&s)[count]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float top[2] = {fmaxf(s[2 * half], s[2 * half + 1]), fmaxf(s[4 + 2 * half], s[4 + 2 * half + 1])};
#pragma unroll
            for (int n = 2; n < count / 4; ++n)
                top[n & 1] = fmaxf(top[n & 1], fmaxf(s[4 * n + 2 * half], s[4 * n + 2 * half + 1]));
            most[half] = fmaxf(top[0], top[1]);
        }
    }

    // Of a near tile, whose scores may be infinite where two saturated ones were added in fp16 (bf16 tensors).
    template <int count>
    static __device__ __forceinline__ void near_maxima(float (&most)[2], float (&s)[count]) {
        maxima(most, s);
        if constexpr (c2p && p2c && dtype == dtype_bf16) {
            if (__any_sync(0xffffffffu, fmaxf(most[0], most[1]) > largest_score)) [[unlikely]] {
#pragma unroll
                for (int i = 0; i < count; ++i) s[i] = min_or_nan(s[i], largest_score);
#pragma unroll
                for (int half = 0; half < 2; ++half) most[half] = fminf(most[half], largest_score);
            }
        }
    }

    // Moves the maximum where scores, of which `most` are the largest, exceed it by much. In near tiles there is no row
    // constant, and with fp16 tensors, whose errors the rounding of probabilities shows in, the maximum follows: where
    // probabilities are exactly 1 nothing is rounded. It falls by `fall` at most, as O and the sums grow by that.
    template <bool near>
    __device__ __forceinline__ void begin(const float (&most)[2], Rows& rows, float scale, float fall) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float all = fmaxf(most[half], __shfl_xor_sync(0xffffffffu, most[half], 1));
            all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, 2)) + (near ? 0.0f : rows.bias[half]);
            float m = (all - rows.m[half]) * scale > lazy ? all : rows.m[half];
            if constexpr (near && dtype == dtype_f16) m = fmaxf(all, rows.m[half] - fall);
            ratio[half] = exp2_approx((rows.m[half] - m) * scale);
            rows.m[half] = m;
            offset[half] = ((near ? 0.0f : rows.bias[half]) - m) * scale - lowered;
        }
    }

    // Scores of 16 keys to probabilities. The sums begin with step 0.
    template <int count>
    __device__ __forceinline__ void exponentials(float (&s)[count], int step, float scale) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float& score = s[8 * step + i];
            score = exp2_approx(score * scale + offset[i >> 1 & 1]);
            float& total = sum[i >> 1 & 1][i & 1];
            if constexpr (!sum_column) total = step == 0 && i < 4 ? score : total + score;
        }
    }

    __device__ __forceinline__ void clear() { sum[0][0] = sum[0][1] = sum[1][0] = sum[1][1] = 0.0f; }

    // True in the whole warp when somewhere in it weights, those of a unit, are so large that the maximum must move.
    __device__ __forceinline__ bool exceeded(const u32 (&a)[4][4]) const {
        if constexpr (sum_column) {
            u32 any = 0;
#pragma unroll
            for (int i = 0; i < 16; ++i) any |= a[i / 4][i % 4];
            return __any_sync(0xffffffffu, any & too_large);
        }
        return __any_sync(0xffffffffu, fmaxf(sum[0][0] + sum[0][1], sum[1][0] + sum[1][1]) > largest_sum);
    }

    __device__ __forceinline__ void add(Rows& rows) const {
#pragma unroll
        for (int half = 0; !sum_column && half < 2; ++half) rows.l[half] += sum[half][0] + sum[half][1];
    }

    __device__ __forceinline__ void finish(Rows& rows) const {
#pragma unroll
        for (int half = 0; !sum_column && half < 2; ++half) rows.l[half] = rows.l[half] * ratio[half] + (sum[half][0] + sum[half][1]);
    }

    // True in the whole warp when O must be rescaled somewhere in it. Sums are never negative.
    __device__ __forceinline__ bool moved(const Rows& rows) const {
        return __any_sync(0xffffffffu, ratio[0] != 1.0f || ratio[1] != 1.0f || fminf(rows.l[0], rows.l[1]) < 0.0f);
    }
};

template <int count>
__device__ __forceinline__ void rescale(float (&o)[count], const float (&ratio)[2]) {
#pragma unroll
    for (int i = 0; i < count; ++i) o[i] *= ratio[i >> 1 & 1];
}

// Probabilities of 16 keys as an A operand of P.V.
template <int count>
__device__ __forceinline__ void pack_probabilities(u32 (&a)[4], const float (&s)[count], int step) {
#pragma unroll
    for (int part = 0; part < 4; ++part) a[part] = pack_probability(s[8 * step + 2 * part], s[8 * step + 2 * part + 1]);
}
