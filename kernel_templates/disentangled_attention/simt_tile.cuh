// What the fp32 kernels on the ordinary arithmetic units share. Threads form a grid of side_m x side_n; of a tile of
// scores, thread (ty, tx) owns rows ty + side_m * a and columns tx + side_n * b (a < micro_m, b < micro_n). With side_n
// = ratio * side_m its pairs share their differences row - column, ty - tx + side_m * (a - ratio * b).
// needs: common/types.cuh, common/math.cuh, config: dtype, aligned, threads; side_m, side_n, micro_m, micro_n of the
// includer

struct Grid {
    int ty, tx;
};

// A warp's 16-byte reads of shared memory take one pass for each half of the warp where lanes i and i ^ 1, or i and
// i ^ 2, read the same address everywhere, and one for each quarter otherwise. So a lane shares its column with lane
// i ^ 1 and its row with lane i ^ 2.
__device__ __forceinline__ Grid place_in_grid() {
    static_assert(side_n == 8 || side_n == 16, "a warp holds four rows of threads or two");
    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
    return {warp * (32 / side_n) + lane / 2 / side_n * 2 + lane % 2, lane / 2 % side_n};
}

// Four consecutive elements as fp32.
__device__ __forceinline__ Float4 load4(const void* tensor, s64 index) {
    Float4 r;
    if constexpr (!aligned) {
        r = {load_element<dtype>(tensor, index), load_element<dtype>(tensor, index + 1),
             load_element<dtype>(tensor, index + 2), load_element<dtype>(tensor, index + 3)};
    } else if constexpr (dtype == dtype_f32) {
        r = *reinterpret_cast<const Float4*>(static_cast<const float*>(tensor) + index);
    } else {
        struct alignas(8) Pairs {
            u32 x, y;
        };
        const Pairs w = *reinterpret_cast<const Pairs*>(static_cast<const u16*>(tensor) + index);
        r = {low_of<dtype>(w.x), high_of<dtype>(w.x), low_of<dtype>(w.y), high_of<dtype>(w.y)};
    }
    return r;
}

__device__ __forceinline__ Float4 read4(const float* from) {
    return *reinterpret_cast<const Float4*>(from);
}

__device__ __forceinline__ void add_product(float& sum, const Float4& a, const Float4& b) {
    sum = fmaf(a.x, b.x, sum);
    sum = fmaf(a.y, b.y, sum);
    sum = fmaf(a.z, b.z, sum);
    sum = fmaf(a.w, b.w, sum);
}

// Rows first .. first + rows - 1 of a tensor, `width` columns from `base` on; zeros at and beyond row `length`.
template <int rows, int width, int pitch>
__device__ __forceinline__ void load_rows(float* to, const void* tensor, s64 base, s64 row_stride, int first,
                                          int length) {
    constexpr int quads = width / 4;
#pragma unroll 2
    for (int n = int(threadIdx.x); n < rows * quads; n += threads) {
        const int row = n / quads, column = n % quads * 4;
        Float4 value = {0.0f, 0.0f, 0.0f, 0.0f};
        if (first + row < length) value = load4(tensor, base + (first + row) * row_stride + column);
        *reinterpret_cast<Float4*>(to + row * pitch + column) = value;
    }
}

// Row r of a strip is the position table's row of distance first_distance + sign * r.
template <int rows, int width, int pitch, int sign, class Params>
__device__ __forceinline__ void load_strip(const Params& p, float* to, const void* table, s64 base, s64 row_stride,
                                           int first_distance) {
    constexpr int quads = width / 4;
#pragma unroll 2
    for (int n = int(threadIdx.x); n < rows * quads; n += threads) {
        const int row = n / quads, column = n % quads * 4;
        const s64 slot = slot_of(p, first_distance + sign * row);
        *reinterpret_cast<Float4*>(to + row * pitch + column) = load4(table, base + slot * row_stride + column);
    }
}

// score += x.z, and where the tile is near x.T1 and z.T2, over `width` columns. x: rows of the tile, z: its columns;
// row `row - column + (columns of the tile - 1)` of the strips T1 and T2 belongs to a pair: `strip` is that of row 0,
// column 0.
template <bool near, bool has_t1, bool has_t2, int width, int x_pitch, int z_pitch, int strip_pitch>
__device__ __forceinline__ void add_scores(float (&score)[micro_m][micro_n], const Grid& at, const float* x,
                                           const float* z, const float* t1, const float* t2, int strip) {
    x += at.ty * x_pitch;
    z += at.tx * z_pitch;
    constexpr int ratio = side_n / side_m, most = ratio * (micro_n - 1);
    const int lowest = (at.ty - at.tx + strip - side_m * most) * strip_pitch;
#pragma unroll(near ? 1 : 2)
    for (int d = 0; d < width; d += 4) {
        Float4 row[micro_m], column[micro_n];
#pragma unroll
        for (int a = 0; a < micro_m; ++a) row[a] = read4(x + side_m * a * x_pitch + d);
#pragma unroll
        for (int b = 0; b < micro_n; ++b) column[b] = read4(z + side_n * b * z_pitch + d);
#pragma unroll
        for (int a = 0; a < micro_m; ++a)
#pragma unroll
            for (int b = 0; b < micro_n; ++b) add_product(score[a][b], row[a], column[b]);
        if constexpr (near) {
#pragma unroll
            for (int u = 0; u < micro_m + most; ++u) {  // a - ratio * b = u - most
                Float4 first, second;
                if constexpr (has_t1) first = read4(t1 + lowest + side_m * u * strip_pitch + d);
                if constexpr (has_t2) second = read4(t2 + lowest + side_m * u * strip_pitch + d);
#pragma unroll
                for (int b = 0; b < micro_n; ++b) {
                    const int a = u - most + ratio * b;
                    if (a < 0 || a >= micro_m) continue;
                    if constexpr (has_t1) add_product(score[a][b], row[a], first);
                    if constexpr (has_t2) add_product(score[a][b], column[b], second);
                }
            }
        }
    }
}

template <int width>
__device__ __forceinline__ void read_columns(float (&to)[width], const float* from) {
    if constexpr (width == 4) {
        const Float4 x = read4(from);
        to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    } else {
#pragma unroll
        for (int i = 0; i < width; ++i) to[i] = from[i];
    }
}
