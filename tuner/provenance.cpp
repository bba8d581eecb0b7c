#include "provenance.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <limits>

namespace turbotune {

namespace {

// Each distinct value once, in order; a value that is joined already counts as its parts.
std::string joined(const std::string& values, const std::string& more, const std::string& separator) {
    std::vector<std::string> parts = split(values, separator);
    for (const std::string& part : split(more, separator))
        if (std::find(parts.begin(), parts.end(), part) == parts.end()) parts.push_back(part);
    return fmt::format("{}", fmt::join(parts, separator));
}

}  // namespace

std::vector<std::string> split(const std::string& text, const std::string& separator) {
    std::vector<std::string> parts;
    for (std::size_t begin = 0;;) {
        const std::size_t end = text.find(separator, begin);
        parts.push_back(text.substr(begin, end - begin));
        if (end == std::string::npos) return parts;
        begin = end + separator.size();
    }
}

void join_provenance(Provenance& into, const Provenance& more) {
    for (const auto& [key, value] : more) {
        auto [place, fresh] = into.emplace(key, value);
        if (fresh) continue;
        if (key != "rotation")
            place->second = joined(place->second, value, key == kShardKey ? ", " : " | ");
        else if (least_rotation(value) < least_rotation(place->second))
            place->second = value;
    }
}

std::string describe_rotation(double rotated_bytes, double l2_bytes) {
    return fmt::format("at least {:.0f} bytes rotated against {:.0f} bytes of L2", rotated_bytes, l2_bytes);
}

double least_rotation(const std::string& text) {
    double least = std::numeric_limits<double>::infinity();
    for (const std::string& part : split(text, " | ")) {
        double rotated = 0, l2 = 0;
        if (std::sscanf(part.c_str(), "at least %lf bytes rotated against %lf bytes", &rotated, &l2) == 2 && l2 > 0)
            least = std::min(least, rotated / l2);
    }
    return least;
}

}  // namespace turbotune
