#include "loader_paths.h"

#include <glob.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "turbotune/base/files.h"

namespace turbotune {
namespace {

// glibc's dl-cache.h: struct cache_file_new and struct file_entry_new.
constexpr std::string_view kCacheMagic = "glibc-ld.so.cache1.1";
struct CacheHeader {
    char magic[20];
    std::uint32_t entry_count, string_bytes;
    std::uint8_t flags, padding[3];
    std::uint32_t extension_offset, unused[3];
};
struct CacheEntry {
    std::int32_t flags;
    std::uint32_t key, value;  // offsets of strings from the start of the header
    std::uint32_t os_version;
    std::uint64_t hwcap;
};
static_assert(sizeof(CacheHeader) == 48 && sizeof(CacheEntry) == 24);

std::string_view string_at(std::string_view bytes, std::size_t offset) {
    if (offset >= bytes.size()) return {};
    bytes.remove_prefix(offset);
    return bytes.substr(0, bytes.find('\0'));
}

}  // namespace

std::vector<std::string> library_path_directories() {
    std::vector<std::string> directories;
    std::string list = environment("LD_LIBRARY_PATH").value_or("");
    std::replace(list.begin(), list.end(), ';', ':');
    for (std::size_t at = 0; at < list.size();) {
        const std::size_t end = std::min(list.find(':', at), list.size());
        if (end > at) directories.push_back(list.substr(at, end - at));
        at = end + 1;
    }
    return directories;
}

std::vector<std::string> loader_cache_files(const std::string& soname) {
    std::vector<std::string> files;
    const std::string text = read_file("/etc/ld.so.cache").value_or("");
    const std::size_t start = text.find(kCacheMagic);
    if (start == std::string::npos) return files;
    const std::string_view bytes = std::string_view(text).substr(start);
    CacheHeader header;
    if (bytes.size() < sizeof header) return files;
    std::memcpy(&header, bytes.data(), sizeof header);
    for (std::uint32_t i = 0; i < header.entry_count; ++i) {
        const std::size_t at = sizeof header + std::size_t{i} * sizeof(CacheEntry);
        if (at + sizeof(CacheEntry) > bytes.size()) break;
        CacheEntry entry;
        std::memcpy(&entry, bytes.data() + at, sizeof entry);
        if (string_at(bytes, entry.key) == soname) files.emplace_back(string_at(bytes, entry.value));
    }
    return files;
}

std::vector<std::string> toolkit_directories() {
#if defined(__aarch64__)
    const char* const targets[] = {"aarch64-linux", "sbsa-linux"};
    const char* const triplet = "aarch64-linux-gnu";
#else
    const char* const targets[] = {"x86_64-linux"};
    const char* const triplet = "x86_64-linux-gnu";
#endif
    std::vector<std::string> roots = {"/usr/local/cuda"};
    glob_t matches{};
    if (::glob("/usr/local/cuda-*", 0, nullptr, &matches) == 0) {
        for (std::size_t i = matches.gl_pathc; i-- > 0;) roots.emplace_back(matches.gl_pathv[i]);
    }
    ::globfree(&matches);
    std::vector<std::string> directories;
    for (const std::string& root : roots) {
        directories.push_back(root + "/lib64");
        for (const char* target : targets) directories.push_back(root + "/targets/" + target + "/lib");
    }
    for (const char* plain : {"/usr/lib64", "/usr/lib", "/lib"}) directories.emplace_back(plain);
    directories.push_back(std::string("/usr/lib/") + triplet);
    directories.push_back(std::string("/lib/") + triplet);
    return directories;
}

}  // namespace turbotune
