#include "turbotune/base/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "turbotune/base/error.h"

namespace turbotune {

namespace {

const char* type_name(const FieldValue& value) {
    static constexpr const char* kNames[] = {"a boolean", "an integer", "a text"};
    return kNames[value.index()];
}

template <typename T>
const T& get(const Fields& fields, std::string_view name, const char* wanted) {
    const FieldValue* value = fields.find(name);
    if (!value) throw InvalidArgument(std::string(name), "missing field");
    const T* typed = std::get_if<T>(value);
    if (!typed) {
        throw InvalidArgument(std::string(name),
                              fmt::format("expected {}, got {} ({})", wanted, type_name(*value), to_string(*value)));
    }
    return *typed;
}

}  // namespace

std::string to_string(const FieldValue& value) {
    if (const bool* boolean = std::get_if<bool>(&value)) return *boolean ? "true" : "false";
    if (const std::int64_t* integer = std::get_if<std::int64_t>(&value)) return std::to_string(*integer);
    return std::get<std::string>(value);
}

Fields::Fields(std::initializer_list<Entry> entries) {
    for (const Entry& entry : entries) set(entry.first, entry.second);
}

Fields& Fields::set(std::string_view name, FieldValue value) {
    for (Entry& entry : entries_) {
        if (entry.first == name) {
            entry.second = std::move(value);
            return *this;
        }
    }
    entries_.emplace_back(std::string(name), std::move(value));
    return *this;
}

const FieldValue* Fields::find(std::string_view name) const {
    for (const Entry& entry : entries_) {
        if (entry.first == name) return &entry.second;
    }
    return nullptr;
}

std::int64_t Fields::integer(std::string_view name) const {
    return get<std::int64_t>(*this, name, "an integer");
}

bool Fields::boolean(std::string_view name) const {
    return get<bool>(*this, name, "a boolean");
}

const std::string& Fields::text(std::string_view name) const {
    return get<std::string>(*this, name, "a text");
}

std::string Fields::to_string() const {
    std::string text;
    for (const Entry& entry : entries_) {
        if (!text.empty()) text += ' ';
        text += entry.first + '=' + turbotune::to_string(entry.second);
    }
    return text;
}

bool operator==(const Fields& a, const Fields& b) {
    if (a.entries_.size() != b.entries_.size()) return false;
    return std::all_of(a.entries_.begin(), a.entries_.end(), [&](const Fields::Entry& entry) {
        const FieldValue* other = b.find(entry.first);
        return other && *other == entry.second;
    });
}

namespace {

FieldValue parse_value(const std::string& text) {
    if (text == "true" || text == "false") return text == "true";
    std::int64_t integer = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, integer);
    if (error == std::errc() && stop == end) return integer;
    return text;
}

}  // namespace

Fields parse_fields(const std::string& text, const std::string& argument) {
    Fields fields;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
        const std::size_t equals = word.find('=');
        if (equals == std::string::npos || equals == 0 || equals + 1 == word.size())
            throw InvalidArgument(argument, fmt::format("\"{}\" is not of the form name=value", word));
        const std::string name = word.substr(0, equals);
        if (fields.contains(name)) throw InvalidArgument(argument, fmt::format("{} is given twice", name));
        fields.set(name, parse_value(word.substr(equals + 1)));
    }
    return fields;
}

}  // namespace turbotune
