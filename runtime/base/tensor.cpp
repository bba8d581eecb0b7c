#include "turbotune/base/tensor.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "rounding.h"
#include "turbotune/base/error.h"

namespace turbotune {

namespace {

// One element type each: how it lies in memory, and its value as a double (exact) and back (rounded once).
template <DType>
struct Element;

template <>
struct Element<DType::f64> {
    using Stored = double;
    static double load(double stored) { return stored; }
    static double store(double value) { return value; }
};

template <>
struct Element<DType::f32> {
    using Stored = float;
    static double load(float stored) { return stored; }
    static float store(double value) { return static_cast<float>(value); }
};

template <>
struct Element<DType::f16> {
    using Stored = std::uint16_t;
    static double load(std::uint16_t stored) { return half_bits_to_float(stored); }
    static std::uint16_t store(double value) { return float_to_half_bits(narrow_to_odd(value)); }
};

template <>
struct Element<DType::bf16> {
    using Stored = std::uint16_t;
    static double load(std::uint16_t stored) { return bfloat16_bits_to_float(stored); }
    static std::uint16_t store(double value) { return float_to_bfloat16_bits(narrow_to_odd(value)); }
};

// Integers saturate, and NaN becomes 0.
template <typename Integer>
struct IntegerElement {
    using Stored = Integer;
    static double load(Integer stored) { return stored; }
    static Integer store(double value) {
        constexpr double kLow = std::numeric_limits<Integer>::min(), kHigh = std::numeric_limits<Integer>::max();
        if (!(value > kLow)) return value <= kLow ? std::numeric_limits<Integer>::min() : Integer{0};
        if (value >= kHigh) return std::numeric_limits<Integer>::max();
        return static_cast<Integer>(std::nearbyint(value));
    }
};

template <>
struct Element<DType::i32> : IntegerElement<std::int32_t> {};
template <>
struct Element<DType::u8> : IntegerElement<std::uint8_t> {};

template <DType From, DType To>
void convert(const std::byte* from_bytes, std::byte* to_bytes, std::int64_t count) {
    const auto* from = reinterpret_cast<const typename Element<From>::Stored*>(from_bytes);
    auto* to = reinterpret_cast<typename Element<To>::Stored*>(to_bytes);
    for (std::int64_t i = 0; i < count; ++i) {
        if constexpr (From == DType::f32 && To == DType::f16) {
            to[i] = float_to_half_bits(from[i]);
        } else if constexpr (From == DType::f32 && To == DType::bf16) {
            to[i] = float_to_bfloat16_bits(from[i]);
        } else if constexpr (From == DType::f16 && To == DType::f32) {
            to[i] = half_bits_to_float(from[i]);
        } else if constexpr (From == DType::bf16 && To == DType::f32) {
            to[i] = bfloat16_bits_to_float(from[i]);
        } else {
            to[i] = Element<To>::store(Element<From>::load(from[i]));
        }
    }
}

// Calls visit with the dtype as a compile-time constant.
template <typename Visitor>
auto with_dtype(DType dtype, Visitor&& visit) {
    switch (dtype) {
        case DType::f64:
            return visit(std::integral_constant<DType, DType::f64>{});
        case DType::f32:
            return visit(std::integral_constant<DType, DType::f32>{});
        case DType::f16:
            return visit(std::integral_constant<DType, DType::f16>{});
        case DType::bf16:
            return visit(std::integral_constant<DType, DType::bf16>{});
        case DType::i32:
            return visit(std::integral_constant<DType, DType::i32>{});
        case DType::u8:
            return visit(std::integral_constant<DType, DType::u8>{});
    }
    throw InvalidArgument("dtype", fmt::format("unknown code {}", static_cast<int>(dtype)));
}

// Elements of the shape; refuses negative extents and sizes whose bytes overflow.
std::int64_t count_elements(const std::vector<std::int64_t>& shape) {
    constexpr std::int64_t kLimit = std::numeric_limits<std::int64_t>::max() / 8;
    std::int64_t count = 1;
    bool empty = false;
    for (std::int64_t extent : shape) {
        if (extent < 0) throw InvalidArgument("shape", "negative extent in " + shape_to_string(shape));
        empty = empty || extent == 0;
    }
    if (empty) return 0;
    for (std::int64_t extent : shape) {
        if (count > kLimit / extent) throw InvalidArgument("shape", "too many elements in " + shape_to_string(shape));
        count *= extent;
    }
    return count;
}

void check_index(const HostTensor& tensor, std::int64_t index) {
    if (index < 0 || static_cast<std::size_t>(index) >= tensor.data.size() / size_of(tensor.dtype)) {
        throw InvalidArgument("index",
                              fmt::format("{} is outside a tensor of shape {}", index, shape_to_string(tensor.shape)));
    }
}

void check_data(const HostTensor& tensor) {
    const std::size_t wanted = static_cast<std::size_t>(tensor.size()) * size_of(tensor.dtype);
    if (tensor.data.size() != wanted) {
        throw InvalidArgument("tensor", fmt::format("{} bytes of data, but {} of {} take {}", tensor.data.size(),
                                                    shape_to_string(tensor.shape), to_string(tensor.dtype), wanted));
    }
}

}  // namespace

HostTensor::HostTensor(DType dtype_of, std::vector<std::int64_t> shape_of)
    : dtype(dtype_of), shape(std::move(shape_of)) {
    data.resize(static_cast<std::size_t>(count_elements(shape)) * size_of(dtype));
}

std::int64_t HostTensor::size() const {
    return count_elements(shape);
}

double HostTensor::at(std::int64_t index) const {
    check_index(*this, index);
    return with_dtype(dtype, [&](auto constant) -> double {
        using E = Element<decltype(constant)::value>;
        return E::load(reinterpret_cast<const typename E::Stored*>(data.data())[index]);
    });
}

void HostTensor::set(std::int64_t index, double value) {
    check_index(*this, index);
    with_dtype(dtype, [&](auto constant) {
        using E = Element<decltype(constant)::value>;
        reinterpret_cast<typename E::Stored*>(data.data())[index] = E::store(value);
    });
}

HostTensor HostTensor::to(DType other) const {
    check_data(*this);
    if (other == dtype) return *this;
    HostTensor result(other, shape);
    with_dtype(dtype, [&](auto from) {
        with_dtype(other, [&](auto to) {
            convert<decltype(from)::value, decltype(to)::value>(data.data(), result.data.data(), size());
        });
    });
    return result;
}

std::vector<double> HostTensor::to_doubles() const {
    check_data(*this);
    std::vector<double> values(static_cast<std::size_t>(size()));
    with_dtype(dtype, [&](auto from) {
        convert<decltype(from)::value, DType::f64>(data.data(), reinterpret_cast<std::byte*>(values.data()), size());
    });
    return values;
}

void HostTensor::copy_doubles(std::int64_t first, std::int64_t count, double* to) const {
    if (count == 0) return;
    check_index(*this, first);
    check_index(*this, first + count - 1);
    with_dtype(dtype, [&](auto from) {
        convert<decltype(from)::value, DType::f64>(data.data() + static_cast<std::size_t>(first) * size_of(dtype),
                                                   reinterpret_cast<std::byte*>(to), count);
    });
}

std::string shape_to_string(const std::vector<std::int64_t>& shape) {
    std::string text = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
    return text + "]";
}

}  // namespace turbotune
