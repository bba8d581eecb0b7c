#include "device_list.h"

#include <fmt/format.h>

#include <algorithm>

#include "output.h"
#include "turbotune/base/error.h"
#include "turbotune/base/log.h"

namespace turbotune::cli {
namespace {

constexpr const char* kFlag = "--devices";

std::string ids(const std::vector<const DeviceInfo*>& devices) {
    std::vector<std::string> names;
    for (const DeviceInfo* device : devices) names.push_back(device_id(*device));
    return fmt::format("{}", fmt::join(names, ","));
}

void need_one_class(const std::vector<const DeviceInfo*>& devices) {
    std::vector<std::vector<const DeviceInfo*>> groups;
    for (const DeviceInfo* device : devices) {
        const auto alike = std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
            return group.front()->device_class == device->device_class;
        });
        if (alike == groups.end())
            groups.push_back({device});
        else
            alike->push_back(device);
    }
    if (groups.size() == 1) return;
    std::vector<std::string> texts;
    for (const auto& group : groups)
        texts.push_back(
            fmt::format("{} ({}, {})", ids(group), group.front()->name, group.front()->device_class.to_string()));
    throw InvalidArgument(kFlag,
                          fmt::format("{} classes of devices: {}; one profile holds for one class, so name those "
                                      "of one: --devices {}",
                                      groups.size(), fmt::join(texts, "; "), ids(groups.front())));
}

}  // namespace

std::vector<std::string> choose_devices(const std::string& text, const std::vector<DeviceInfo>& present,
                                        const std::string& why_no_gpu) {
    const bool gpus = std::any_of(present.begin(), present.end(),
                                  [](const DeviceInfo& device) { return device.kind == DeviceKind::cuda; });
    std::vector<const DeviceInfo*> chosen;
    if (text == "all") {
        for (const DeviceInfo& device : present)
            if (device.kind == DeviceKind::cuda) chosen.push_back(&device);
        if (!gpus) {
            log(LogLevel::warn, fmt::format("{} all: there is no GPU ({}): the CPU is tuned", kFlag, why_no_gpu));
            for (const DeviceInfo& device : present) chosen.push_back(&device);
        }
    } else {
        for (const std::string& name : split_list(kFlag, text)) {
            const auto found = std::find_if(present.begin(), present.end(),
                                            [&](const DeviceInfo& device) { return device_id(device) == name; });
            std::vector<const DeviceInfo*> all;
            for (const DeviceInfo& device : present) all.push_back(&device);
            if (!gpus && name.find_first_not_of("0123456789") == std::string::npos)
                throw DeviceError(fmt::format("{} {}: there is no GPU: {}", kFlag, text, why_no_gpu));
            if (found == present.end())
                throw InvalidArgument(kFlag, fmt::format("'{}' is neither all nor one of {}", name, ids(all)));
            if (std::find(chosen.begin(), chosen.end(), &*found) != chosen.end())
                throw InvalidArgument(kFlag, fmt::format("{} is named twice", name));
            chosen.push_back(&*found);
        }
    }
    if (chosen.empty()) throw InvalidArgument(kFlag, "there is no device");
    need_one_class(chosen);
    std::vector<std::string> names;
    for (const DeviceInfo* device : chosen) names.push_back(device_id(*device));
    return names;
}

}  // namespace turbotune::cli
