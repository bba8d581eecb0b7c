// The profiles that ship with this tree, without a GPU.
#include <filesystem>
#include <set>

#include "catch.h"
#include "fitting.h"
#include "model_gpus.h"
#include "turbotune/base/sha256.h"
#include "turbotune/kernel/kernel_spec.h"
#include "turbotune/ops/disentangled_attention/attention.h"
#include "turbotune/ops/operation.h"
#include "turbotune/ops/runtime.h"
#include "turbotune/profile/profile.h"
#include "turbotune/profile/selection.h"
#include "workload.h"

using namespace turbotune;
using namespace turbotune::disentangled_attention;
using namespace turbotune::testing;

namespace {

std::vector<LoadedProfile> shipped() {
    std::vector<LoadedProfile> profiles;
    for (const auto& file : std::filesystem::directory_iterator(TURBOTUNE_SOURCE_DIR "/profiles"))
        if (file.path().extension() == ".json") profiles.push_back({file.path(), load_profile(file.path())});
    return profiles;
}

// A device of the profile's class. What the class does not say is alike on all GPUs.
DeviceInfo device_of(const Profile& profile) {
    DeviceInfo device = hopper();
    device.device_class = profile.device_class;
    return device;
}

}  // namespace

TEST_CASE(
    "every profile that ships holds a winner that fits and was checked for each exhaustive workload, of the kernels "
    "in this tree",
    "[profiles]") {
    REQUIRE_FALSE(shipped().empty());
    for (const auto& [path, profile] : shipped()) {
        INFO(path);
        const DeviceInfo device = device_of(profile);
        REQUIRE(profile.templates.count("disentangled_attention") == 1);
        CHECK(profile.templates.at("disentangled_attention") == to_hex(template_digest("disentangled_attention")));
        std::set<std::string> wanted;
        for (const Workload& workload : operation().workloads({Preset::exhaustive, {}})) {
            INFO(workload.to_string());
            wanted.insert(workload.to_string());
            const ProfileEntry* entry = profile.find(workload);
            REQUIRE(entry);
            CHECK(operation().filter(workload, entry->config, device).reason == "");
            CHECK(entry->latency.samples > 0);
            REQUIRE_FALSE(entry->parity.outputs.empty());
            for (const OutputParity& output : entry->parity.outputs) CHECK(output.error <= output.tolerance);
            for (const MeasuredCandidate& loser : entry->measured)
                CHECK(entry->latency.median < 1.05 * loser.latency.median);
        }
        CHECK(wanted.size() == profile.entries.size());
    }
}

TEST_CASE("with a profile that ships full grids of short sequences run what was chosen for full grids", "[profiles]") {
    for (const LoadedProfile& loaded : shipped()) {
        const DeviceInfo device = device_of(loaded.profile);
        const std::string digest = loaded.profile.templates.at("disentangled_attention");
        for (const int length : {64, 128, 512, 1024, 8192}) {
            INFO(loaded.path << ", length " << length);
            Problem problem;
            problem.batch = 16384 / length;
            problem.heads = 12;
            problem.length = length;
            const Workload workload = workload_of(problem);
            const Selection chosen =
                automatic_selection(operation(), workload, device, {loaded}, loaded.profile.compiler, digest);
            REQUIRE(chosen.origin == "profile");
            REQUIRE(chosen.grade == Grade::exact);
            const Config runs = fit(problem, chosen.matched, chosen.config, device).config;
            // 32 heads of 512 make 128 blocks of 128 rows.
            const bool filled = 32 * ((length + 127) / 128) >= device.device_class.sm_count;
            CHECK(runs == (filled ? chosen.config : operation().heuristic(workload, device)));
        }
    }
}
