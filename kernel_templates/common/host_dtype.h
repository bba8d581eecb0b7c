// Elements of the tensors on the CPU device and their conversion, by the number that `config::dtype` holds:
// 0 float, 1 IEEE half, 2 bfloat16. Branch-free, so that loops over rows vectorise on every instruction set.

template <int dtype>
struct Element {
    using Type = unsigned short;
};
template <>
struct Element<0> {
    using Type = float;
};

inline float float_of_bits(unsigned bits) {
    return __builtin_bit_cast(float, bits);
}
inline unsigned bits_of_float(float value) {
    return __builtin_bit_cast(unsigned, value);
}

template <int dtype>
inline float to_float(typename Element<dtype>::Type value) {
    if constexpr (dtype == 0) {
        return value;
    } else if constexpr (dtype == 1) {
        // The exponent is rebased by a product, which also normalises subnormals; 31 stays infinity or NaN.
        const unsigned magnitude = value & 0x7fffu;
        const unsigned finite = bits_of_float(float_of_bits(magnitude << 13) * 0x1p112f);
        const unsigned special = magnitude >= 0x7c00u ? 0x7f800000u : 0u;
        return float_of_bits(finite | special | (value & 0x8000u) << 16);
    } else {
        return float_of_bits(unsigned{value} << 16);
    }
}

// Rounds to nearest even; beyond the range is infinity.
template <int dtype>
inline typename Element<dtype>::Type from_float(float value) {
    if constexpr (dtype == 0) {
        return value;
    } else if constexpr (dtype == 1) {
        const unsigned bits = bits_of_float(value), magnitude = bits & 0x7fffffffu;
        unsigned half;
        if (magnitude > 0x7f800000u) {
            half = 0x7e00u;
        } else if (magnitude >= 0x477ff000u) {  // 65520 and more
            half = 0x7c00u;
        } else if (magnitude < 0x38800000u) {  // below the least normal: the adder rounds at 2^-24
            half = bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3f000000u;
        } else {
            half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
        }
        return static_cast<unsigned short>(half | (bits >> 16 & 0x8000u));
    } else {
        const unsigned bits = bits_of_float(value);
        if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<unsigned short>(bits >> 16 | 0x40u);
        return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    }
}

template <int dtype, int count>
inline void load_row(const typename Element<dtype>::Type* from, float* to) {
    for (int d = 0; d < count; ++d) to[d] = to_float<dtype>(from[d]);
}
