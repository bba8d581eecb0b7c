#include "conditions.h"

#include <fmt/format.h>

#include <ctime>
#include <fstream>

#include "turbotune/kernel/kernel_spec.h"

namespace turbotune {

namespace {

std::string host_cpu() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);)
        if (line.rfind("model name", 0) == 0 && line.find(": ") != std::string::npos)
            return line.substr(line.find(": ") + 2);
    return "unknown";
}

std::string driver_text(const DeviceInfo& device) {
    if (device.driver_version == 0) return "none";
    return fmt::format("{}.{}", device.driver_version / 1000, device.driver_version % 1000 / 10);
}

}  // namespace

std::string utc_now() {
    std::time_t now = std::time(nullptr);
    std::tm parts{};
    gmtime_r(&now, &parts);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return text;
}

std::string device_argument(const DeviceInfo& device) {
    return device.kind == DeviceKind::cpu ? "cpu" : std::to_string(device.ordinal);
}

Compiler& compiler_of(const DeviceInfo& device) {
    return device.kind == DeviceKind::cpu ? host_compiler() : nvrtc_compiler();
}

Profile fresh_profile(const DeviceInfo& device, const std::vector<std::string>& operations,
                      const std::string& command_line) {
    Profile profile;
    profile.device_class = device.device_class;
    profile.device_name = device.name;
    profile.compiler = compiler_of(device).identity();
    for (const std::string& name : operations) profile.templates.emplace(name, to_hex(template_digest(name)));
    profile.provenance = {{"date", utc_now()},
                          {"command", command_line},
                          {"host_cpu", host_cpu()},
                          {"driver", driver_text(device)},
                          {"turbotune", TURBOTUNE_VERSION}};
    return profile;
}

}  // namespace turbotune
