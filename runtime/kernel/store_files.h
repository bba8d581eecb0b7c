// The files of a store folder:
//   ab/<64 hex digits>        an entry
//   ab/<64 hex digits>.bad    one that was set aside
//   locks/<3 hex digits>      taken for a compile; never removed, so their number is bounded
//   ab/.tmp-*                 an entry being written, or left by a writer that was killed
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "turbotune/base/sha256.h"

namespace turbotune {

enum class StoreFileKind { entry, set_aside, temporary };

struct StoreFile {
    StoreFileKind kind;
    std::string path;
    std::string key;  // of an entry
    std::int64_t bytes = 0;
    std::int64_t stamp_ns = 0;  // last use: the file's modification time, which the store itself renews
};

std::string entry_path(const std::string& directory, const std::string& key_hex);
std::string lock_path(const std::string& directory, const std::string& key_hex);
std::string eviction_lock_path(const std::string& directory);
bool parse_key(const std::string& hex, Digest* digest);

std::vector<StoreFile> scan_store(const std::string& directory);

struct StoreCount {
    std::int64_t entries = 0, bytes = 0, evicted = 0;
};

// Removes the least recently used entries until at most `target_bytes` are left, `keep` last of all; files set aside
// beyond a handful; temporaries older than an hour. Safe beside readers: an open file outlives its name.
StoreCount shrink_store(const std::string& directory, std::int64_t target_bytes, const std::string& keep);

}  // namespace turbotune
