// A profile is read as it stands, or refused with the place: never half.
#include "fuzz.h"
#include "turbotune/base/error.h"
#include "turbotune/profile/profile.h"

using namespace turbotune;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string text(fuzz::view(data, size));
    Profile profile;
    try {
        profile = parse_profile(text, "fuzz.json");
    } catch (const InvalidArgument& error) {
        fuzz::require(std::string(error.what()).find("fuzz.json") != std::string::npos, "a refusal names the file");
        return 0;
    }
    const std::string written = to_json_text(profile);
    const Profile again = parse_profile(written, "written");
    fuzz::require(to_json_text(again) == written, "what was read is written, and read again, unchanged");
    for (const ProfileEntry& entry : profile.entries) {
        const ProfileEntry* found = again.find(entry.workload);
        fuzz::require(found != nullptr && found->config == entry.config, "every winner is found again");
    }
    return 0;
}
