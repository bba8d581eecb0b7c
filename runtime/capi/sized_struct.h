// Structs that grow: each begins with the size that its caller was compiled with.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "guard.h"

namespace turbotune::capi {

// Beyond any version of any struct: a size that was never set.
constexpr std::size_t kMostStructBytes = 1 << 16;

// Zeroes what the caller has room for, and writes the fields of `defaults` that he knows.
template <typename T>
void write_sized(T* to, std::size_t struct_size, const T& defaults) noexcept {
    if (!to || struct_size < sizeof(std::size_t) || struct_size > kMostStructBytes) return;
    std::memset(static_cast<void*>(to), 0, struct_size);
    std::memcpy(static_cast<void*>(to), &defaults, std::min(struct_size, sizeof(T)));
    std::memcpy(static_cast<void*>(to), &struct_size, sizeof struct_size);
}

// Fills a struct of the caller whose struct_size is set.
template <typename T>
void fill_sized(T* to, const T& values, const char* argument) {
    const std::size_t size = need(to, argument).struct_size;
    if (size < sizeof(std::size_t) || size > kMostStructBytes)
        throw InvalidArgument(argument, "struct_size is not set: call its init function");
    write_sized(to, size, values);
}

// The caller's fields over `defaults`. Fields that this library does not know must be zero.
template <typename T>
T read_sized(const T* from, const T& defaults, const char* argument) {
    const std::size_t size = need(from, argument).struct_size;
    if (size < sizeof(std::size_t) || size > kMostStructBytes)
        throw InvalidArgument(argument, "struct_size is not set: call its init function");
    const char* bytes = reinterpret_cast<const char*>(from);
    for (std::size_t i = sizeof(T); i < size; ++i)
        if (bytes[i])
            throw InvalidArgument(argument, fmt::format("byte {} of the struct is a field that this version does not "
                                                        "have; it knows {} bytes",
                                                        i, sizeof(T)));
    T value = defaults;
    std::memcpy(static_cast<void*>(&value), bytes, std::min(size, sizeof(T)));
    value.struct_size = sizeof(T);
    return value;
}

// Into a char array, cut to fit.
template <std::size_t N>
void copy_text(char (&to)[N], const std::string& text) {
    const std::size_t length = std::min(text.size(), N - 1);
    std::memcpy(to, text.data(), length);
    to[length] = '\0';
}

}  // namespace turbotune::capi
