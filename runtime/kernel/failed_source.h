// A copy of a source that did not compile, for whoever reads the error.
#pragma once

#include <string>

namespace turbotune {

// Written to a private folder below the temp directory, under a name made from the text. "" when it cannot be.
std::string keep_failed_source(const std::string& source, const std::string& extension);

// $TMPDIR, else /tmp.
std::string temp_directory();

}  // namespace turbotune
