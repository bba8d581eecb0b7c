#include "profile_file.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "turbotune/base/error.h"
#include "turbotune/base/files.h"
#include "turbotune/profile/selection.h"

namespace turbotune {

namespace {

// A check before hours of measuring, not a promise.
void need_writable_folder(const std::string& path) {
    const std::filesystem::path parent = std::filesystem::path(path).parent_path();
    const std::string folder = parent.empty() ? std::string(".") : parent.string();
    std::string why = prepare_profile_parent(path);
    if (why.empty() && ::access(folder.c_str(), W_OK | X_OK) != 0) why = std::strerror(errno);
    if (!why.empty()) throw Error(ErrorCode::store, fmt::format("{}: cannot write to {}: {}", path, folder, why));
}

// Changes whenever a file is replaced: a profile of a thousand workloads is not read again before each save.
std::string version_of(const std::string& path) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) return "";
    return fmt::format("{} {} {}.{:09}", info.st_ino, info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
}

}  // namespace

ProfileFile::ProfileFile(std::string path, Profile fresh) : path_(std::move(path)), profile_(std::move(fresh)) {
    if (directory_exists(path_)) throw InvalidArgument(path_, "is a directory, not a profile");
    need_writable_folder(path_);
    if (!file_exists(path_)) return;
    const FileLock lock = FileLock::acquire(path_ + ".lock", std::chrono::seconds(20));  // judged and set aside by one
    Profile found = load_profile(path_);
    if (found.device_class != profile_.device_class)
        throw InvalidArgument(path_, fmt::format("was measured on {}, this device is {}; name another output",
                                                 found.device_class.to_string(), profile_.device_class.to_string()));
    if (same_conditions(found)) {
        take_in(found);
        return;
    }
    previous_ = path_ + ".previous";
    if (std::rename(path_.c_str(), previous_.c_str()) != 0)
        throw Error(ErrorCode::store,
                    fmt::format("{}: cannot rename to {}: {}", path_, previous_, std::strerror(errno)));
}

bool ProfileFile::same_conditions(const Profile& other) const {
    if (other.compiler != profile_.compiler) return false;
    for (const auto& [operation, digest] : profile_.templates) {
        auto found = other.templates.find(operation);
        if (found != other.templates.end() && found->second != digest) return false;
    }
    return true;
}

// Entries on file win over those in memory: they were saved later, or by this process.
void ProfileFile::take_in(const Profile& other) {
    for (const ProfileEntry& entry : other.entries) profile_.put(entry);
    for (const auto& [operation, digest] : other.templates) profile_.templates.emplace(operation, digest);
}

void ProfileFile::put(ProfileEntry entry) {
    FileLock lock = FileLock::acquire(path_ + ".lock", std::chrono::seconds(20));
    if (std::string now = version_of(path_); !now.empty() && now != version_) {
        Profile found = load_profile(path_);
        if (found.device_class != profile_.device_class || !same_conditions(found))
            throw Error(ErrorCode::store,
                        path_ + ": was replaced by a profile of another device or compiler meanwhile");
        take_in(found);
    }
    profile_.put(std::move(entry));
    save_profile(profile_, path_);
    version_ = version_of(path_);
}

}  // namespace turbotune
