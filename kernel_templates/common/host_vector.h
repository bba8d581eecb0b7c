// Vectors of floats as wide as the instruction set that this source is compiled for, through the vector
// extensions that GCC and Clang share.

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef int VecInt __attribute__((vector_size(4 * kLanes)));
typedef float UnalignedVec __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef int UnalignedVecInt __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

inline Vec load(const float* from) {
    return *reinterpret_cast<const UnalignedVec*>(from);
}
inline VecInt load(const int* from) {
    return *reinterpret_cast<const UnalignedVecInt*>(from);
}
inline void store(float* to, Vec value) {
    *reinterpret_cast<UnalignedVec*>(to) = value;
}
inline Vec splat(float value) {
    return value - Vec{};
}
inline VecInt splat(int value) {
    return value - VecInt{};
}

inline VecInt lane_numbers() {
    VecInt lane = VecInt{};
#pragma GCC unroll 16
    for (int l = 0; l < kLanes; ++l) lane[l] = l;
    return lane;
}

// In a fixed order, by halves.
inline float sum_of(Vec x) {
    float part[kLanes];
    store(part, x);
#pragma GCC unroll 4
    for (int half = kLanes / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
        for (int l = 0; l < half; ++l) part[l] += part[l + half];
    }
    return part[0];
}

// A NaN in b is dropped, one in a stays.
inline Vec larger(Vec a, Vec b) {
    return b > a ? b : a;
}

// from[index[lane]] for indices in [0, kLanes).
inline Vec permute(Vec from, VecInt index) {
#if defined(__clang__) && defined(__AVX512F__)
    return __builtin_ia32_permvarsf512(from, index);
#elif defined(__clang__) && defined(__AVX2__)
    return __builtin_ia32_permvarsf256(from, index);
#elif defined(__clang__)
    Vec to;
    for (int lane = 0; lane < kLanes; ++lane) to[lane] = from[index[lane]];
    return to;
#else
    return __builtin_shuffle(from, index);
#endif
}

// to[lane] = from[lane + count], 0 beyond the end.
template <int count>
inline Vec shift_down(Vec from) {
#if defined(__clang__)
    Vec to = Vec{};
    for (int lane = 0; lane + count < kLanes; ++lane) to[lane] = from[lane + count];
    return to;
#else
    return __builtin_shuffle(from, Vec{}, lane_numbers() + count);
#endif
}

// 2^x for x <= 0, relative error below 2e-7; 0 below 2^-126, NaN stays.
inline Vec exp2_nonpositive(Vec x) {
    const VecInt underflow = x < splat(-126.0f);
    const Vec bounded = underflow ? splat(-126.0f) : x;
    const Vec shifted = bounded + 0x1.8p23f;  // the integer nearest to x, in the low bits of the mantissa
    const Vec f = bounded - (shifted - 0x1.8p23f);
    const VecInt exponent = (reinterpret_cast<VecInt>(shifted) << 23) + 0x3f800000;
    // Minimax on [-1/2, 1/2] for the relative error.
    Vec p = splat(0.000153533416f);
    p = p * f + 0.00133988727f;
    p = p * f + 0.00961843785f;
    p = p * f + 0.0555033237f;
    p = p * f + 0.240226477f;
    p = p * f + 0.693147182f;
    p = p * f + 1.0f;
    const Vec result = p * reinterpret_cast<Vec>(exponent);
    return underflow ? Vec{} : result;
}
