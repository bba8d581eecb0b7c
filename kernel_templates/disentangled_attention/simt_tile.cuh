// What the fp32 kernels on the ordinary arithmetic units share. Threads form a side x side grid; of a tile of scores,
// thread (ty, tx) owns rows ty + side * a and columns tx + side * b (a, b < micro), so that its pairs have only
// 2 * micro - 1 differences row - column, ty - tx + side * (a - b).
// needs: common/types.cuh, common/math.cuh, config: dtype, aligned, threads; side and micro of the includer

struct Grid {
    int ty, tx;
};

// A lane shares its column with lane i ^ 1 and its row with lane i ^ 2. Halves of a warp then read at most 128 bytes of
// shared memory at once, in 16-byte reads.
__device__ __forceinline__ Grid place_in_grid() {
    static_assert(side == 8 || side == 16, "a warp holds four rows of threads or two");
    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
    return {warp * (32 / side) + lane / 2 / side * 2 + lane % 2, lane / 2 % side};
}

// Four consecutive elements, as they lie in memory.
struct alignas(8) Halves4 {
    u32 x, y;
};
template <class Type>
struct QuadOf {
    using Quad = Halves4;
};
template <>
struct QuadOf<float> {
    using Quad = Float4;
};

template <class Element>
__device__ __forceinline__ typename QuadOf<Element>::Quad load4(const Element* from) {
    using Quad = typename QuadOf<Element>::Quad;
    if constexpr (aligned)
        return *reinterpret_cast<const Quad*>(from);
    else if constexpr (sizeof(Element) == 4)
        return {from[0], from[1], from[2], from[3]};
    else
        return {u32(from[0]) | u32(from[1]) << 16, u32(from[2]) | u32(from[3]) << 16};
}

template <class Quad>
__device__ __forceinline__ Float4 widen(const Quad& quad) {
    if constexpr (sizeof(Quad) == sizeof(Float4))
        return quad;
    else
        return {low_of<dtype>(quad.x), high_of<dtype>(quad.x), low_of<dtype>(quad.y), high_of<dtype>(quad.y)};
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

template <bool is_f32>
struct ElementOf {
    using Type = float;
};
template <>
struct ElementOf<false> {
    using Type = u16;
};
using Element = ElementOf<dtype == dtype_f32>::Type;
using Quad = QuadOf<Element>::Quad;

// to[row][column] = source(row, column) for quads of columns. Four loads are in flight before the first store; more
// cost registers.
template <int rows, int width, int pitch, class Source>
__device__ __forceinline__ void copy_quads(float* to, Source source) {
    constexpr int quads = width / 4, count = (rows * quads + threads - 1) / threads, flight = count < 4 ? count : 4;
    static_assert(count % flight == 0, "a thread's quads come in whole flights");
#pragma unroll 1
    for (int first = int(threadIdx.x); first < rows * quads; first += flight * threads) {
        Quad raw[flight];
#pragma unroll
        for (int i = 0; i < flight; ++i) {
            const int n = first + i * threads;
            if (rows * quads % threads == 0 || n < rows * quads) raw[i] = source(n / quads, n % quads * 4);
        }
#pragma unroll
        for (int i = 0; i < flight; ++i) {
            const int n = first + i * threads;
            if (rows * quads % threads == 0 || n < rows * quads)
                *reinterpret_cast<Float4*>(to + n / quads * pitch + n % quads * 4) = widen(raw[i]);
        }
    }
}

// Rows first .. first + rows - 1 of a tensor, `width` columns from `base` on; zeros at and beyond row `length`.
template <int rows, int width, int pitch>
__device__ __forceinline__ void load_rows(float* to, const void* tensor, s64 base, s64 row_stride, int first,
                                          int length) {
    const Element* from = static_cast<const Element*>(tensor) + base;
    copy_quads<rows, width, pitch>(to, [&](int row, int column) {
        return first + row < length ? load4(from + (first + row) * row_stride + column) : Quad{};
    });
}

// Row r of a strip is the position table's row of distance first_distance + sign * r.
template <int rows, int width, int pitch, int sign, class Params>
__device__ __forceinline__ void load_strip(const Params& p, float* to, const void* table, s64 base, s64 row_stride,
                                           int first_distance) {
    const Element* from = static_cast<const Element*>(table) + base;
    copy_quads<rows, width, pitch>(to, [&](int row, int column) {
        return load4(from + slot_of(p, first_distance + sign * row) * row_stride + column);
    });
}

// score += x.z, and where the tile is near x.T1 and z.T2, over `width` columns. x: rows of the tile, z: its columns;
// row `row - column + (columns of the tile - 1)` of the strips T1 and T2 belongs to a pair: `strip` is that of row 0,
// column 0.
template <bool near, bool has_t1, bool has_t2, int width, int x_pitch, int z_pitch, int strip_pitch>
__device__ __forceinline__ void add_scores(float (&score)[micro][micro], const Grid& at, const float* x, const float* z,
                                           const float* t1, const float* t2, int strip) {
    x += at.ty * x_pitch;
    z += at.tx * z_pitch;
    const int lowest = (at.ty - at.tx + strip - side * (micro - 1)) * strip_pitch;
#pragma unroll(near ? 1 : 2)
    for (int d = 0; d < width; d += 4) {
        Float4 row[micro], column[micro];
#pragma unroll
        for (int a = 0; a < micro; ++a) row[a] = read4(x + side * a * x_pitch + d);
#pragma unroll
        for (int b = 0; b < micro; ++b) column[b] = read4(z + side * b * z_pitch + d);
#pragma unroll
        for (int a = 0; a < micro; ++a)
#pragma unroll
            for (int b = 0; b < micro; ++b) add_product(score[a][b], row[a], column[b]);
        if constexpr (near) {
#pragma unroll
            for (int u = 0; u < 2 * micro - 1; ++u) {  // a - b = u - (micro - 1)
                Float4 first, second;
                if constexpr (has_t1) first = read4(t1 + lowest + side * u * strip_pitch + d);
                if constexpr (has_t2) second = read4(t2 + lowest + side * u * strip_pitch + d);
#pragma unroll
                for (int b = 0; b < micro; ++b) {
                    const int a = u - (micro - 1) + b;
                    if (a < 0 || a >= micro) continue;
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
