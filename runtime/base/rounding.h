// Bit-level conversions between the element types, without branches, so that loops over them vectorise.
#pragma once

#include <bit>
#include <cstdint>

namespace turbotune {

inline float half_bits_to_float(std::uint16_t bits) {
    constexpr std::uint32_t kExponentMask = 0x7c00u << 13;
    const std::uint32_t magnitude = (bits & 0x7fffu) << 13;
    const std::uint32_t exponent = magnitude & kExponentMask;
    const std::uint32_t rebased = magnitude + ((127u - 15u) << 23);
    // Infinity and NaN take the largest exponent.
    const std::uint32_t special = rebased + ((128u - 16u) << 23);
    // A subnormal is read as 2^-14 * 1.m, from which the implicit one is taken away.
    const float subnormal = std::bit_cast<float>(rebased + (1u << 23)) - std::bit_cast<float>(113u << 23);
    std::uint32_t result = exponent == kExponentMask ? special : rebased;
    result = exponent == 0 ? std::bit_cast<std::uint32_t>(subnormal) : result;
    return std::bit_cast<float>(result | (bits & 0x8000u) << 16);
}

inline std::uint16_t float_to_half_bits(float value) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    // NaN keeps the upper payload bits and becomes quiet.
    const std::uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    const std::uint32_t special = magnitude > 0x7f800000u ? nan : 0x7c00u;
    // Adding 0.5 aligns the mantissa so that its unit is 2^-24, the least subnormal; the adder rounds.
    constexpr std::uint32_t kAlign = 126u << 23;
    const float aligned = std::bit_cast<float>(magnitude) + std::bit_cast<float>(kAlign);
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(aligned) - kAlign;
    const std::uint32_t odd = (magnitude >> 13) & 1u;
    const std::uint32_t normal = (magnitude - ((127u - 15u) << 23) + 0xfffu + odd) >> 13;
    std::uint32_t result = magnitude < (113u << 23) ? subnormal : normal;
    result = magnitude >= (143u << 23) ? special : result;
    return static_cast<std::uint16_t>(result | (bits & 0x80000000u) >> 16);
}

inline float bfloat16_bits_to_float(std::uint16_t bits) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t float_to_bfloat16_bits(float value) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const std::uint32_t nan = bits >> 16 | 0x40u;
    return static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

// A float from which a later rounding to half or bfloat16 gives the same as one rounding of `value`:
// truncated, with the last bit set when anything was cut off ("round to odd").
inline float narrow_to_odd(double value) {
    const float nearest = static_cast<float>(value);
    std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
    const double back = nearest;
    const double size = value < 0 ? -value : value;
    const double back_size = back < 0 ? -back : back;
    bits -= back_size > size ? 1u : 0u;
    bits |= back_size != size && value == value ? 1u : 0u;
    return std::bit_cast<float>(bits);
}

}  // namespace turbotune
