// The compression function of SHA-256, portable; the class takes the CPU's own instructions where they exist.
#pragma once

#include <cstdint>

namespace turbotune {

// Folds one 64-byte block into the eight words of state.
void sha256_block_portable(std::uint32_t* state, const std::uint8_t* data);

}  // namespace turbotune
