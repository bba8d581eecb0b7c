// Philox4x32, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011. The same text on the GPU and on the host.
#pragma once

#ifdef __CUDACC_RTC__
#define PHILOX_INLINE __device__ __forceinline__
#else
#define PHILOX_INLINE inline
#endif

struct Philox4 {
    unsigned x, y, z, w;
};

constexpr int philox_rounds = 10;
constexpr int philox_most_rounds = 14;  // that there are keys for

// The keys of every round, two each: they depend on the seed alone, so that a kernel reads them as constants.
using PhiloxKeys = unsigned[2 * philox_most_rounds];

PHILOX_INLINE void philox_round_keys(unsigned low, unsigned high, PhiloxKeys& keys) {
    for (int round = 0; round < philox_most_rounds; ++round) {
        keys[2 * round] = low + unsigned(round) * 0x9e3779b9u;
        keys[2 * round + 1] = high + unsigned(round) * 0xbb67ae85u;
    }
}

// Rounds begin .. end - 1. The first ten make a call's four words out of its counter.
template <int begin, int end>
PHILOX_INLINE void philox_advance(Philox4& state, const PhiloxKeys& keys) {
#ifdef __CUDACC_RTC__
#pragma unroll
#endif
    for (int round = begin; round < end; ++round) {
        const unsigned long long a = 0xd2511f53ull * state.x, b = 0xcd9e8d57ull * state.z;
        state = {unsigned(b >> 32) ^ state.y ^ keys[2 * round], unsigned(b),
                 unsigned(a >> 32) ^ state.w ^ keys[2 * round + 1], unsigned(a)};
    }
}

PHILOX_INLINE Philox4 philox(Philox4 counter, const PhiloxKeys& keys) {
    philox_advance<0, philox_rounds>(counter, keys);
    return counter;
}
