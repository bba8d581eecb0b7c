#include "store_files.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "turbotune/base/files.h"

namespace turbotune {
namespace {

constexpr std::size_t kKeptAside = 16;
constexpr std::int64_t kTemporaryLife = std::int64_t{3600} * 1000000000;  // ns

bool is_hex(const std::string& text) {
    return text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::vector<std::string> names_in(const std::string& directory) {
    std::vector<std::string> names;
    DIR* handle = nullptr;
    do handle = ::opendir(directory.c_str());
    while (handle == nullptr && errno == EINTR);
    if (handle == nullptr) return names;
    while (const dirent* entry = ::readdir(handle)) {
        const std::string name = entry->d_name;
        if (name != "." && name != "..") names.push_back(name);
    }
    ::closedir(handle);
    return names;
}

bool remove_file(const std::string& path) {
    return uninterrupted([&] { return ::unlink(path.c_str()); }) == 0;
}

// False for a name that the store never gives.
bool classify(const std::string& name, StoreFile* file) {
    if (name.size() == 64 && is_hex(name)) {
        file->kind = StoreFileKind::entry;
        file->key = name;
    } else if (name.size() == 68 && is_hex(name.substr(0, 64)) && name.ends_with(".bad")) {
        file->kind = StoreFileKind::set_aside;
    } else if (name.starts_with(".tmp-")) {
        file->kind = StoreFileKind::temporary;
    } else {
        return false;
    }
    return true;
}

}  // namespace

std::string entry_path(const std::string& directory, const std::string& key_hex) {
    return directory + "/" + key_hex.substr(0, 2) + "/" + key_hex;
}

std::string lock_path(const std::string& directory, const std::string& key_hex) {
    return directory + "/locks/" + key_hex.substr(0, 3);
}

std::string eviction_lock_path(const std::string& directory) {
    return directory + "/locks/evict";
}

bool parse_key(const std::string& hex, Digest* digest) {
    if (hex.size() != 64 || !is_hex(hex)) return false;
    for (std::size_t i = 0; i < 32; ++i)
        (*digest)[i] = static_cast<std::uint8_t>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
    return true;
}

std::vector<StoreFile> scan_store(const std::string& directory) {
    std::vector<StoreFile> files;
    for (const std::string& folder : names_in(directory)) {
        if (folder.size() != 2 || !is_hex(folder)) continue;
        for (const std::string& name : names_in(directory + "/" + folder)) {
            StoreFile file;
            if (!classify(name, &file)) continue;
            file.path = directory + "/" + folder + "/" + name;
            struct stat status {};
            if (uninterrupted([&] { return ::lstat(file.path.c_str(), &status); }) != 0)
                continue;  // evicted by somebody else meanwhile
            file.bytes = status.st_size;
            file.stamp_ns = std::int64_t{status.st_mtim.tv_sec} * 1000000000 + status.st_mtim.tv_nsec;
            files.push_back(std::move(file));
        }
    }
    return files;
}

StoreCount shrink_store(const std::string& directory, std::int64_t target_bytes, const std::string& keep) {
    std::vector<StoreFile> files = scan_store(directory);
    // Newest first; ties by path, so that two processes agree.
    std::sort(files.begin(), files.end(), [&](const StoreFile& a, const StoreFile& b) {
        if ((a.path == keep) != (b.path == keep)) return a.path == keep;
        return a.stamp_ns != b.stamp_ns ? a.stamp_ns > b.stamp_ns : a.path < b.path;
    });
    const std::int64_t now = std::int64_t{std::time(nullptr)} * 1000000000;
    StoreCount count;
    std::size_t aside = 0;
    bool full = false;
    for (const StoreFile& file : files) {
        if (file.kind == StoreFileKind::temporary) {
            if (now - file.stamp_ns > kTemporaryLife) remove_file(file.path);
        } else if (file.kind == StoreFileKind::set_aside) {
            if (++aside > kKeptAside) remove_file(file.path);
        } else if (file.path == keep || (!full && count.bytes + file.bytes <= target_bytes)) {
            ++count.entries;
            count.bytes += file.bytes;
        } else {
            full = true;
            if (remove_file(file.path)) ++count.evicted;
        }
    }
    return count;
}

}  // namespace turbotune
