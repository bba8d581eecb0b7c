#include "tensor_maps.h"

#include <algorithm>
#include <cstdint>

#include "schedule.h"
#include "turbotune/base/error.h"
#include "turbotune/device/cuda_driver.h"

namespace turbotune::disentangled_attention {

namespace {

static_assert(sizeof(TensorMap) == sizeof(cuda::TensorMap) && alignof(TensorMap) == alignof(cuda::TensorMap));

constexpr std::int64_t kMostStride = std::int64_t{1} << 40;  // bytes, not reached
constexpr std::int64_t kElement = 2;                         // bytes

// CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion.
constexpr int kFloat16 = 6, kBfloat16 = 9;
constexpr int kSwizzle64 = 2, kSwizzle128 = 3;
constexpr int kPromote128 = 2;

struct Extents {
    std::int64_t rows, heads, batch;
};

Extents extents_of(const Problem& problem) {
    if (problem.layout == Layout::packed) return {std::max<std::int64_t>(problem.tokens, 1), problem.heads, 1};
    return {problem.length, problem.heads, problem.batch};
}

bool can_step(std::int64_t extent, std::int64_t stride) {
    return extent == 1 || (stride > 0 && stride * kElement < kMostStride);
}

cuda::TensorMap& driver_map(TensorMap& map) {
    return reinterpret_cast<cuda::TensorMap&>(map);
}

TensorMap encode(const Problem& problem, std::int64_t row, std::int64_t head, std::int64_t batch) {
    const Extents extents = extents_of(problem);
    auto bytes = [](std::int64_t extent, std::int64_t stride) {
        return static_cast<std::uint64_t>(extent == 1 ? 16 : stride * kElement);  // of one step none is taken
    };
    const std::uint64_t sizes[] = {static_cast<std::uint64_t>(problem.head_dim),
                                   static_cast<std::uint64_t>(extents.rows), static_cast<std::uint64_t>(extents.heads),
                                   static_cast<std::uint64_t>(extents.batch)};
    const std::uint64_t strides[] = {bytes(extents.rows, row), bytes(extents.heads, head), bytes(extents.batch, batch)};
    const unsigned box[] = {static_cast<unsigned>(std::min(problem.head_dim, 64)), 64, 1, 1};
    const unsigned steps[] = {1, 1, 1, 1};
    TensorMap map{};
    void* const nowhere = reinterpret_cast<void*>(std::uintptr_t{1} << 20);  // aligned, replaced before use
    TURBOTUNE_CUDA(cuda::driver()->TensorMapEncodeTiled(
        &driver_map(map), problem.dtype == DType::f16 ? kFloat16 : kBfloat16, 4, nowhere, sizes, strides, box, steps, 0,
        problem.head_dim >= 64 ? kSwizzle128 : kSwizzle64, kPromote128, 0));
    return map;
}

}  // namespace

bool has_tensor_maps(const Problem& problem) {
    const Extents extents = extents_of(problem);
    auto fits = [&](const Strides& strides) {
        return strides.defaulted() || (can_step(extents.rows, strides.row) && can_step(extents.heads, strides.head) &&
                                       can_step(extents.batch, strides.batch));
    };
    return has_aligned_rows(problem) && fits(problem.q) && fits(problem.k) && fits(problem.v);
}

ForwardMaps encode_tensor_maps(const Problem& problem, const ForwardParams& params) {
    return {encode(problem, params.q_row, params.q_head, params.q_batch),
            encode(problem, params.k_row, params.k_head, params.k_batch),
            encode(problem, params.v_row, params.v_head, params.v_batch)};
}

void set_addresses(ForwardMaps& maps, const ForwardParams& params) {
    auto place = [](TensorMap& map, const void* tensor) {
        TURBOTUNE_CUDA(cuda::driver()->TensorMapReplaceAddress(&driver_map(map), const_cast<void*>(tensor)));
    };
    place(maps.q, params.q);
    place(maps.k, params.k);
    place(maps.v, params.v);
}

}  // namespace turbotune::disentangled_attention
