#include <algorithm>
#include <cstring>
#include <random>

#include "../../runtime/base/sha256_block.h"
#include "catch.h"
#include "turbotune/base/sha256.h"

using namespace turbotune;

namespace {

std::string hex_of(const std::string& text) {
    return to_hex(sha256(text.data(), text.size()));
}

// The digest by the portable block alone, padded here.
std::string portable_hex_of(const std::string& text) {
    std::uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                              0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::string padded = text + '\x80';
    while (padded.size() % 64 != 56) padded += '\0';
    for (int shift = 56; shift >= 0; shift -= 8) padded += static_cast<char>(text.size() * 8 >> shift);
    for (std::size_t i = 0; i < padded.size(); i += 64) {
        sha256_block_portable(state, reinterpret_cast<const std::uint8_t*>(padded.data()) + i);
    }
    Digest digest;
    for (std::size_t i = 0; i < 32; ++i) digest[i] = static_cast<std::uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
    return to_hex(digest);
}

struct Vector {
    std::string message;
    const char* digest;
};

// NIST's example values for FIPS 180-4, and the empty message.
const Vector kVectors[] = {
    {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
     "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
    {std::string(1'000'000, 'a'), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
};

std::string random_text(std::size_t size) {
    std::mt19937 random(static_cast<unsigned>(size) + 1);
    std::string text(size, '\0');
    for (char& c : text) c = static_cast<char>(random());
    return text;
}

}  // namespace

TEST_CASE("The standard's messages have the standard's digests", "[sha256]") {
    for (const Vector& vector : kVectors) {
        CHECK(hex_of(vector.message) == vector.digest);
        CHECK(portable_hex_of(vector.message) == vector.digest);
    }
}

TEST_CASE("The CPU's instructions and the portable block agree at every length around the block size", "[sha256]") {
    for (std::size_t size = 0; size <= 200; ++size) {
        const std::string text = random_text(size);
        REQUIRE(hex_of(text) == portable_hex_of(text));
    }
}

TEST_CASE("A digest does not depend on how the message was cut", "[sha256]") {
    const std::string text = random_text(5000);
    std::mt19937 random(7);
    for (int round = 0; round < 50; ++round) {
        Sha256 hash;
        for (std::size_t at = 0; at < text.size();) {
            const std::size_t step = std::min<std::size_t>(random() % 150, text.size() - at);
            hash.update(text.data() + at, step);
            at += step;
        }
        REQUIRE(to_hex(hash.finish()) == hex_of(text));
    }
}

TEST_CASE("A field is its length and then its bytes", "[sha256]") {
    const std::string by_hand = std::string("\x03\0\0\0\0\0\0\0", 8) + "abc" + std::string(8, '\0');
    CHECK(to_hex(Sha256().field("abc").field("").finish()) == hex_of(by_hand));
    CHECK(Sha256().field("ab").field("c").finish() != Sha256().field("a").field("bc").finish());
    CHECK(Sha256().field("").field("a").finish() != Sha256().field("a").field("").finish());
}

TEST_CASE("One flipped bit anywhere changes the digest", "[sha256]") {
    std::string text = random_text(130);
    const std::string digest = hex_of(text);
    for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
        text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
        REQUIRE(hex_of(text) != digest);
        text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
    }
}
