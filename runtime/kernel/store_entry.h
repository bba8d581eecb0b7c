// The bytes of one store entry:
//   magic (8), schema (4), key (32), metadata bytes (8), image bytes (8), sha256 of the metadata (32), sha256 of the
//   image (32), metadata (JSON), image. Integers little endian. Every bit is covered: the fixed part by comparison,
//   the sizes by the size of the file, the rest by the digests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "turbotune/base/sha256.h"
#include "turbotune/kernel/image.h"

namespace turbotune {

inline constexpr std::uint32_t kStoreSchema = 1;
inline constexpr std::size_t kEntryHeaderBytes = 8 + 4 + 32 + 8 + 8 + 32 + 32;

std::string encode_entry(const Digest& key, const Image& image);

// Whether the file begins as an entry does: tells entries from what others keep under such names.
bool has_entry_magic(std::string_view bytes);

// "" and the image, or what is wrong with the bytes. A single flipped bit in a cubin mostly loads without an error, so
// nothing is handed out whose digest was not checked.
std::string decode_entry(std::string_view bytes, const Digest& key, Image* image);

// The same without the image and its digest: for listing. `bytes` may be the beginning of the file only.
std::string decode_entry_head(std::string_view bytes, std::uint64_t file_bytes, const Digest& key,
                              KernelMetadata* metadata);

}  // namespace turbotune
