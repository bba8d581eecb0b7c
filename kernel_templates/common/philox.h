// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
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

// The keys of every round, two each: they depend on the seed alone, so that a kernel reads them as constants.
PHILOX_INLINE void philox_round_keys(unsigned low, unsigned high, unsigned (&keys)[2 * philox_rounds]) {
    for (int round = 0; round < philox_rounds; ++round) {
        keys[2 * round] = low + unsigned(round) * 0x9e3779b9u;
        keys[2 * round + 1] = high + unsigned(round) * 0xbb67ae85u;
    }
}

PHILOX_INLINE Philox4 philox(Philox4 counter, const unsigned (&keys)[2 * philox_rounds]) {
#ifdef __CUDACC_RTC__
#pragma unroll
#endif
    for (int round = 0; round < philox_rounds; ++round) {
        const unsigned long long a = 0xd2511f53ull * counter.x, b = 0xcd9e8d57ull * counter.z;
        counter = {unsigned(b >> 32) ^ counter.y ^ keys[2 * round], unsigned(b),
                   unsigned(a >> 32) ^ counter.w ^ keys[2 * round + 1], unsigned(a)};
    }
    return counter;
}
