#include "turbotune/base/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "sha256_block.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace turbotune {

namespace {

// FIPS 180-4, 4.2.2: the fractional parts of the cube roots of the first 64 primes.
alignas(16) constexpr std::uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t load_big_endian(const std::uint8_t* bytes) {
    return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 | bytes[3];
}

#if defined(__x86_64__)
bool cpu_has_sha() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSSE3) || !(c & bit_SSE4_1)) return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & (1u << 29));
}

// The instructions keep the state as (a,b,e,f) and (c,d,g,h), highest lane first, and do two rounds each.
__attribute__((target("sha,sse4.1,ssse3"))) void block_with_instructions(std::uint32_t* state,
                                                                         const std::uint8_t* data) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    const __m128i badc = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(state)), 0xb1);
    const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(state + 4)), 0x1b);
    const __m128i first_abef = _mm_alignr_epi8(badc, efgh, 8);
    const __m128i first_cdgh = _mm_blend_epi16(efgh, badc, 0xf0);
    __m128i abef = first_abef, cdgh = first_cdgh, words[4];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
        __m128i& word = words[i & 3];
        if (i < 4) {
            word = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 16 * i)), swap);
        } else {
            const __m128i before = words[(i - 1) & 3];
            const __m128i seven_back = _mm_alignr_epi8(before, words[(i - 2) & 3], 4);
            word = _mm_sha256msg1_epu32(word, words[(i - 3) & 3]);
            word = _mm_sha256msg2_epu32(_mm_add_epi32(word, seven_back), before);
        }
        const __m128i keyed = _mm_add_epi32(word, _mm_load_si128(reinterpret_cast<const __m128i*>(kRound + 4 * i)));
        cdgh = _mm_sha256rnds2_epu32(cdgh, abef, keyed);
        abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(keyed, 0x0e));
    }
    abef = _mm_shuffle_epi32(_mm_add_epi32(abef, first_abef), 0x1b);
    cdgh = _mm_shuffle_epi32(_mm_add_epi32(cdgh, first_cdgh), 0xb1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(abef, cdgh, 0xf0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(cdgh, abef, 8));
}
#endif

}  // namespace

void sha256_block_portable(std::uint32_t* state, const std::uint8_t* data) {
    std::uint32_t w[64];
    for (int t = 0; t < 16; ++t) w[t] = load_big_endian(data + 4 * t);
    for (int t = 16; t < 64; ++t) {
        const std::uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
        const std::uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
        w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    std::uint32_t v[8];
    std::memcpy(v, state, sizeof v);
#pragma GCC unroll 8
    for (int t = 0; t < 64; ++t) {
        // The roles rotate instead of the values: a is v[-t mod 8], b the next, and so on.
        auto role = [&](int k) -> std::uint32_t& { return v[(k - t) & 7]; };
        const std::uint32_t a = role(0), b = role(1), c = role(2), e = role(4), f = role(5), g = role(6);
        const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
        const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
        const std::uint32_t t1 = role(7) + s1 + ((e & f) ^ (~e & g)) + kRound[t] + w[t];
        const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
        role(3) += t1;
        role(7) = t1 + t2;
    }
    for (int i = 0; i < 8; ++i) state[i] += v[i];
}

// FIPS 180-4, 5.3.3: the fractional parts of the square roots of the first 8 primes.
Sha256::Sha256()
    : state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19} {}

void Sha256::block(const std::uint8_t* data) {
#if defined(__x86_64__)
    static const bool has_sha = cpu_has_sha();
    if (has_sha) return block_with_instructions(state_.data(), data);
#endif
    sha256_block_portable(state_.data(), data);
}

Sha256& Sha256::update(const void* data, std::size_t bytes) {
    if (bytes == 0) return *this;
    const auto* next = static_cast<const std::uint8_t*>(data);
    const std::size_t filled = total_ % buffer_.size();
    total_ += bytes;
    if (filled != 0) {
        const std::size_t taken = std::min(bytes, buffer_.size() - filled);
        std::memcpy(buffer_.data() + filled, next, taken);
        next += taken;
        bytes -= taken;
        if (filled + taken < buffer_.size()) return *this;
        block(buffer_.data());
    }
    for (; bytes >= buffer_.size(); next += buffer_.size(), bytes -= buffer_.size()) block(next);
    std::memcpy(buffer_.data(), next, bytes);
    return *this;
}

Sha256& Sha256::field(std::string_view text) {
    std::uint8_t length[8];
    for (int i = 0; i < 8; ++i) length[i] = static_cast<std::uint8_t>(std::uint64_t{text.size()} >> (8 * i));
    return update(length, sizeof length).update(text.data(), text.size());
}

Digest Sha256::finish() {
    const std::uint64_t bits = total_ * 8;
    // A one bit, zeros, and the length in the last eight bytes of a block.
    std::uint8_t padding[72] = {0x80};
    const std::size_t zeros_end = (total_ % 64 < 56 ? 56 : 120) - total_ % 64;
    for (int i = 0; i < 8; ++i) padding[zeros_end + i] = static_cast<std::uint8_t>(bits >> (56 - 8 * i));
    update(padding, zeros_end + 8);
    Digest digest;
    for (std::size_t i = 0; i < digest.size(); ++i) {
        digest[i] = static_cast<std::uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
    }
    return digest;
}

Digest sha256(const void* data, std::size_t bytes) {
    return Sha256().update(data, bytes).finish();
}

std::string to_hex(const Digest& digest) {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    text.reserve(2 * digest.size());
    for (std::uint8_t byte : digest) {
        text += kDigits[byte >> 4];
        text += kDigits[byte & 15];
    }
    return text;
}

}  // namespace turbotune
