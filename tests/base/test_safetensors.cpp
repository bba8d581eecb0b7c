#include <cstring>
#include <random>

#include "base/temp_directory.h"
#include "catch.h"
#include "turbotune/base/error.h"
#include "turbotune/base/files.h"
#include "turbotune/base/safetensors.h"

using namespace turbotune;
using turbotune::test::TempDirectory;

namespace {

const std::string kData = TURBOTUNE_TEST_DATA;

// A file from its header text and data.
std::string assemble(const std::string& header, const std::string& data) {
    const std::uint64_t length = header.size();
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    return bytes + header + data;
}

std::string message_of(const std::string& bytes) {
    try {
        parse_safetensors(bytes, "f");
    } catch (const InvalidArgument& error) {
        return error.what();
    }
    return "";
}

SafetensorsFile example() {
    SafetensorsFile file;
    int seed = 0;
    for (DType dtype : {DType::u8, DType::f64, DType::f16, DType::i32, DType::bf16, DType::f32}) {
        HostTensor tensor(dtype, {3, 2 * seed + 1});
        for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, static_cast<double>(i * 3 + seed));
        file.tensors["t" + std::to_string(seed++)] = tensor;
    }
    file.tensors["empty"] = HostTensor(DType::f32, {0, 4});
    file.tensors["scalar"] = HostTensor(DType::f64, {});
    file.tensors["scalar"].set(0, -2.5);
    file.metadata = {{"case", "{\"op\": \"x\"}"}, {"empty", ""}};
    return file;
}

void check_equal(const SafetensorsFile& a, const SafetensorsFile& b) {
    CHECK(a.metadata == b.metadata);
    REQUIRE(a.tensors.size() == b.tensors.size());
    for (const auto& [name, tensor] : a.tensors) {
        INFO(name);
        REQUIRE(b.tensors.count(name) == 1);
        const HostTensor& other = b.tensors.at(name);
        CHECK(tensor.dtype == other.dtype);
        CHECK(tensor.shape == other.shape);
        CHECK(tensor.data == other.data);
    }
}

}  // namespace

TEST_CASE("What is written is read back", "[safetensors]") {
    TempDirectory directory;
    const std::string path = directory.file("x.safetensors");
    const SafetensorsFile file = example();
    write_safetensors(path, file);
    check_equal(read_safetensors(path), file);
    // Aligned: the data begins at a multiple of 8, and so does the first tensor of the widest type.
    const std::string bytes = read_file(path).value();
    std::uint64_t length;
    std::memcpy(&length, bytes.data(), 8);
    CHECK(length % 8 == 0);
    write_safetensors(path, {});
    check_equal(read_safetensors(path), {});
}

TEST_CASE("Golden files are read", "[safetensors]") {
    const SafetensorsFile file = read_safetensors(kData + "/da_both_l33_d32.safetensors");
    REQUIRE(file.metadata.count("case") == 1);
    CHECK(file.metadata.at("case").find("\"L\": 33") != std::string::npos);
    REQUIRE(file.tensors.count("in.q") == 1);
    CHECK(file.tensors.at("in.q").shape == std::vector<std::int64_t>{2, 33, 64});
    CHECK(file.tensors.at("in.q").dtype == DType::bf16);
    CHECK(file.tensors.at("out.o").dtype == DType::f32);
    CHECK(file.tensors.at("in.keep").to_doubles() == std::vector<double>(66, 1.0));
    for (const auto& [name, tensor] : file.tensors) {
        INFO(name);
        CHECK(static_cast<std::size_t>(tensor.size()) * size_of(tensor.dtype) == tensor.data.size());
    }
    check_equal(parse_safetensors(read_file(kData + "/da_both_l33_d32.safetensors").value(), "f"), file);
}

TEST_CASE("Values lie where the format says, and BOOL is read as bytes", "[safetensors]") {
    const float values[2] = {1.5f, -3.f};
    std::string data(10, '\1');
    std::memcpy(data.data(), values, 8);
    const SafetensorsFile file = parse_safetensors(assemble(R"({"b":{"dtype":"BOOL","shape":[2],"data_offsets":[8,10]},
                     "a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}   )",
                                                            data),
                                                   "f");
    CHECK(file.tensors.at("a").to_doubles() == std::vector<double>{1.5, -3});
    CHECK(file.tensors.at("b").dtype == DType::u8);
    CHECK(file.tensors.at("b").to_doubles() == std::vector<double>{1, 1});
}

TEST_CASE("Malformed files are refused with the reason", "[safetensors]") {
    const std::string eight(8, 'x');
    const auto entry = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
        return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
    };
    CHECK(message_of(assemble(entry("F32", "[2]", "[0,8]"), eight)).empty());
    const std::pair<std::string, std::string> cases[] = {
        {"", "truncated"},
        {"1234567", "truncated"},
        {std::string(8, '\xff'), "absurd"},
        {std::string("\x05\0\0\0\0\0\0\0{}", 10), "truncated"},
        {assemble("", ""), "parse error"},
        {assemble("[]", ""), "expected an object"},
        {assemble("{} x", ""), "parse error"},
        {assemble("{}", "x"), "the tensors end at 0"},
        {assemble(entry("F8", "[8]", "[0,8]"), eight), "/a/dtype: unknown dtype \"F8\""},
        {assemble(entry("f32", "[2]", "[0,8]"), eight), "unknown dtype"},
        {assemble(entry("F32", "[3]", "[0,8]"), eight), "8 bytes, but [3] of f32 take 12"},
        {assemble(entry("F32", "[-2]", "[0,8]"), eight), "/a/shape/0: expected an integer of at least 0"},
        {assemble(entry("F32", "[2.0]", "[0,8]"), eight), "/a/shape/0"},
        {assemble(entry("F32", "2", "[0,8]"), eight), "expected an array"},
        {assemble(entry("F32", "[4611686018427387904,4]", "[0,8]"), eight), "too many elements"},
        {assemble(entry("F32", "[18446744073709551615]", "[0,8]"), eight), "/a/shape/0"},
        {assemble(entry("F32", "[2]", "[0,8,9]"), eight), "data_offsets"},
        {assemble(entry("F32", "[2]", "[8,0]"), eight), "data_offsets"},
        {assemble(entry("F32", "[2]", "[0,8]"), "1234"), "data_offsets"},
        {assemble(entry("F32", "[2]", "[1,9]"), eight), "data_offsets"},
        {assemble(entry("F32", "[1]", "[4,8]"), eight), "begins at byte 4"},
        {assemble(entry("F32", "[1]", "[0,4]"), eight), "8 bytes of data, but the tensors end at 4"},
        {assemble(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"x":1}})", eight), "unknown key"},
        {assemble(R"({"a":{"dtype":"U8","shape":[8]}})", eight), "missing key"},
        {assemble(R"({"a":1})", ""), "expected an object"},
        {assemble(R"({"__metadata__":{"x":1}})", ""), "/__metadata__/x: expected a text"},
        {assemble(
             R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},"b":{"dtype":"U8","shape":[5],"data_offsets":[3,8]}})",
             eight),
         "tensor \"b\" begins at byte 3"},
        {assemble(
             R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
             eight),
         "duplicate key \"a\""},
    };
    for (const auto& [bytes, reason] : cases) {
        INFO("reason: " << reason << ", got: " << message_of(bytes));
        REQUIRE_THROWS_AS(parse_safetensors(bytes, "f"), InvalidArgument);
        CHECK(message_of(bytes).rfind("f: ", 0) == 0);
        CHECK(message_of(bytes).find(reason) != std::string::npos);
    }
}

TEST_CASE("Every truncation of a file is refused", "[safetensors]") {
    TempDirectory directory;
    const std::string path = directory.file("x");
    write_safetensors(path, example());
    const std::string bytes = read_file(path).value();
    for (std::size_t size = 0; size < bytes.size(); ++size) {
        REQUIRE_THROWS_AS(parse_safetensors(bytes.substr(0, size), "f"), InvalidArgument);
    }
}

TEST_CASE("Damaged headers are read or refused, never anything else", "[safetensors]") {
    TempDirectory directory;
    const std::string path = directory.file("x");
    write_safetensors(path, example());
    const std::string bytes = read_file(path).value();
    std::uint64_t length;
    std::memcpy(&length, bytes.data(), 8);
    std::mt19937 random(5);
    int refused = 0;
    for (int round = 0; round < 5000; ++round) {
        std::string damaged = bytes;
        for (unsigned edits = 1 + random() % 2; edits > 0; --edits) {
            const std::size_t at = random() % (8 + length);
            damaged[at] = random() % 2 ? static_cast<char>('0' + random() % 10) : static_cast<char>(random());
        }
        try {
            parse_safetensors(damaged, "f");
        } catch (const InvalidArgument&) {
            ++refused;
        }
    }
    CHECK(refused > 3000);
}

TEST_CASE("Files that cannot be read or written are named", "[safetensors]") {
    TempDirectory directory;
    REQUIRE_THROWS_AS(read_safetensors(directory.file("missing")), InvalidArgument);
    REQUIRE_THROWS_AS(read_safetensors(directory.path()), InvalidArgument);
    REQUIRE_THROWS_AS(write_safetensors(directory.file("no/x"), example()), InvalidArgument);
    SafetensorsFile wrong;
    wrong.tensors["t"] = HostTensor(DType::f32, {2});
    wrong.tensors["t"].data.resize(4);
    REQUIRE_THROWS_AS(write_safetensors(directory.file("x"), wrong), InvalidArgument);
    CHECK_FALSE(file_exists(directory.file("x")));
    SafetensorsFile reserved;
    reserved.tensors["__metadata__"] = HostTensor(DType::f32, {2});
    REQUIRE_THROWS_AS(write_safetensors(directory.file("x"), reserved), InvalidArgument);
}
