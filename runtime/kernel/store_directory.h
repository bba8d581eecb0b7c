// Which folder the store may use. Images are code, so a folder that another user could write is none.
#pragma once

#include <string>

struct stat;

namespace turbotune {

// Why files under this owner and mode may not be trusted: owned by neither the user nor root, or writable by
// others. "" when they may.
std::string distrust(const struct stat& status);

// "" when `path` is, or can become, a trusted folder (a read-only one counts); else the reason.
std::string unusable_directory(const std::string& path);

struct StoreDirectory {
    std::string path;           // "" for memory only
    std::string reason;         // how it was found, or why there is none
    bool fell_back = false;     // a folder that was asked for, or comes first by default, could not be used
    bool private_mode = false;  // made with mode 0700 (below /tmp)
};

StoreDirectory find_store_directory();

}  // namespace turbotune
