#include "turbotune/base/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>

#include "turbotune/base/error.h"
#include "turbotune/base/files.h"
#include "turbotune/base/json.h"

namespace turbotune {

static_assert(std::endian::native == std::endian::little, "the format stores little-endian numbers");

namespace {

constexpr std::size_t kLengthBytes = 8;
// The format's own limit.
constexpr std::uint64_t kLongestHeader = 100'000'000;

struct NamedDType {
    const char* name;
    DType dtype;
};
constexpr NamedDType kDTypes[] = {{"F64", DType::f64}, {"F32", DType::f32}, {"F16", DType::f16}, {"BF16", DType::bf16},
                                  {"I32", DType::i32}, {"U8", DType::u8},   {"BOOL", DType::u8}};

const char* name_of(DType dtype) {
    for (const NamedDType& named : kDTypes) {
        if (named.dtype == dtype) return named.name;
    }
    throw InvalidArgument("dtype", fmt::format("unknown code {}", static_cast<int>(dtype)));
}

DType read_dtype(JsonReader& entry) {
    const std::string name = entry.text("dtype");
    for (const NamedDType& named : kDTypes) {
        if (name == named.name) return named.dtype;
    }
    entry.fail("dtype", "unknown dtype \"" + name + "\"");
}

std::vector<std::int64_t> read_integers(JsonReader& entry, const std::string& key) {
    std::vector<std::int64_t> values;
    for (const JsonReader& element : entry.array(key)) {
        const Json& value = element.value();
        // A negative integer has a signed type, every other an unsigned one.
        if (!value.is_number_unsigned() || value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
            element.fail("", "expected an integer of at least 0, got " + value.dump());
        }
        values.push_back(value.get<std::int64_t>());
    }
    return values;
}

struct Extent {
    std::int64_t begin, end;
    std::string name;
};

HostTensor read_tensor(JsonReader& entry, std::string_view data, Extent& extent) {
    HostTensor tensor;
    tensor.dtype = read_dtype(entry);
    tensor.shape = read_integers(entry, "shape");
    const std::vector<std::int64_t> offsets = read_integers(entry, "data_offsets");
    entry.finish();
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > static_cast<std::int64_t>(data.size())) {
        entry.fail("data_offsets", fmt::format("expected begin <= end <= {}, the bytes of data, got {}", data.size(),
                                               shape_to_string(offsets)));
    }
    extent.begin = offsets[0];
    extent.end = offsets[1];
    std::int64_t elements = 0;
    try {
        elements = tensor.size();
    } catch (const InvalidArgument&) {
        entry.fail("shape", "too many elements in " + shape_to_string(tensor.shape));
    }
    const std::int64_t bytes = elements * static_cast<std::int64_t>(size_of(tensor.dtype));
    if (bytes != extent.end - extent.begin) {
        entry.fail("data_offsets", fmt::format("{} bytes, but {} of {} take {}", extent.end - extent.begin,
                                               shape_to_string(tensor.shape), to_string(tensor.dtype), bytes));
    }
    const auto* first = reinterpret_cast<const std::byte*>(data.data()) + extent.begin;
    tensor.data.assign(first, first + bytes);
    return tensor;
}

// The format wants every byte to belong to exactly one tensor.
void check_cover(std::vector<Extent> extents, std::size_t data_bytes, const std::string& file) {
    std::sort(extents.begin(), extents.end(),
              [](const Extent& a, const Extent& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
    std::int64_t covered = 0;
    for (const Extent& extent : extents) {
        if (extent.begin != covered) {
            throw InvalidArgument(file, fmt::format("tensor \"{}\" begins at byte {} of the data, but the tensors "
                                                    "before it end at {}",
                                                    extent.name, extent.begin, covered));
        }
        covered = extent.end;
    }
    if (covered != static_cast<std::int64_t>(data_bytes)) {
        throw InvalidArgument(file, fmt::format("{} bytes of data, but the tensors end at {}", data_bytes, covered));
    }
}

std::uint64_t header_length(const std::string& bytes, const std::string& file) {
    if (bytes.size() < kLengthBytes) {
        throw InvalidArgument(file, fmt::format("truncated: {} bytes are too few for a header", bytes.size()));
    }
    std::uint64_t length;
    std::memcpy(&length, bytes.data(), kLengthBytes);
    if (length > kLongestHeader) throw InvalidArgument(file, fmt::format("header length {} is absurd", length));
    if (length > bytes.size() - kLengthBytes) {
        throw InvalidArgument(file, fmt::format("truncated: the header takes {} bytes, {} are there", length,
                                                bytes.size() - kLengthBytes));
    }
    return length;
}

}  // namespace

SafetensorsFile parse_safetensors(const std::string& bytes, const std::string& name_for_errors) {
    const std::uint64_t length = header_length(bytes, name_for_errors);
    const std::string_view data = std::string_view(bytes).substr(kLengthBytes + length);
    const Json header = parse_json(bytes.substr(kLengthBytes, length), name_for_errors);
    JsonReader reader(header, name_for_errors);
    SafetensorsFile file;
    std::vector<Extent> extents;
    if (!header.is_object()) reader.fail("", "expected an object");
    for (const auto& item : header.items()) {
        if (item.key() == "__metadata__") {
            JsonReader metadata = reader.object(item.key());
            for (const auto& pair : item.value().items()) file.metadata[pair.key()] = metadata.text(pair.key());
        } else {
            JsonReader entry = reader.object(item.key());
            extents.push_back({0, 0, item.key()});
            file.tensors[item.key()] = read_tensor(entry, data, extents.back());
        }
    }
    check_cover(std::move(extents), data.size(), name_for_errors);
    return file;
}

SafetensorsFile read_safetensors(const std::string& path) {
    const std::optional<std::string> bytes = read_file(path);
    if (!bytes) throw InvalidArgument(path, fmt::format("cannot be read: {}", std::strerror(errno)));
    return parse_safetensors(*bytes, path);
}

void write_safetensors(const std::string& path, const SafetensorsFile& file) {
    // Widest elements first, so that each tensor lies aligned to its own element.
    std::vector<const NamedTensors::value_type*> order;
    for (const auto& named : file.tensors) order.push_back(&named);
    std::stable_sort(order.begin(), order.end(),
                     [](const auto* a, const auto* b) { return size_of(a->second.dtype) > size_of(b->second.dtype); });

    Json header = Json::object();
    if (!file.metadata.empty()) header["__metadata__"] = file.metadata;
    std::size_t offset = 0;
    for (const auto* named : order) {
        const HostTensor& tensor = named->second;
        const std::size_t bytes = tensor.data.size();
        if (named->first == "__metadata__" ||
            static_cast<std::size_t>(tensor.size()) * size_of(tensor.dtype) != bytes) {
            throw InvalidArgument(path, fmt::format("tensor \"{}\" of shape {} and {} bytes cannot be written",
                                                    named->first, shape_to_string(tensor.shape), bytes));
        }
        header[named->first] = {
            {"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + bytes}}};
        offset += bytes;
    }

    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const std::uint64_t length = text.size();
    std::string bytes(kLengthBytes, '\0');
    std::memcpy(bytes.data(), &length, kLengthBytes);
    bytes.reserve(kLengthBytes + length + offset);
    bytes += text;
    for (const auto* named : order) {
        bytes.append(reinterpret_cast<const char*>(named->second.data.data()), named->second.data.size());
    }
    if (const int failed = write_file_atomic(path, bytes)) {
        throw InvalidArgument(path, fmt::format("cannot be written: {}", std::strerror(failed)));
    }
}

}  // namespace turbotune
