// Philox's rounds with their high products by the fp64 units, for devices that have many and for kernels whose integer
// multiplications stand in the way of others. The same words as philox.h.
// needs: common/types.cuh, common/philox.h
//
// x stands for the double 2^84 + x * 2^32, whose lower word is x. An fma that rounds to zero gives 2^84 + x * m without
// the product's lower 32 bits, that is the double of its upper ones.

struct PhiloxFp64 {
    double x, z;
    u32 y, w;

    __device__ __forceinline__ explicit PhiloxFp64(const Philox4& counter)
        : x(__hiloint2double(0x45300000, int(counter.x))),
          z(__hiloint2double(0x45300000, int(counter.z))),
          y(counter.y),
          w(counter.w) {}

    __device__ __forceinline__ operator Philox4() const { return {low(x), y, low(z), w}; }

    static __device__ __forceinline__ u32 low(double word) { return u32(__double2loint(word)); }
    // `product`'s word with others.
    static __device__ __forceinline__ double mixed(double product, u32 others) {
        return __hiloint2double(__double2hiint(product), int(low(product) ^ others));
    }
};

template <int begin, int end>
__device__ __forceinline__ void philox_advance(PhiloxFp64& state, const PhiloxKeys& keys) {
    constexpr double of_x = double(0xd2511f53u), of_z = double(0xcd9e8d57u);
#pragma unroll
    for (int round = begin; round < end; ++round) {
        const u32 a = 0xd2511f53u * state.low(state.x), b = 0xcd9e8d57u * state.low(state.z);
        const double high_a = __fma_rz(state.x, of_x * 0x1p-32, 0x1p84 - 0x1p52 * of_x);
        const double high_b = __fma_rz(state.z, of_z * 0x1p-32, 0x1p84 - 0x1p52 * of_z);
        state.x = state.mixed(high_b, state.y ^ keys[2 * round]);
        state.z = state.mixed(high_a, state.w ^ keys[2 * round + 1]);
        state.y = b, state.w = a;
    }
}
