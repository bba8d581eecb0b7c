// "did you mean --preset?" for names that nobody knows.
#pragma once

#include <string>
#include <vector>

namespace turbotune::cli {

// Single-character insertions, deletions and replacements between two words.
std::size_t edit_distance(const std::string& a, const std::string& b);
// The nearest of `names` when it is near enough to be a slip of the finger; else "".
std::string nearest(const std::string& word, const std::vector<std::string>& names);

}  // namespace turbotune::cli
