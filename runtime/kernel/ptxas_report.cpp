#include "ptxas_report.h"

#include <algorithm>
#include <charconv>
#include <string_view>

namespace turbotune {
namespace {

// The text between `before` and `after`; empty when they are not there.
std::string_view between(std::string_view line, std::string_view before, std::string_view after) {
    const auto at = line.find(before);
    if (at == std::string_view::npos) return {};
    line.remove_prefix(at + before.size());
    return line.substr(0, line.find(after));
}

// The number that stands before `unit` ("27" of "Used 27 registers"); -1 when the line has none, or one beyond an int.
int number_before(std::string_view line, std::string_view unit) {
    const auto at = line.find(unit);
    if (at == std::string_view::npos) return -1;
    auto first = at;
    while (first > 0 && line[first - 1] == ' ') --first;
    const auto last = first;
    while (first > 0 && line[first - 1] >= '0' && line[first - 1] <= '9') --first;
    int number = -1;
    std::from_chars(line.data() + first, line.data() + last, number);
    return number;
}

// "(C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to ...".
bool tells_of_serialised_wgmma(std::string_view line) {
    if (line.find("wgmma.mma_async instructions are serialized") != std::string_view::npos) return true;
    for (const char* code : {"C7510", "C7511", "C7512", "C7513", "C7514", "C7515"}) {
        if (line.find(code) != std::string_view::npos) return true;
    }
    return false;
}

void read_numbers(std::string_view line, KernelMetadata* metadata) {
    if (line.find("bytes stack frame") != std::string_view::npos) {
        metadata->local_bytes = number_before(line, "bytes stack frame");
        metadata->spill_store_bytes = number_before(line, "bytes spill stores");
        metadata->spill_load_bytes = number_before(line, "bytes spill loads");
    } else if (line.find("Used ") != std::string_view::npos && line.find(" registers") != std::string_view::npos) {
        metadata->registers = number_before(line, "registers");
        // Left out of the line when there is none.
        metadata->static_shared_bytes = std::max(0, number_before(line, "bytes smem"));
        // What is called has frames of its own.
        metadata->local_bytes = std::max(metadata->local_bytes, number_before(line, "bytes cumulative stack size"));
    }
}

}  // namespace

PtxasReport parse_ptxas_report(const std::string& log, const std::string& kernel_name) {
    PtxasReport report;
    report.metadata.kernel_name = kernel_name;
    bool ours = false;
    std::string_view rest = log;
    while (!rest.empty()) {
        const auto end = rest.find('\n');
        const std::string_view line = rest.substr(0, end);
        rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
        if (tells_of_serialised_wgmma(line)) report.serialised.emplace_back(line);
        if (const auto name = between(line, "Compiling entry function '", "'"); !name.empty()) {
            report.entries.emplace_back(name);
            ours = name == kernel_name;
        } else if (const auto function = between(line, "Function properties for ", "\r"); !function.empty()) {
            ours = function == kernel_name;
        } else if (ours) {
            read_numbers(line, &report.metadata);
        }
    }
    return report;
}

}  // namespace turbotune
