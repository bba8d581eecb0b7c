// Where the dynamic loader would look for a library, without loading it.
#pragma once

#include <string>
#include <vector>

namespace turbotune {

// The folders of LD_LIBRARY_PATH, in order.
std::vector<std::string> library_path_directories();

// The files that /etc/ld.so.cache names for this soname.
std::vector<std::string> loader_cache_files(const std::string& soname);

// Folders where CUDA toolkits and distributions put libraries, newest toolkit first.
std::vector<std::string> toolkit_directories();

}  // namespace turbotune
