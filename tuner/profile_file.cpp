#include "profile_file.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "provenance.h"
#include "set_aside.h"
#include "turbotune/base/error.h"
#include "turbotune/base/files.h"
#include "turbotune/base/log.h"
#include "turbotune/profile/selection.h"

namespace turbotune {

namespace {

constexpr std::size_t kLargeFile = 1 << 20;
constexpr std::chrono::seconds kBetweenSaves(10);

// A check before hours of measuring, not a promise.
void need_writable_folder(const std::string& path) {
    const std::filesystem::path parent = std::filesystem::path(path).parent_path();
    const std::string folder = parent.empty() ? std::string(".") : parent.string();
    std::string why = prepare_profile_parent(path);
    if (why.empty() && ::access(folder.c_str(), W_OK | X_OK) != 0) why = std::strerror(errno);
    if (!why.empty()) throw InvalidArgument(path, fmt::format("cannot write to {}: {}", folder, why));
}

// The file behind symbolic links, which saving by rename would replace. Throws InvalidArgument for what is no file.
std::string target_of(const std::string& path) {
    const std::string name = std::filesystem::path(path).filename().string();
    if (name.empty() || name == "." || name == "..")
        throw InvalidArgument(path, "names a folder; name a file, such as profile.json in it");
    struct stat info {};
    if (::stat(path.c_str(), &info) == 0) {
        if (S_ISDIR(info.st_mode)) throw InvalidArgument(path, "is a directory, not a profile");
        if (!S_ISREG(info.st_mode)) throw InvalidArgument(path, "is no regular file");
    }
    std::error_code error;
    if (!std::filesystem::is_symlink(path, error)) return path;
    if (char* real = ::realpath(path.c_str(), nullptr)) {
        std::string target = real;
        std::free(real);
        return target;
    }
    // Links to what is not there yet.
    std::filesystem::path target = path;
    constexpr int kMostLinks = 40;  // as the kernel allows
    for (int links = 0; std::filesystem::is_symlink(target, error); ++links) {
        if (links == kMostLinks) throw InvalidArgument(path, std::strerror(ELOOP));
        const std::filesystem::path next = std::filesystem::read_symlink(target, error);
        if (error) throw InvalidArgument(path, error.message());
        target = target.parent_path() / next;
    }
    return target.string();
}

// Changes whenever a file is replaced: a profile of a thousand workloads is not read again before each save.
std::string version_of(const std::string& path) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) return "";
    return fmt::format("{} {} {}.{:09}", info.st_ino, info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
}

// A broken profile stays as it is: it may be worth mending.
Profile load_or_say_how(const std::string& path) {
    try {
        return load_profile(path);
    } catch (const InvalidArgument& error) {
        std::string why = error.what();
        if (why.rfind(path + ": ", 0) == 0) why.erase(0, path.size() + 2);
        throw InvalidArgument(
            path, why + " (move the file away to begin anew: what its journal holds is not measured again)");
    }
}

}  // namespace

std::string prepare_output(const std::string& path) {
    const std::string target = target_of(path);
    need_writable_folder(target);
    return target;
}

ProfileFile::ProfileFile(std::string path, Profile fresh) : path_(prepare_output(path)), profile_(std::move(fresh)) {
    if (!file_exists(path_)) return;
    const FileLock lock = FileLock::acquire(path_ + ".lock", std::chrono::seconds(20));  // judged and set aside by one
    if (!file_exists(path_)) return;  // another one set it aside meanwhile
    Profile found = load_or_say_how(path_);
    if (found.device_class != profile_.device_class)
        throw InvalidArgument(path_, fmt::format("was measured on {}, this device is {}; name another output",
                                                 found.device_class.to_string(), profile_.device_class.to_string()));
    if (same_conditions(found)) {
        take_in(found);
        return;
    }
    previous_ = set_aside(path_);
}

bool ProfileFile::same_conditions(const Profile& other) const {
    if (other.compiler != profile_.compiler) return false;
    for (const auto& [operation, digest] : profile_.templates) {
        auto found = other.templates.find(operation);
        if (found != other.templates.end() && found->second != digest) return false;
    }
    // Nothing says which templates the entries of an operation without a digest were measured with.
    return std::all_of(other.entries.begin(), other.entries.end(),
                       [&](const ProfileEntry& entry) { return other.templates.count(entry.workload.operation) > 0; });
}

// Entries on file win over those in memory: they were saved later, or by this process. What is told
// of where entries come from stays, even when all of them were measured anew; the date is the last one's.
void ProfileFile::take_in(const Profile& other) {
    if (!other.entries.empty()) {
        Provenance provenance = other.provenance;
        const auto date = profile_.provenance.find("date");
        if (date != profile_.provenance.end()) provenance["date"] = date->second;
        join_provenance(provenance, profile_.provenance);
        profile_.provenance = std::move(provenance);
    }
    for (const ProfileEntry& entry : other.entries) profile_.put(entry);
    for (const auto& [operation, digest] : other.templates) profile_.templates.emplace(operation, digest);
}

bool ProfileFile::put(ProfileEntry entry) {
    profile_.put(entry);
    unsaved_.push_back(std::move(entry));
    if (bytes_ > kLargeFile && std::chrono::steady_clock::now() - saved_at_ < kBetweenSaves) return false;
    flush();
    return true;
}

void ProfileFile::flush() {
    if (unsaved_.empty()) return;
    FileLock lock = FileLock::acquire(path_ + ".lock", std::chrono::seconds(20));
    if (std::string now = version_of(path_); !now.empty() && now != version_) {
        Profile found = load_profile(path_);
        if (found.device_class != profile_.device_class || !same_conditions(found))
            throw Error(ErrorCode::store,
                        path_ + ": was replaced by a profile of another device or compiler meanwhile");
        take_in(found);
        for (const ProfileEntry& entry : unsaved_) profile_.put(entry);
    }
    save_profile(profile_, path_);
    unsaved_.clear();
    saved_at_ = std::chrono::steady_clock::now();
    std::error_code error;
    const auto bytes = std::filesystem::file_size(path_, error);
    bytes_ = error ? 0 : bytes;
    version_ = version_of(path_);
}

ProfileFile::~ProfileFile() {
    try {
        flush();
    } catch (const std::exception& error) {
        log(LogLevel::warn,
            fmt::format(
                "{}: the last {} workloads are not in it (what was measured of them is in the journal, where the same "
                "command goes on once the profile can be written): {}",
                path_, unsaved_.size(), error.what()));
    }
}

}  // namespace turbotune
