// What is known of where the entries of a profile come from, when profiles are joined or extended.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace turbotune {

using Provenance = std::map<std::string, std::string>;

// Between shards "2/8, 3/8"; other keys are joined by " | ".
inline constexpr const char* kShardKey = "shard";

std::vector<std::string> split(const std::string& text, const std::string& separator);

// Adds each value that is not there yet; of `rotation` the worst stays.
void join_provenance(Provenance& into, const Provenance& more);

// "at least N bytes rotated against M bytes of L2", and the least N / M that a text of these says: infinity when none.
std::string describe_rotation(double rotated_bytes, double l2_bytes);
double least_rotation(const std::string& text);

}  // namespace turbotune
