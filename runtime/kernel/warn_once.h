// One warning per process for one reason, however many entries or stores meet it.
#pragma once

#include <string>

namespace turbotune {

void warn_once(const std::string& reason, const std::string& message);

}  // namespace turbotune
