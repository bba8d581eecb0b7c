// A dense row-major tensor in host memory, for test data, references and golden files.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "turbotune/base/dtype.h"

namespace turbotune {

struct HostTensor {
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape;   // row major; the last dimension is contiguous
    std::vector<std::byte> data;       // size() * size_of(dtype) bytes

    HostTensor() = default;
    HostTensor(DType dtype, std::vector<std::int64_t> shape);   // zero filled

    std::int64_t size() const;         // elements
    double at(std::int64_t index) const;            // element as a number, by flat index
    void set(std::int64_t index, double value);     // rounded to dtype

    // The same numbers in another dtype, rounded to nearest even.
    HostTensor to(DType other) const;
    std::vector<double> to_doubles() const;
    // Elements [first, first + count) to `to`. Throws InvalidArgument when they are not all there.
    void copy_doubles(std::int64_t first, std::int64_t count, double* to) const;
};

using NamedTensors = std::map<std::string, HostTensor>;

// "[2, 64, 128]"
std::string shape_to_string(const std::vector<std::int64_t>& shape);

}  // namespace turbotune
