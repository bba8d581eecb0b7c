// Rows of head_dim elements in shared memory, in 16-byte chunks swizzled by row, for ldmatrix. Elements have 16 bits,
// or 32 to be multiplied as tf32. needs: common/types.cuh, common/math.cuh, common/async_copy.cuh, config

template <bool is_f32>
struct ElementOf {
    using Type = float;
};
template <>
struct ElementOf<false> {
    using Type = u16;
};
using Element = ElementOf<dtype == dtype_f32>::Type;

constexpr int word_elements = 4 / int(sizeof(Element));
constexpr int chunk_elements = 4 * word_elements;
constexpr int row_bytes = int(sizeof(Element)) * head_dim;
constexpr int row_chunks = row_bytes / 16;
constexpr int dim_steps = row_bytes / 32;  // k steps of the products over head_dim

static_assert(head_dim == 32 || head_dim == 64 || head_dim == 128, "head_dim must be 32, 64 or 128");

// Byte offset of a 16-byte chunk in a tile of head_dim-wide rows, such that 8 rows of one chunk column fill all banks.
__device__ __forceinline__ u32 swizzled(int row, int chunk) {
    const int turn = row_chunks == 4 ? (row >> 1) & 3 : row & 7;
    return u32(row * row_bytes + ((chunk ^ turn) << 4));
}

// 32 bits of a row: one element or two.
template <class Type>
__device__ __forceinline__ u32 load_word(const Type* from) {
    if constexpr (sizeof(Type) == 4)
        return __float_as_uint(*from);
    else if constexpr (aligned)
        return *reinterpret_cast<const u32*>(from);
    else
        return u32(from[0]) | u32(from[1]) << 16;
}

// A chunk from global to shared memory; zeros when not valid.
__device__ __forceinline__ void copy_chunk(u32 to, const Element* from, bool valid) {
    if constexpr (aligned) {
        copy_async16(to, from, valid);
    } else {
        u32 word[4] = {0, 0, 0, 0};
        if (valid)
            for (int i = 0; i < 4; ++i) word[i] = load_word(from + i * word_elements);
        store_shared16(to, {word[0], word[1], word[2], word[3]});
    }
}

// fp16 saturates instead of turning into infinity.
template <int type = dtype>
__device__ __forceinline__ u32 pack_operand(float low, float high) {
    if constexpr (type == dtype_f16) {
        low = fminf(fmaxf(low, -65504.0f), 65504.0f);
        high = fminf(fmaxf(high, -65504.0f), 65504.0f);
    }
    return pack2<type>(low, high);
}
