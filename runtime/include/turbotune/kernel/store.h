// The on-disk image store: one verified file per entry, ab/<sha256 of the key>.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "turbotune/base/files.h"
#include "turbotune/base/sha256.h"
#include "turbotune/kernel/image.h"

namespace turbotune {

struct StoreKey {
    Digest digest;
    std::string hex() const { return to_hex(digest); }
};

// SHA-256 over length-prefixed fields: schema, source, each option in order, target, compiler
// identity, kernel name.
StoreKey store_key(const std::string& source, const std::vector<std::string>& options, const std::string& target,
                   const std::string& compiler_identity, const std::string& kernel_name);

struct StoreStatistics {
    std::int64_t hits = 0, misses = 0, bad = 0, writes = 0, evictions = 0;
    std::int64_t entries = 0, bytes = 0;   // as last counted
};

struct StoreEntryInfo {
    std::string key, path;
    std::int64_t bytes = 0;
    KernelMetadata metadata;   // valid when problem is empty
    std::string problem;       // why the entry is bad; empty for a good one
};

class Store {
  public:
    struct Options {
        std::string directory;                    // explicit; empty: the search order of default_store_directory()
        std::int64_t max_bytes = std::int64_t{1} << 30;
        bool memory_only = false;
    };

    // Touches no file until the first find or put.
    explicit Store(Options options);
    ~Store();

    // A verified image, or nothing. A bad entry is set aside (renamed to <entry>.bad), with one warning, and is a miss.
    std::optional<Image> find(const StoreKey& key);
    // Publishes an image; evicts least recently used entries beyond max_bytes. Never throws: a disk that cannot be
    // written (EROFS, EACCES, ENOSPC, EDQUOT, ...) switches writing off with one warning.
    void put(const StoreKey& key, const Image& image);
    // Guards one compile between processes; may come back unheld after the bounded wait.
    FileLock lock_for_compile(const StoreKey& key);

    // "" for memory only; why in reason().
    std::string directory();
    // How the directory was found, or why there is none.
    std::string reason();

    std::vector<StoreEntryInfo> list(bool verify);   // verify: reads and checks every byte
    // Removes every entry; how many. Files that lie where entries do, but do not begin as one, stay.
    std::int64_t clear();
    StoreStatistics statistics();

  private:
    struct State;
    State* state_;
};

// explicit > TURBOTUNE_CACHE_DIR > $XDG_CACHE_HOME/turbotune > ~/.cache/turbotune > /tmp/turbotune-<uid>
// (0700, owner checked) > "" (memory only). `reason` receives which one and why the earlier ones not.
std::string default_store_directory(std::string* reason = nullptr);

}  // namespace turbotune
