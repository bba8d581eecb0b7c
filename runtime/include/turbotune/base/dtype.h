// Element types and their conversion on the host (round to nearest even).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turbotune {

enum class DType : std::uint8_t { f64, f32, f16, bf16, i32, u8 };

std::size_t size_of(DType dtype);            // bytes of one element
std::string_view to_string(DType dtype);     // "f64", "f32", "f16", "bf16", "i32", "u8"
DType parse_dtype(std::string_view name);    // also "fp16", "float16", "F16", "BF16", ...; throws InvalidArgument

float half_to_float(std::uint16_t bits);
std::uint16_t float_to_half(float value);    // overflow gives infinity
float bfloat16_to_float(std::uint16_t bits);
std::uint16_t float_to_bfloat16(float value);

}  // namespace turbotune
