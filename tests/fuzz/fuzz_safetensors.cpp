// Tensors with known results: the container, its description, and the cases that each operation makes of them. The
// input is the header's JSON, a zero byte, the data; or a whole file, told by the first byte.
#include <cstring>

#include "fuzz.h"
#include "turbotune/base/error.h"
#include "turbotune/base/safetensors.h"
#include "turbotune/ops/operation.h"

using namespace turbotune;

namespace {

std::string with_length(std::string_view text) {
    const std::size_t cut = std::min(text.find('\0'), text.size());
    const std::uint64_t length = cut;
    std::string bytes(sizeof length, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    bytes.append(text.substr(0, cut));
    // As much data as is asked for costs the fuzzer nothing to find: each byte of the rest stands for sixteen.
    for (const char byte : text.substr(std::min(cut + 1, text.size()))) bytes.append(16, byte);
    return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const std::string_view rest = fuzz::view(data + 1, size - 1);
    const std::string bytes = data[0] % 2 == 0 ? std::string(rest) : with_length(rest);
    SafetensorsFile file;
    try {
        file = parse_safetensors(bytes, "fuzz.safetensors");
    } catch (const InvalidArgument&) {
        return 0;
    }
    std::size_t total = 0;
    for (const auto& [name, tensor] : file.tensors) {
        fuzz::require(tensor.data.size() == std::size_t(tensor.size()) * size_of(tensor.dtype),
                      "a tensor has the bytes of its shape");
        total += tensor.data.size();
    }
    fuzz::require(total <= bytes.size(), "tensors come out of the file");
    for (const Operation* operation : operations()) {
        try {
            std::vector<std::pair<std::string, std::string>> skipped;
            for (const TestCase& each : operation->golden_cases(file, &skipped)) {
                fuzz::require(!each.outputs.empty() && each.tolerance > 0, "a case says what to compare");
                for (const TensorSpec& output : each.outputs)
                    fuzz::require(each.expected.count(output.name) == 1, "a case has every result");
            }
        } catch (const InvalidArgument&) {
        } catch (const Unsupported&) {
        }
    }
    return 0;
}
