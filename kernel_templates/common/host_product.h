// result[row][column] = sum over depth of left[row][depth] * right[depth][column], columns along the lanes of vectors,
// register tiles of micro_rows x micro_vectors. Shape gives the strides in floats, known at compile time:
//   left[row * left_row + depth * left_depth], right[vector * right_vector + depth * right_depth],
//   result[row * result_row + vector * result_vector].

#include "common/host_vector.h"

enum class Result {
    replaced,
    added,            // to the old result
    added_to_scaled,  // to the old result times factors[column]
};

template <class Shape, Result how, int rows, int vectors>
inline void register_tile(const float* left, const float* right, float* result, const float* factors, int depth) {
    Vec sum[rows][vectors];
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
            if constexpr (how == Result::replaced) {
                sum[row][v] = Vec{};
            } else {
                sum[row][v] = load(result + row * Shape::result_row + v * Shape::result_vector);
                if constexpr (how == Result::added_to_scaled) sum[row][v] *= load(factors + v * kLanes);
            }
        }
    }
    for (int d = 0; d < depth; ++d) {
        Vec column[vectors];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) column[v] = load(right + v * Shape::right_vector + d * Shape::right_depth);
#pragma GCC unroll 16
        for (int row = 0; row < rows; ++row) {
            const Vec scalar = splat(left[row * Shape::left_row + d * Shape::left_depth]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) sum[row][v] += scalar * column[v];
        }
    }
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v)
            store(result + row * Shape::result_row + v * Shape::result_vector, sum[row][v]);
    }
}

template <class Shape, Result how, int micro_rows, int vectors>
inline void register_tile_column(const float* left, int rows, const float* right, float* result, const float* factors,
                                 int depth) {
    for (int row = 0; row < rows; row += micro_rows) {
        register_tile<Shape, how, micro_rows, vectors>(left + row * Shape::left_row, right,
                                                       result + row * Shape::result_row, factors, depth);
    }
}

// `rows` is a multiple of micro_rows.
template <class Shape, int micro_rows, int micro_vectors, Result how = Result::replaced>
inline void product(const float* left, int rows, const float* right, int vectors, float* result, int depth,
                    const float* factors = nullptr) {
    const auto columns = [&]<int count>(int v) {
        register_tile_column<Shape, how, micro_rows, count>(left, rows, right + v * Shape::right_vector,
                                                            result + v * Shape::result_vector,
                                                            factors ? factors + v * kLanes : nullptr, depth);
    };
    int v = 0;
    for (; v + micro_vectors <= vectors; v += micro_vectors) columns.template operator()<micro_vectors>(v);
    if constexpr (micro_vectors > 2) {
        for (; v + 2 <= vectors; v += 2) columns.template operator()<2>(v);
    }
    if constexpr (micro_vectors > 1) {
        for (; v < vectors; ++v) columns.template operator()<1>(v);
    }
}
