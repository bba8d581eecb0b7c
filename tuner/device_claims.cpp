#include "device_claims.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <set>
#include <utility>

#include "turbotune/base/files.h"
#include "turbotune/base/log.h"
#include "turbotune/profile/selection.h"

namespace turbotune {

namespace {

// Nodes of a cluster may share the folder.
std::string name_of(const DeviceInfo& device) {
    if (!device.uuid.empty()) return device.uuid;
    char host[256] = {};
    ::gethostname(host, sizeof host - 1);
    return fmt::format("{}-{}", host, device.kind == DeviceKind::cpu ? "cpu" : fmt::format("gpu-{}", device.ordinal));
}

}  // namespace

DeviceClaim::~DeviceClaim() {
    if (descriptor_ >= 0) ::close(descriptor_);
}
DeviceClaim::DeviceClaim(DeviceClaim&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

std::vector<DeviceClaim> claim_devices(const std::vector<const DeviceInfo*>& devices, const std::string& profile_path) {
    std::filesystem::path folder = user_profile_directory();
    if (!directory_exists(folder.string())) folder = std::filesystem::path(profile_path).parent_path();
    std::vector<DeviceClaim> claims;
    std::set<std::string> seen;  // a sweep does not compete with itself
    for (const DeviceInfo* device : devices) {
        const std::string path = (folder / fmt::format("measuring-{}.lock", name_of(*device))).string();
        if (!seen.insert(path).second) continue;
        int descriptor = uninterrupted([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644); });
        if (descriptor < 0) descriptor = uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); });
        if (descriptor < 0) continue;
        claims.emplace_back(descriptor);
        if (uninterrupted([&] { return ::flock(descriptor, LOCK_EX | LOCK_NB); }) != 0 && errno == EWOULDBLOCK)
            log(LogLevel::warn,
                fmt::format("another sweep is measuring on {}: each distorts the other's times", device->name));
        // Shared by all that measure, so that a third is told as long as one of them does.
        uninterrupted([&] { return ::flock(descriptor, LOCK_SH | LOCK_NB); });
    }
    return claims;
}

}  // namespace turbotune
