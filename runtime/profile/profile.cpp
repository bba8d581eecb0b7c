#include "turbotune/profile/profile.h"

#include <fmt/format.h>

#include <algorithm>

namespace turbotune {

namespace {

// Enough of a digest to tell two apart in a message.
std::string shortened(const std::string& digest) {
    return digest.substr(0, 12);
}

template <typename T>
void note_difference(std::vector<std::string>& lines, const char* member, const T& profile, const T& here) {
    if (!(profile == here)) lines.push_back(fmt::format("{}: profile {}, here {}", member, profile, here));
}

}  // namespace

std::string Workload::to_string() const {
    return fields.empty() ? operation : fmt::format("{} {}", operation, fields.to_string());
}

const ProfileEntry* Profile::find(const Workload& workload) const {
    const auto found = std::find_if(entries.begin(), entries.end(),
                                    [&](const ProfileEntry& entry) { return entry.workload == workload; });
    return found == entries.end() ? nullptr : &*found;
}

void Profile::put(ProfileEntry entry) {
    for (ProfileEntry& old : entries) {
        if (old.workload == entry.workload) {
            old = std::move(entry);
            return;
        }
    }
    entries.push_back(std::move(entry));
}

const char* to_string(Grade grade) {
    switch (grade) {
        case Grade::exact:
            return "exact";
        case Grade::same_class:
            return "same-class";
        case Grade::incompatible:
            return "incompatible";
    }
    return "unknown";
}

Compatibility compare(const Profile& profile, const std::string& operation, const DeviceClass& device_class,
                      const std::string& compiler, const std::string& digest) {
    Compatibility result;
    auto& lines = result.differences;
    const DeviceClass& tuned = profile.device_class;
    note_difference(lines, "arch", tuned.arch, device_class.arch);
    note_difference(lines, "sm_count", tuned.sm_count, device_class.sm_count);
    note_difference(lines, "l2_bytes", tuned.l2_bytes, device_class.l2_bytes);
    note_difference(lines, "shared_per_block", tuned.shared_per_block, device_class.shared_per_block);
    note_difference(lines, "bus_width", tuned.bus_width, device_class.bus_width);

    if (compiler.empty() || profile.compiler != compiler)
        lines.push_back(fmt::format("compiler: profile {}, here {}",
                                    profile.compiler.empty() ? "none" : profile.compiler,
                                    compiler.empty() ? "none" : compiler));

    const auto recorded = profile.templates.find(operation);
    if (recorded == profile.templates.end())
        lines.push_back(fmt::format("templates: profile has none of {}, here {}", operation, shortened(digest)));
    else if (recorded->second != digest)
        lines.push_back(fmt::format("templates: profile {}, here {}", shortened(recorded->second), shortened(digest)));

    if (!(tuned == device_class))
        result.grade = Grade::incompatible;
    else
        result.grade = lines.empty() ? Grade::exact : Grade::same_class;
    return result;
}

}  // namespace turbotune
