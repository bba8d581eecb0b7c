#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "catch.h"
#include "turbotune/base/dtype.h"
#include "turbotune/base/error.h"

using namespace turbotune;

namespace {

// Half and bfloat16 by their definition, from the fields of the bit pattern.
double value_of(std::uint16_t bits, int mantissa_bits, int bias) {
    const int exponent_bits = 15 - mantissa_bits;
    const int exponent = (bits & 0x7fff) >> mantissa_bits;
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) {
        return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
    }
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

struct Format {
    const char* name;
    int mantissa_bits, bias;
    float (*widen)(std::uint16_t);
    std::uint16_t (*narrow)(float);
    std::uint16_t infinity;
};
const Format kFormats[] = {
    {"half", 10, 15, half_to_float, float_to_half, 0x7c00},
    {"bfloat16", 7, 127, bfloat16_to_float, float_to_bfloat16, 0x7f80},
};

}  // namespace

TEST_CASE("Every 16-bit pattern widens to its value and narrows back to itself", "[dtype]") {
    for (const Format& format : kFormats) {
        INFO(format.name);
        for (unsigned pattern = 0; pattern < 65536; ++pattern) {
            const auto bits = static_cast<std::uint16_t>(pattern);
            const double expected = value_of(bits, format.mantissa_bits, format.bias);
            const float wide = format.widen(bits);
            if (std::isnan(expected)) {
                const auto quiet = static_cast<std::uint16_t>(bits | 1u << (format.mantissa_bits - 1));
                if (!std::isnan(wide) || format.narrow(wide) != quiet) FAIL("NaN " << pattern);
            } else if (wide != expected || std::signbit(wide) != std::signbit(expected) ||
                       format.narrow(wide) != bits) {
                FAIL("pattern " << pattern << " widened to " << wide << ", expected " << expected);
            }
        }
    }
}

TEST_CASE("Between two neighbours rounding takes the nearer, and the even one at the middle", "[dtype]") {
    for (const Format& format : kFormats) {
        INFO(format.name);
        // From zero over the subnormals to the largest finite number; infinity stands where the next would be.
        for (unsigned pattern = 0; pattern < format.infinity; ++pattern) {
            const auto low = static_cast<std::uint16_t>(pattern), high = static_cast<std::uint16_t>(pattern + 1);
            const double low_value = value_of(low, format.mantissa_bits, format.bias);
            const double gap = pattern == 0 ? value_of(1, format.mantissa_bits, format.bias)
                                            : low_value - value_of(static_cast<std::uint16_t>(pattern - 1),
                                                                   format.mantissa_bits, format.bias);
            const bool last = high == format.infinity;
            const double high_value = last ? low_value + gap : value_of(high, format.mantissa_bits, format.bias);
            const auto middle = static_cast<float>((low_value + high_value) / 2);
            REQUIRE(static_cast<double>(middle) == (low_value + high_value) / 2);
            const std::uint16_t even = pattern % 2 == 0 ? low : high;
            const float below = std::nextafter(middle, 0.f), above = std::nextafter(middle, INFINITY);
            if (format.narrow(middle) != even || format.narrow(below) != low || format.narrow(above) != high ||
                format.narrow(-middle) != (even | 0x8000) || format.narrow(-below) != (low | 0x8000)) {
                FAIL("around pattern " << pattern);
            }
        }
    }
}

TEST_CASE("Values beyond the largest become infinity and the tiniest become zero", "[dtype]") {
    CHECK(float_to_half(65504.f) == 0x7bff);
    CHECK(float_to_half(65519.99f) == 0x7bff);
    CHECK(float_to_half(65520.f) == 0x7c00);
    CHECK(float_to_half(-1e30f) == 0xfc00);
    CHECK(float_to_half(std::ldexp(1.f, -25)) == 0);
    CHECK(float_to_half(std::nextafter(std::ldexp(1.f, -25), 1.f)) == 1);
    CHECK(float_to_half(-std::numeric_limits<float>::denorm_min()) == 0x8000);
    CHECK(float_to_bfloat16(std::numeric_limits<float>::max()) == 0x7f80);
    CHECK(float_to_bfloat16(std::numeric_limits<float>::denorm_min()) == 0);
}

TEST_CASE("A NaN with only low payload bits stays a NaN", "[dtype]") {
    const float odd_nan = std::bit_cast<float>(0x7f800001u);
    CHECK(std::isnan(half_to_float(float_to_half(odd_nan))));
    CHECK(std::isnan(bfloat16_to_float(float_to_bfloat16(odd_nan))));
    const float negative_nan = std::bit_cast<float>(0xffffffffu);
    CHECK((float_to_half(negative_nan) & 0x8000) != 0);
    CHECK(std::isnan(bfloat16_to_float(float_to_bfloat16(negative_nan))));
}

TEST_CASE("Dtypes have sizes, names and spellings", "[dtype]") {
    for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i32, DType::u8}) {
        CHECK(parse_dtype(to_string(dtype)) == dtype);
    }
    CHECK(size_of(DType::f64) == 8);
    CHECK(size_of(DType::f32) == 4);
    CHECK(size_of(DType::f16) == 2);
    CHECK(size_of(DType::bf16) == 2);
    CHECK(size_of(DType::i32) == 4);
    CHECK(size_of(DType::u8) == 1);
    CHECK(parse_dtype("float16") == DType::f16);
    CHECK(parse_dtype("BF16") == DType::bf16);
    CHECK(parse_dtype("fp16") == DType::f16);
    CHECK(parse_dtype("bfloat16") == DType::bf16);
    REQUIRE_THROWS_AS(parse_dtype("f8"), InvalidArgument);
    REQUIRE_THROWS_AS(parse_dtype(""), InvalidArgument);
    REQUIRE_THROWS_AS(parse_dtype("f16 "), InvalidArgument);
}
