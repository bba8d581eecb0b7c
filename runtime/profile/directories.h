// The folders in which profiles lie, and who may be trusted with them.
#pragma once

#include <string>

namespace turbotune {

// Anybody may create a folder in /tmp under a foreign name: empty when `directory` does not exist, or is a real
// folder of this user that nobody else may write to; else what is wrong with it.
std::string why_untrusted(const std::string& directory);

}  // namespace turbotune
