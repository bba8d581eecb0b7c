#include "store_directory.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "turbotune/base/files.h"
#include "turbotune/kernel/store.h"

namespace turbotune {
namespace {

// The nearest folder above `path` that exists.
std::string existing_parent(std::string path) {
    struct stat status {};
    while (true) {
        const auto slash = path.find_last_of('/');
        if (slash == std::string::npos) return ".";
        path.resize(slash);
        if (path.empty()) return "/";
        if (uninterrupted([&] { return ::stat(path.c_str(), &status); }) == 0) return path;
    }
}

class Search {
  public:
    // True when the folder is the answer.
    bool consider(const std::string& origin, const std::string& path, bool must_be_ours = false) {
        std::string problem = path.front() == '/' ? unusable_directory(path) : path + " is not an absolute path";
        struct stat status {};
        if (problem.empty() && must_be_ours && uninterrupted([&] { return ::lstat(path.c_str(), &status); }) == 0 &&
            (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid()))
            problem = path + " belongs to somebody else";
        if (!problem.empty()) {
            refuse(fmt::format("{}: {}", origin, problem));
            return false;
        }
        found.path = path;
        found.reason = refusals_.empty() ? origin : fmt::format("{} ({})", origin, fmt::join(refusals_, "; "));
        return true;
    }

    void refuse(const std::string& why) {
        refusals_.push_back(why);
        found.fell_back = true;
    }

    StoreDirectory memory_only() {
        found.path.clear();
        found.reason = fmt::format("memory only ({})", fmt::join(refusals_, "; "));
        return found;
    }

    StoreDirectory found;

  private:
    std::vector<std::string> refusals_;
};

}  // namespace

std::string distrust(const struct stat& status) {
    if (status.st_uid != ::geteuid() && status.st_uid != 0)
        return fmt::format("belongs to user {}, who is neither this user nor root", status.st_uid);
    if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return fmt::format("can be written by others (mode {:03o})", static_cast<unsigned>(status.st_mode & 0777));
    return {};
}

std::string unusable_directory(const std::string& path) {
    struct stat status {};
    if (uninterrupted([&] { return ::stat(path.c_str(), &status); }) == 0) {
        if (!S_ISDIR(status.st_mode)) return path + " is not a folder";
        if (const std::string why = distrust(status); !why.empty()) return path + " " + why;
        if (uninterrupted([&] { return ::access(path.c_str(), R_OK | X_OK); }) != 0)
            return fmt::format("{} cannot be read: {}", path, std::strerror(errno));
        return {};
    }
    if (errno != ENOENT) return fmt::format("{}: {}", path, std::strerror(errno));
    const std::string parent = existing_parent(path);
    if (uninterrupted([&] { return ::access(parent.c_str(), W_OK | X_OK); }) != 0)
        return fmt::format("{} cannot be made: {}: {}", path, parent, std::strerror(errno));
    return {};
}

StoreDirectory find_store_directory() {
    Search search;
    if (const auto named = environment("TURBOTUNE_CACHE_DIR")) {
        if (search.consider("TURBOTUNE_CACHE_DIR", *named)) return search.found;
    }
    if (const auto cache = environment("XDG_CACHE_HOME")) {
        if (search.consider("XDG_CACHE_HOME", *cache + "/turbotune")) return search.found;
    }
    if (const auto home = home_directory()) {
        if (search.consider("home", *home + "/.cache/turbotune")) return search.found;
    } else {
        search.refuse("home: there is no home directory");
    }
    const std::string last = fmt::format("/tmp/turbotune-{}", ::geteuid());
    if (search.consider("temp", last, true)) {
        search.found.private_mode = true;
        return search.found;
    }
    return search.memory_only();
}

std::string default_store_directory(std::string* reason) {
    const StoreDirectory directory = find_store_directory();
    if (reason != nullptr) *reason = directory.reason;
    return directory.path;
}

}  // namespace turbotune
