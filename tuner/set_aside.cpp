#include "set_aside.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "turbotune/base/error.h"

namespace turbotune {

namespace {

// A dangling link counts too: renaming would replace it.
bool taken(const std::string& path) {
    struct stat info {};
    return ::lstat(path.c_str(), &info) == 0;
}

}  // namespace

std::string set_aside(const std::string& path) {
    const std::string first = path + ".previous";
    std::string name = first;
    for (int number = 2; taken(name); ++number) name = fmt::format("{}-{}", first, number);
    if (std::rename(path.c_str(), name.c_str()) != 0)
        throw StoreError(fmt::format("{}: cannot rename to {}: {}", path, name, std::strerror(errno)));
    return name;
}

}  // namespace turbotune
