// Scalar arithmetic and the conversions between fp32 and the two 16-bit formats, without cuda_fp16.h.
// needs: common/types.cuh

// Element types, as the config's `dtype` numbers them.
enum : int { dtype_f32, dtype_f16, dtype_bf16 };

__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// NaN when one of them is; fminf gives the other.
__device__ __forceinline__ float min_or_nan(float x, float y) {
    float least;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(x), "f"(y));
    return least;
}

__device__ __forceinline__ float log2_approx(float x) {
    float y;
    asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Two floats rounded to nearest even; `low` is the element at the lower address.
template <int type>
__device__ __forceinline__ u32 pack2(float low, float high) {
    u32 packed;
    if constexpr (type == dtype_f16)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

template <int type>
__device__ __forceinline__ float to_float(u16 bits) {
    if constexpr (type == dtype_f16) {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
        return value;
    } else {
        return __uint_as_float(u32(bits) << 16);
    }
}

template <int type>
__device__ __forceinline__ float low_of(u32 packed) {
    if constexpr (type == dtype_f16) return to_float<type>(u16(packed & 0xffffu));
    return __uint_as_float(packed << 16);
}

template <int type>
__device__ __forceinline__ float high_of(u32 packed) {
    if constexpr (type == dtype_f16) return to_float<type>(u16(packed >> 16));
    return __uint_as_float(packed & 0xffff0000u);
}

// One element of a tensor of any dtype, by index.
template <int type>
__device__ __forceinline__ float load_element(const void* tensor, s64 index) {
    if constexpr (type == dtype_f32)
        return static_cast<const float*>(tensor)[index];
    else
        return to_float<type>(static_cast<const u16*>(tensor)[index]);
}

// Eight elements from `index` on: one or two loads where they begin at a multiple of 16 bytes.
template <int type>
__device__ __forceinline__ void load_elements(float (&to)[8], const void* tensor, s64 index) {
    const char* from = static_cast<const char*>(tensor) + index * (type == dtype_f32 ? 4 : 2);
    if (reinterpret_cast<s64>(from) % 16 != 0) {
        for (int i = 0; i < 8; ++i) to[i] = load_element<type>(tensor, index + i);
    } else if constexpr (type == dtype_f32) {
        const Float4 low = reinterpret_cast<const Float4*>(from)[0], high = reinterpret_cast<const Float4*>(from)[1];
        to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
        to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
    } else {
        const Words4 words = *reinterpret_cast<const Words4*>(from);
        const u32 word[4] = {words.x, words.y, words.z, words.w};
        for (int i = 0; i < 4; ++i) to[2 * i] = low_of<type>(word[i]), to[2 * i + 1] = high_of<type>(word[i]);
    }
}

template <int type>
__device__ __forceinline__ void store_element(void* tensor, s64 index, float value) {
    if constexpr (type == dtype_f32)
        static_cast<float*>(tensor)[index] = value;
    else
        static_cast<u16*>(tensor)[index] = u16(pack2<type>(value, 0.0f) & 0xffffu);
}

// Bytes of high:low, four bits of `selector` for each: PTX ISA, "prmt".
__device__ __forceinline__ u32 permute_bytes(u32 low, u32 high, u32 selector) {
    u32 result;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selector));
    return result;
}
