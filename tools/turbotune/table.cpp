#include "table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace turbotune::cli {
namespace {

// Code points, which is what a terminal's columns count for the text that appears here.
std::size_t display_width(const std::string& text) {
    return std::count_if(text.begin(), text.end(),
                         [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

}  // namespace

Table::Table(std::vector<std::string> headers) : headers_(std::move(headers)) {
    for (std::string& header : headers_) {
        right_.push_back(!header.empty() && header[0] == '>');
        if (right_.back()) header.erase(0, 1);
    }
}

void Table::add(std::vector<std::string> row) {
    row.resize(headers_.size());
    rows_.push_back(std::move(row));
}

std::string Table::to_string() const {
    std::vector<std::size_t> widths, shown;
    for (std::size_t column = 0; column < headers_.size(); ++column) {
        std::size_t width = 0;
        for (const auto& row : rows_) width = std::max(width, display_width(row[column]));
        widths.push_back(std::max(width, display_width(headers_[column])));
        if (width > 0 || rows_.empty()) shown.push_back(column);
    }
    const auto line = [&](const std::vector<std::string>& cells) {
        std::string out;
        for (std::size_t column : shown) {
            const std::string padding(widths[column] - display_width(cells[column]), ' ');
            if (column != shown.front()) out += "  ";
            out += right_[column] ? padding + cells[column] : cells[column] + padding;
        }
        out.erase(out.find_last_not_of(' ') + 1);
        return out + '\n';
    };
    std::vector<std::string> rule;
    for (std::size_t width : widths) rule.emplace_back(width, '-');
    std::string out = line(headers_) + line(rule);
    for (const auto& row : rows_) out += line(row);
    return out;
}

WorkloadColumns::WorkloadColumns(const std::vector<Workload>& workloads) {
    Fields first;  // every field with the value of the first workload that has it
    for (const Workload& workload : workloads)
        for (const auto& [name, value] : workload.fields.entries())
            if (!first.contains(name)) first.set(name, value);
    for (const auto& [name, value] : first.entries()) {
        const bool same =
            std::all_of(workloads.begin(), workloads.end(), [&, &n = name, &v = value](const Workload& each) {
                const FieldValue* found = each.fields.find(n);
                return found != nullptr && *found == v;
            });
        if (same && workloads.size() > 1)
            common_ += fmt::format("{}{}={}", common_.empty() ? "" : " ", name, turbotune::to_string(value));
        else
            names_.push_back(name);
    }
}

std::vector<std::string> WorkloadColumns::cells(const Workload& workload) const {
    std::vector<std::string> cells;
    for (const std::string& name : names_) {
        const FieldValue* value = workload.fields.find(name);
        cells.push_back(value == nullptr ? "" : turbotune::to_string(*value));
    }
    return cells;
}

std::vector<std::string> operations_of(const std::vector<Workload>& workloads) {
    std::vector<std::string> names;
    for (const Workload& workload : workloads)
        if (std::find(names.begin(), names.end(), workload.operation) == names.end())
            names.push_back(workload.operation);
    return names;
}

std::string milliseconds(double ms) {
    if (!(ms > 0)) return "0";
    const int digits = std::clamp(3 - static_cast<int>(std::floor(std::log10(ms))), 0, 6);
    return fmt::format("{:.{}f}", ms, digits);
}

std::string duration(double seconds) {
    const auto whole = static_cast<long long>(std::llround(std::max(0.0, seconds)));
    if (whole < 60) return fmt::format("{} s", whole);
    if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
    return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

std::string counted(std::int64_t count, const std::string& one, const std::string& many) {
    return fmt::format("{} {}", count, count == 1 ? one : many.empty() ? one + 's' : many);
}

std::string byte_count(std::int64_t bytes) {
    if (bytes < 1024) return fmt::format("{} B", bytes);
    const char* const units[] = {"KiB", "MiB", "GiB", "TiB"};
    double value = static_cast<double>(bytes) / 1024;
    std::size_t unit = 0;
    while (value >= 1024 && unit + 1 < std::size(units)) value /= 1024, ++unit;
    return fmt::format("{:.1f} {}", value, units[unit]);
}

}  // namespace turbotune::cli
