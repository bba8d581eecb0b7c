#include "turbotune/tuner/model_device.h"

#include <fmt/format.h>

#include <sstream>
#include <stdexcept>

#include "turbotune/base/error.h"

namespace turbotune {

namespace {

struct Model {
    const char* name;
    int major, minor, sm_count;
    std::int64_t l2_mib, shared_per_block, shared_per_sm;  // MiB, KiB, KiB
    int bus_width, threads_per_sm;
};

// CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability"; vendor datasheets. The H200's
// bus width is what its driver reports.
constexpr Model kModels[] = {
    {"NVIDIA A100", 8, 0, 108, 40, 163, 164, 5120, 2048},
    {"NVIDIA A10", 8, 6, 72, 6, 99, 100, 384, 1536},
    {"NVIDIA L40S", 8, 9, 142, 96, 99, 100, 384, 1536},
    {"NVIDIA H200", 9, 0, 132, 60, 227, 228, 6016, 2048},
    {"NVIDIA B200", 10, 0, 148, 126, 227, 228, 8192, 2048},
    {"NVIDIA RTX PRO 6000", 12, 0, 188, 128, 99, 100, 512, 1536},
};

std::string arch_of(const Model& model) {
    return fmt::format("sm_{}{}", model.major, model.minor);
}

// "60MiB", "512KiB", "0B"
std::int64_t parse_size(const std::string& text) {
    std::size_t end = 0;
    const std::int64_t number = std::stoll(text, &end);
    const std::string unit = text.substr(end);
    return unit == "MiB" ? number << 20 : unit == "KiB" ? number << 10 : number;
}

// Whether the name is that of a class, as DeviceClass::to_string gives it; then that class.
bool parse_class(const std::string& name, DeviceClass* parsed) {
    std::vector<std::string> parts;
    std::istringstream words(name);
    for (std::string part; std::getline(words, part, '-');) parts.push_back(part);
    if (parts.size() != 5) return false;
    try {
        *parsed = {parts[0], std::stoi(parts[1]), parse_size(parts[2]), parse_size(parts[3]), std::stoi(parts[4])};
    } catch (const std::logic_error&) {  // no number, or one too large
        return false;
    }
    return parsed->to_string() == name;
}

}  // namespace

std::vector<std::string> model_archs() {
    std::vector<std::string> archs;
    for (const Model& model : kModels) archs.push_back(arch_of(model));
    return archs;
}

DeviceInfo model_device(const std::string& name) {
    DeviceClass named;
    const bool is_class = parse_class(name, &named);
    const std::string& arch = is_class ? named.arch : name;
    for (const Model& model : kModels) {
        if (arch != arch_of(model) && arch != cuda_target(model.major, model.minor)) continue;
        DeviceInfo device;
        device.kind = DeviceKind::cuda;
        device.name = model.name;
        device.cc_major = model.major;
        device.cc_minor = model.minor;
        device.device_class = {arch_of(model), model.sm_count, model.l2_mib << 20, model.shared_per_block << 10,
                               model.bus_width};
        if (is_class) {
            device.name = "a GPU of the class";
            device.device_class = named;
        }
        device.registers_per_sm = 65536;
        device.shared_per_sm = model.shared_per_sm << 10;
        device.max_threads_per_sm = model.threads_per_sm;
        return device;
    }
    throw InvalidArgument(
        "arch", fmt::format("'{}' is none of {}, and no class of one of them", name, fmt::join(model_archs(), ", ")));
}

}  // namespace turbotune
