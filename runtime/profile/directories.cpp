#include "directories.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include "turbotune/base/error.h"
#include "turbotune/base/files.h"
#include "turbotune/base/log.h"
#include "turbotune/profile/selection.h"

namespace turbotune {

namespace {

namespace fs = std::filesystem;

// Of last resort, shared with the image store.
std::string temporary_directory() {
    return fmt::format("/tmp/turbotune-{}", ::geteuid());
}

constexpr const char* kBelowCache = "/turbotune/profiles";

// It exists (read-only is enough to read from), or it can be made.
bool usable(const std::string& directory) {
    if (directory_exists(directory)) return true;
    fs::path parent = directory;
    std::error_code error;
    while (parent.has_relative_path() && !fs::exists(fs::symlink_status(parent, error))) parent = parent.parent_path();
    return directory_exists(parent.string()) && ::access(parent.c_str(), W_OK | X_OK) == 0;
}

bool starts_with_folder(const std::string& path, const std::string& folder) {
    return path.compare(0, folder.size() + 1, folder + "/") == 0;
}

std::string shipped_profile_directory() {
    if (const auto named = environment("TURBOTUNE_SHIPPED_PROFILES")) return *named;
    for (const char* known : {TURBOTUNE_INSTALLED_PROFILES, TURBOTUNE_SOURCE_PROFILES})
        if (directory_exists(known)) return known;
    return {};
}

// The *.json files of a folder by name; a folder that does not exist has none.
std::vector<std::string> profile_files(const std::string& directory) {
    std::vector<std::string> paths;
    std::error_code error;
    for (fs::directory_iterator item(directory, error), end; !error && item != end; item.increment(error)) {
        const std::string name = item->path().filename().string();
        if (name.front() != '.' && item->path().extension() == ".json") paths.push_back(item->path().string());
    }
    if (error && error != std::errc::no_such_file_or_directory)
        log(LogLevel::warn, fmt::format("cannot list the profiles in {}: {}", directory, error.message()));
    std::sort(paths.begin(), paths.end());
    return paths;
}

// One name per file, however it was reached.
std::string identity_of(const std::string& path) {
    std::error_code error;
    const fs::path canonical = fs::weakly_canonical(path, error);
    return error ? path : canonical.string();
}

}  // namespace

std::string why_untrusted(const std::string& directory) {
    struct stat status {};
    if (::lstat(directory.c_str(), &status) != 0)
        return errno == ENOENT ? std::string() : fmt::format("{}: {}", directory, std::strerror(errno));
    if (!S_ISDIR(status.st_mode)) return fmt::format("{} is not a directory", directory);
    if (status.st_uid != ::geteuid()) return fmt::format("{} belongs to user {}", directory, status.st_uid);
    if (status.st_mode & (S_IWGRP | S_IWOTH)) return fmt::format("{} may be written by other users", directory);
    return {};
}

std::string prepare_profile_parent(const std::string& profile_path) {
    const std::string temporary = temporary_directory();
    if (starts_with_folder(profile_path, temporary)) {
        if (const int error = make_directories(temporary, 0700)) return std::strerror(error);
        if (const std::string why = why_untrusted(temporary); !why.empty()) return why;
    }
    const std::string parent = fs::path(profile_path).parent_path().string();
    if (parent.empty()) return {};
    const int error = make_directories(parent);
    return error ? std::strerror(error) : std::string();
}

std::string user_profile_directory() {
    if (const auto named = environment("TURBOTUNE_PROFILE_DIR")) return *named;
    // A relative XDG path is to be ignored: XDG Base Directory Specification, "Environment variables".
    if (const auto cache = environment("XDG_CACHE_HOME");
        cache && cache->front() == '/' && usable(*cache + kBelowCache))
        return *cache + kBelowCache;
    if (const auto home = home_directory(); home && usable(*home + "/.cache" + kBelowCache))
        return *home + "/.cache" + kBelowCache;
    return temporary_directory() + "/profiles";
}

std::vector<std::string> profile_directories() {
    std::vector<std::string> directories;
    const std::string user = user_profile_directory(), temporary = temporary_directory();
    const std::string why = starts_with_folder(user, temporary) ? why_untrusted(temporary) : std::string();
    if (why.empty())
        directories.push_back(user);
    else
        log(LogLevel::warn, fmt::format("no profiles are read from {}: {}", user, why));
    if (const std::string shipped = shipped_profile_directory(); !shipped.empty()) directories.push_back(shipped);
    return directories;
}

std::vector<LoadedProfile> discover_profiles(const std::vector<std::string>& explicit_paths, bool search_directories) {
    std::vector<LoadedProfile> profiles;
    std::set<std::string> seen;
    for (const std::string& path : explicit_paths)
        if (seen.insert(identity_of(path)).second) profiles.push_back({path, load_profile(path)});
    if (!search_directories) return profiles;

    for (const std::string& directory : profile_directories()) {
        for (const std::string& path : profile_files(directory)) {
            if (!seen.insert(identity_of(path)).second) continue;
            try {
                profiles.push_back({path, load_profile(path)});
            } catch (const InvalidArgument& error) {
                log(LogLevel::warn, fmt::format("profile skipped: {}", error.what()));
            }
        }
    }
    return profiles;
}

}  // namespace turbotune
