// An ordered list of named scalar values: the form in which workloads and configs travel between
// an operation, the tuner and a profile, none of which knows the others' field names.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace turbotune {

using FieldValue = std::variant<bool, std::int64_t, std::string>;

std::string to_string(const FieldValue& value);

class Fields {
  public:
    using Entry = std::pair<std::string, FieldValue>;

    Fields() = default;
    Fields(std::initializer_list<Entry> entries);

    // Replaces an existing field in place, else appends.
    Fields& set(std::string_view name, FieldValue value);
    // `const char*` would otherwise convert to bool.
    Fields& set(std::string_view name, const char* value) { return set(name, FieldValue(std::string(value))); }
    // Of any width: without this a bool or a 64-bit number would pass through a narrower integer.
    Fields& set(std::string_view name, std::integral auto value) {
        if constexpr (std::is_same_v<decltype(value), bool>) return set(name, FieldValue(value));
        else return set(name, FieldValue(static_cast<std::int64_t>(value)));
    }

    bool contains(std::string_view name) const { return find(name) != nullptr; }
    const FieldValue* find(std::string_view name) const;

    // Throw InvalidArgument naming the field when it is missing or of another type.
    std::int64_t integer(std::string_view name) const;
    bool boolean(std::string_view name) const;
    const std::string& text(std::string_view name) const;

    const std::vector<Entry>& entries() const { return entries_; }
    bool empty() const { return entries_.empty(); }

    // "block_m=64 block_n=64 stages=2": stable, for logs, keys and tie rules.
    std::string to_string() const;

    // Equal when the same names hold the same values, whatever their order.
    friend bool operator==(const Fields& a, const Fields& b);
    friend bool operator!=(const Fields& a, const Fields& b) { return !(a == b); }

  private:
    std::vector<Entry> entries_;
};

// The inverse of Fields::to_string(): "tier=simt block_m=64 causal=true". Words are separated by blanks; true, false and
// decimal integers have those types, everything else is a text. Throws InvalidArgument(argument, ...) for a word
// without "=", an empty name or value, or a name given twice.
Fields parse_fields(const std::string& text, const std::string& argument);

}  // namespace turbotune
