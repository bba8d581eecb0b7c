#include "turbotune/device/device_info.h"

#include <fmt/format.h>

#include <cctype>

#include "cpu_info.h"

namespace turbotune {

namespace {

// The largest unit, up to `most`, that the size is a whole multiple of.
std::string size_text(std::int64_t bytes, int most) {
    static constexpr const char* kUnits[] = {"B", "KiB", "MiB"};
    int unit = 0;
    while (unit < most && bytes != 0 && bytes % 1024 == 0) {
        bytes /= 1024;
        ++unit;
    }
    return fmt::format("{}{}", bytes, kUnits[unit]);
}

}  // namespace

std::string DeviceClass::to_string() const {
    std::string safe = arch;
    for (char& c : safe) {
        if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '-') c = '_';
    }
    return fmt::format("{}-{}sm-{}-{}-{}bit", safe, sm_count, size_text(l2_bytes, 2), size_text(shared_per_block, 1),
                       bus_width);
}

std::string cuda_target(int cc_major, int cc_minor) {
    // The variants with the arch's own instructions (wgmma, tcgen05), which a cubin of the plain arch lacks.
    const bool specific = cc_minor == 0 && (cc_major == 9 || cc_major == 10 || cc_major == 12);
    return fmt::format("sm_{}{}{}", cc_major, cc_minor, specific ? "a" : "");
}

std::string DeviceInfo::target() const {
    if (kind == DeviceKind::cuda) return cuda_target(cc_major, cc_minor);
    return device_class.arch + "-" + cpu_feature_digest();
}

std::vector<std::string> DeviceInfo::tiers() const {
    if (kind == DeviceKind::cpu) return {"host"};
    std::vector<std::string> names;
    if (cc_major == 9 && cc_minor == 0) names.push_back("sm90");
    if (cc_major >= 8) names.push_back("mma");
    if (cc_major >= 8) names.push_back("simt");
    return names;
}

}  // namespace turbotune
