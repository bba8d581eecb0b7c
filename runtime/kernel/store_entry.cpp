#include "store_entry.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <limits>

#include "turbotune/base/error.h"
#include "turbotune/base/json.h"

namespace turbotune {
namespace {

constexpr std::string_view kMagic = "TTIMAGE\n";
constexpr std::uint64_t kLargestMetadata = std::uint64_t{1} << 20;

void append_integer(std::string& out, std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
}

std::uint64_t read_integer(std::string_view bytes) {
    std::uint64_t value = 0;
    for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    return value;
}

std::string_view view(const Digest& digest) {
    return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

bool has_digest(std::string_view bytes, std::string_view digest) {
    return view(sha256(bytes.data(), bytes.size())) == digest;
}

std::string metadata_text(const KernelMetadata& metadata) {
    Json json;
    json["kernel_name"] = metadata.kernel_name;
    json["registers"] = metadata.registers;
    json["local_bytes"] = metadata.local_bytes;
    json["spill_store_bytes"] = metadata.spill_store_bytes;
    json["spill_load_bytes"] = metadata.spill_load_bytes;
    json["static_shared_bytes"] = metadata.static_shared_bytes;
    json["compile_ms"] = metadata.compile_ms;
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

KernelMetadata parse_metadata(const std::string& text) {
    const Json json = parse_json(text, "metadata");
    JsonReader reader(json, "metadata");
    const auto integer = [&](const char* name) {
        return static_cast<int>(reader.integer(name, -1, std::numeric_limits<int>::max()));
    };
    KernelMetadata metadata;
    metadata.kernel_name = reader.text("kernel_name");
    metadata.registers = integer("registers");
    metadata.local_bytes = integer("local_bytes");
    metadata.spill_store_bytes = integer("spill_store_bytes");
    metadata.spill_load_bytes = integer("spill_load_bytes");
    metadata.static_shared_bytes = integer("static_shared_bytes");
    metadata.compile_ms = reader.number("compile_ms", 0, 1e12);
    reader.finish();
    return metadata;
}

struct Head {
    std::uint64_t metadata_bytes = 0, image_bytes = 0;
    std::string_view metadata_digest, image_digest;
};

// Takes `count` bytes off the front.
std::string_view take(std::string_view& bytes, std::size_t count) {
    const std::string_view taken = bytes.substr(0, count);
    bytes.remove_prefix(count);
    return taken;
}

std::string read_head(std::string_view bytes, std::uint64_t file_bytes, const Digest& key, Head* head) {
    if (file_bytes == 0) return "it is empty";
    if (bytes.size() < kEntryHeaderBytes) return fmt::format("it is truncated to {} bytes", file_bytes);
    if (take(bytes, 8) != kMagic) return "it is no store entry";
    const auto schema = read_integer(take(bytes, 4));
    if (schema != kStoreSchema) return fmt::format("its schema is {}, not {}", schema, kStoreSchema);
    if (take(bytes, 32) != view(key)) return "it belongs to another key";
    head->metadata_bytes = read_integer(take(bytes, 8));
    head->image_bytes = read_integer(take(bytes, 8));
    head->metadata_digest = take(bytes, 32);
    head->image_digest = take(bytes, 32);
    const std::uint64_t body = file_bytes - kEntryHeaderBytes;
    if (head->metadata_bytes > kLargestMetadata || head->metadata_bytes > body ||
        head->image_bytes != body - head->metadata_bytes)
        return "its size is not the size that it states";
    return {};
}

std::string read_metadata(std::string_view bytes, const Head& head, KernelMetadata* metadata) {
    const std::string_view text = bytes.substr(kEntryHeaderBytes, head.metadata_bytes);
    if (text.size() < head.metadata_bytes || !has_digest(text, head.metadata_digest)) return "its metadata is damaged";
    try {
        *metadata = parse_metadata(std::string(text));
    } catch (const InvalidArgument& error) {
        return error.what();
    }
    return {};
}

}  // namespace

std::string encode_entry(const Digest& key, const Image& image) {
    const std::string metadata = metadata_text(image.metadata);
    std::string out(kMagic);
    out.reserve(kEntryHeaderBytes + metadata.size() + image.bytes.size());
    append_integer(out, kStoreSchema, 4);
    out += view(key);
    append_integer(out, metadata.size(), 8);
    append_integer(out, image.bytes.size(), 8);
    out += view(sha256(metadata.data(), metadata.size()));
    out += view(sha256(image.bytes.data(), image.bytes.size()));
    return out + metadata + image.bytes;
}

bool has_entry_magic(std::string_view bytes) {
    return bytes.substr(0, kMagic.size()) == kMagic;
}

std::string decode_entry(std::string_view bytes, const Digest& key, Image* image) {
    Head head;
    std::string problem = read_head(bytes, bytes.size(), key, &head);
    if (problem.empty()) problem = read_metadata(bytes, head, &image->metadata);
    if (!problem.empty()) return problem;
    const std::string_view body = bytes.substr(kEntryHeaderBytes + head.metadata_bytes);
    if (!has_digest(body, head.image_digest)) return "its image is damaged";
    image->bytes = std::string(body);
    return {};
}

std::string decode_entry_head(std::string_view bytes, std::uint64_t file_bytes, const Digest& key,
                              KernelMetadata* metadata) {
    Head head;
    const std::string problem = read_head(bytes, file_bytes, key, &head);
    return problem.empty() ? read_metadata(bytes, head, metadata) : problem;
}

}  // namespace turbotune
