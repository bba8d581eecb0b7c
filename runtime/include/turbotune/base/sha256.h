// SHA-256 (FIPS 180-4).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace turbotune {

using Digest = std::array<std::uint8_t, 32>;

class Sha256 {
  public:
    Sha256();
    Sha256& update(const void* data, std::size_t bytes);
    // Feeds the length first (8 bytes, little endian), so that ("ab","c") and ("a","bc") differ.
    Sha256& field(std::string_view text);
    Digest finish();

  private:
    void block(const std::uint8_t* data);
    std::array<std::uint32_t, 8> state_;
    std::array<std::uint8_t, 64> buffer_{};
    std::uint64_t total_ = 0;
};

Digest sha256(const void* data, std::size_t bytes);
std::string to_hex(const Digest& digest);   // 64 lower-case digits

}  // namespace turbotune
