#include <cmath>
#include <limits>
#include <random>

#include "catch.h"
#include "turbotune/base/error.h"
#include "turbotune/base/tensor.h"

using namespace turbotune;

namespace {

constexpr DType kAll[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i32, DType::u8};

}  // namespace

TEST_CASE("A new tensor is zero and knows its size", "[tensor]") {
    for (DType dtype : kAll) {
        const HostTensor tensor(dtype, {2, 3, 5});
        CHECK(tensor.size() == 30);
        CHECK(tensor.data.size() == 30 * size_of(dtype));
        for (std::int64_t i = 0; i < 30; ++i) REQUIRE(tensor.at(i) == 0);
    }
    CHECK(HostTensor(DType::f32, {}).size() == 1);
    CHECK(HostTensor(DType::f32, {4, 0, 3}).size() == 0);
    CHECK(shape_to_string({2, 64, 128}) == "[2, 64, 128]");
    CHECK(shape_to_string({}) == "[]");
}

TEST_CASE("Shapes that cannot exist are refused", "[tensor]") {
    REQUIRE_THROWS_AS(HostTensor(DType::u8, {2, -1}), InvalidArgument);
    REQUIRE_THROWS_AS(HostTensor(DType::f64, {1LL << 40, 1LL << 40}), InvalidArgument);
    REQUIRE_THROWS_AS(HostTensor(DType::f64, {std::numeric_limits<std::int64_t>::max(), 2}), InvalidArgument);
    REQUIRE_THROWS_AS(HostTensor(DType::f64, {0, -1}), InvalidArgument);
}

TEST_CASE("An index outside the tensor is refused", "[tensor]") {
    HostTensor tensor(DType::f16, {3});
    REQUIRE_THROWS_AS(tensor.at(3), InvalidArgument);
    REQUIRE_THROWS_AS(tensor.at(-1), InvalidArgument);
    REQUIRE_THROWS_AS(tensor.set(3, 1.0), InvalidArgument);
    tensor.set(2, 1.5);
    CHECK(tensor.at(2) == 1.5);
}

TEST_CASE("Doubles are rounded once, not over a float", "[tensor]") {
    // Just above the middle of two halves: over a float it becomes the middle, and then the even one below.
    const double above = 1.0 + std::ldexp(1.0, -11) + std::ldexp(1.0, -40);
    HostTensor half(DType::f16, {1}), brain(DType::bf16, {1});
    half.set(0, above);
    CHECK(half.at(0) == 1.0 + std::ldexp(1.0, -10));
    half.set(0, -above);
    CHECK(half.at(0) == -1.0 - std::ldexp(1.0, -10));
    half.set(0, 1.0 + std::ldexp(1.0, -11) - std::ldexp(1.0, -40));
    CHECK(half.at(0) == 1.0);
    brain.set(0, 1.0 + std::ldexp(1.0, -8) + std::ldexp(1.0, -40));
    CHECK(brain.at(0) == 1.0 + std::ldexp(1.0, -7));
    half.set(0, 65520.0 - 1e-9);
    CHECK(half.at(0) == 65504.0);
    half.set(0, 1e300);
    CHECK(half.at(0) == std::numeric_limits<double>::infinity());
    half.set(0, 1e-300);
    CHECK(half.at(0) == 0.0);
    half.set(0, std::nan(""));
    CHECK(std::isnan(half.at(0)));
    brain.set(0, -std::numeric_limits<double>::infinity());
    CHECK(brain.at(0) == -std::numeric_limits<double>::infinity());
}

TEST_CASE("Integers round to even, saturate, and take NaN as zero", "[tensor]") {
    HostTensor bytes(DType::u8, {1}), integers(DType::i32, {1});
    const std::pair<double, double> byte_cases[] = {{2.5, 2},   {3.5, 4},  {254.6, 255}, {255.5, 255},
                                                    {1e9, 255}, {-0.4, 0}, {-7, 0},      {std::nan(""), 0}};
    for (const auto& [given, wanted] : byte_cases) {
        bytes.set(0, given);
        CHECK(bytes.at(0) == wanted);
    }
    const std::pair<double, double> integer_cases[] = {{-2.5, -2},
                                                       {2147483647.0, 2147483647.0},
                                                       {2147483647.5, 2147483647.0},
                                                       {1e300, 2147483647.0},
                                                       {-1e300, -2147483648.0},
                                                       {-2147483648.0, -2147483648.0},
                                                       {std::nan(""), 0}};
    for (const auto& [given, wanted] : integer_cases) {
        integers.set(0, given);
        CHECK(integers.at(0) == wanted);
    }
}

TEST_CASE("Conversion of a whole tensor equals conversion of each element, for every pair", "[tensor]") {
    std::mt19937_64 random(3);
    std::normal_distribution<double> normal(0, 40);
    for (DType from : kAll) {
        HostTensor tensor(from, {7, 11});
        for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, normal(random) * std::pow(2.0, i % 20 - 18));
        if (from != DType::i32 && from != DType::u8) {
            tensor.set(0, std::nan(""));
            tensor.set(1, std::numeric_limits<double>::infinity());
            tensor.set(2, -std::numeric_limits<double>::infinity());
            tensor.set(3, -0.0);
        }
        for (DType to : kAll) {
            const HostTensor converted = tensor.to(to);
            HostTensor single(to, {7, 11});
            for (std::int64_t i = 0; i < tensor.size(); ++i) single.set(i, tensor.at(i));
            INFO(to_string(from) << " to " << to_string(to));
            CHECK(converted.dtype == to);
            CHECK(converted.shape == tensor.shape);
            for (std::int64_t i = 0; i < tensor.size(); ++i) {
                const double a = converted.at(i), b = single.at(i);
                if (!(std::isnan(a) && std::isnan(b)) && (a != b || std::signbit(a) != std::signbit(b))) {
                    FAIL("element " << i << ": " << a << " against " << b << " from " << tensor.at(i));
                }
            }
        }
        const std::vector<double> doubles = tensor.to_doubles();
        for (std::int64_t i = 4; i < tensor.size(); ++i) REQUIRE(doubles[static_cast<std::size_t>(i)] == tensor.at(i));
        std::vector<double> range(3, 0.0);
        tensor.copy_doubles(5, 3, range.data());
        for (std::int64_t i = 0; i < 3; ++i) REQUIRE(range[static_cast<std::size_t>(i)] == tensor.at(5 + i));
    }
}

TEST_CASE("A tensor whose data does not fit its shape is not converted", "[tensor]") {
    HostTensor tensor(DType::f32, {4});
    tensor.data.resize(12);
    REQUIRE_THROWS_AS(tensor.to(DType::f16), InvalidArgument);
    REQUIRE_THROWS_AS(tensor.to_doubles(), InvalidArgument);
    REQUIRE_THROWS_AS(tensor.at(3), InvalidArgument);
    double value = 0;
    REQUIRE_THROWS_AS(tensor.copy_doubles(3, 1, &value), InvalidArgument);
    REQUIRE_THROWS_AS(tensor.copy_doubles(-1, 1, &value), InvalidArgument);
}
