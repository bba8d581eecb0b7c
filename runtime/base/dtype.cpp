#include "turbotune/base/dtype.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "rounding.h"
#include "turbotune/base/error.h"

namespace turbotune {

std::size_t size_of(DType dtype) {
    switch (dtype) {
        case DType::f64:
            return 8;
        case DType::f32:
        case DType::i32:
            return 4;
        case DType::f16:
        case DType::bf16:
            return 2;
        case DType::u8:
            return 1;
    }
    throw InvalidArgument("dtype", "unknown code " + std::to_string(static_cast<int>(dtype)));
}

std::string_view to_string(DType dtype) {
    switch (dtype) {
        case DType::f64:
            return "f64";
        case DType::f32:
            return "f32";
        case DType::f16:
            return "f16";
        case DType::bf16:
            return "bf16";
        case DType::i32:
            return "i32";
        case DType::u8:
            return "u8";
    }
    throw InvalidArgument("dtype", "unknown code " + std::to_string(static_cast<int>(dtype)));
}

DType parse_dtype(std::string_view name) {
    struct Spelling {
        std::string_view name;
        DType dtype;
    };
    static constexpr Spelling kSpellings[] = {
        {"f64", DType::f64},   {"fp64", DType::f64},      {"float64", DType::f64}, {"double", DType::f64},
        {"f32", DType::f32},   {"fp32", DType::f32},      {"float32", DType::f32}, {"float", DType::f32},
        {"f16", DType::f16},   {"fp16", DType::f16},      {"float16", DType::f16}, {"half", DType::f16},
        {"bf16", DType::bf16}, {"bfloat16", DType::bf16}, {"i32", DType::i32},     {"int32", DType::i32},
        {"int", DType::i32},   {"u8", DType::u8},         {"uint8", DType::u8},
    };
    std::string lower(name);
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    for (const Spelling& spelling : kSpellings) {
        if (spelling.name == lower) return spelling.dtype;
    }
    throw InvalidArgument("dtype", "expected one of f64, f32, f16, bf16, i32, u8, got \"" + std::string(name) + "\"");
}

float half_to_float(std::uint16_t bits) {
    return half_bits_to_float(bits);
}

std::uint16_t float_to_half(float value) {
    return float_to_half_bits(value);
}

float bfloat16_to_float(std::uint16_t bits) {
    return bfloat16_bits_to_float(bits);
}

std::uint16_t float_to_bfloat16(float value) {
    return float_to_bfloat16_bits(value);
}

}  // namespace turbotune
