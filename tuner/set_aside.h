// A file written under other conditions is kept under another name.
#pragma once

#include <string>

namespace turbotune {

// Renames to the first free of PATH.previous, PATH.previous-2, PATH.previous-3, ... and returns that name. The caller
// holds the file's lock. Throws StoreError.
std::string set_aside(const std::string& path);

}  // namespace turbotune
