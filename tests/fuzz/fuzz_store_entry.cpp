// An entry of the store is handed out only when its key and digests match. The first byte says whether the rest is a
// whole entry, or metadata and an image, a zero byte between them, with digests made here.
#include "fuzz.h"
#include "store_entry.h"

using namespace turbotune;

namespace {

constexpr std::string_view kKeyText = "the key";

void append_integer(std::string& out, std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
}

std::string with_digests(const Digest& key, std::string_view metadata, std::string_view image) {
    const auto add = [](std::string& out, const Digest& digest) {
        out.append(reinterpret_cast<const char*>(digest.data()), digest.size());
    };
    std::string entry = "TTIMAGE\n";
    append_integer(entry, kStoreSchema, 4);
    add(entry, key);
    append_integer(entry, metadata.size(), 8);
    append_integer(entry, image.size(), 8);
    add(entry, sha256(metadata.data(), metadata.size()));
    add(entry, sha256(image.data(), image.size()));
    return entry.append(metadata).append(image);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const Digest key = sha256(kKeyText.data(), kKeyText.size());
    std::string entry(fuzz::view(data + 1, size - 1));
    if (data[0] % 2 == 1) {
        const std::size_t cut = std::min(entry.find('\0'), entry.size());
        const std::string_view text = entry;
        entry = with_digests(key, text.substr(0, cut), text.substr(std::min(cut + 1, text.size())));
    }
    KernelMetadata head;
    const std::string head_problem = decode_entry_head(entry, entry.size(), key, &head);
    Image image;
    const std::string problem = decode_entry(entry, key, &image);
    if (!problem.empty()) {
        fuzz::require(image.bytes.empty(), "nothing of a bad entry is handed out");
        return 0;
    }
    fuzz::require(head_problem.empty(), "a good entry has a good head");
    Image again;
    fuzz::require(decode_entry(encode_entry(key, image), key, &again).empty() && again.bytes == image.bytes &&
                      again.metadata.registers == image.metadata.registers &&
                      again.metadata.kernel_name == image.metadata.kernel_name,
                  "an entry is written as it was read");
    Digest other = key;
    other[31] ^= 1;
    Image foreign;
    fuzz::require(!decode_entry(entry, other, &foreign).empty() && foreign.bytes.empty(),
                  "an entry serves no other key");
    return 0;
}
