#include "device_claims.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "turbotune/base/log.h"
#include "turbotune/profile/selection.h"

namespace turbotune {

std::vector<FileLock> claim_devices(const std::vector<const DeviceInfo*>& devices, const std::string& profile_path) {
    std::filesystem::path folder = user_profile_directory();
    if (!directory_exists(folder.string())) folder = std::filesystem::path(profile_path).parent_path();
    std::vector<FileLock> claims;
    std::set<std::string> seen;  // a sweep does not compete with itself
    for (const DeviceInfo* device : devices) {
        const std::string name = !device->uuid.empty()             ? device->uuid
                                 : device->kind == DeviceKind::cpu ? "cpu"
                                                                   : fmt::format("gpu-{}", device->ordinal);
        const std::string path = (folder / fmt::format("measuring-{}.lock", name)).string();
        if (!seen.insert(path).second) continue;
        claims.push_back(FileLock::acquire(path, std::chrono::milliseconds(0)));
        if (!claims.back().held() && ::access(path.c_str(), W_OK) == 0)
            log(LogLevel::warn,
                fmt::format("another sweep is measuring on {}: each distorts the other's times", device->name));
    }
    return claims;
}

}  // namespace turbotune
