#include "turbotune/profile/selection.h"

#include <algorithm>

#include "catch.h"
#include "fixtures.h"
#include "turbotune/base/error.h"

using namespace turbotune;
using namespace turbotune::test;

namespace {

SelectionQuery query_for(const Workload& wanted, const DeviceClass& device = h200()) {
    SelectionQuery query;
    query.workload = wanted;
    query.device_class = device;
    query.compiler = kCompiler;
    query.digest = kDigest;
    return query;
}

LoadedProfile loaded(const std::string& path, int block_m, const DeviceClass& device = h200(),
                     const std::string& compiler = kCompiler) {
    Profile result = profile(device);
    result.compiler = compiler;
    result.entries = {entry(512, block_m)};
    return {path, result};
}

Grade grade_of(const Profile& p, const DeviceClass& device, const std::string& compiler = kCompiler,
               const std::string& digest = kDigest) {
    return compare(p, "disentangled_attention", device, compiler, digest).grade;
}

}  // namespace

TEST_CASE("Grades follow device class, compiler and template digest", "[profile]") {
    const Profile p = profile();
    REQUIRE(grade_of(p, h200()) == Grade::exact);
    REQUIRE(compare(p, "disentangled_attention", h200(), kCompiler, kDigest).differences.empty());
    REQUIRE(grade_of(p, h200(), "nvrtc-13.1.0+ff") == Grade::same_class);
    REQUIRE(grade_of(p, h200(), "") == Grade::same_class);
    REQUIRE(grade_of(p, h200(), kCompiler, std::string(64, 'b')) == Grade::same_class);
    REQUIRE(compare(p, "triangle_attention", h200(), kCompiler, kDigest).grade == Grade::same_class);

    Profile no_compiler = p;
    no_compiler.compiler.clear();
    REQUIRE(grade_of(no_compiler, h200(), "") == Grade::same_class);

    Profile other_driver = p;
    other_driver.provenance["driver"] = "580.1";
    other_driver.device_name = "something else";
    REQUIRE(grade_of(other_driver, h200()) == Grade::exact);
}

TEST_CASE("Every member of the device class counts, and each difference is one line", "[profile]") {
    const Profile p = profile();
    DeviceClass here = h200();
    here.sm_count = 114;
    auto result = compare(p, "disentangled_attention", here, kCompiler, kDigest);
    REQUIRE(result.grade == Grade::incompatible);
    REQUIRE(result.differences == std::vector<std::string>{"sm_count: profile 132, here 114"});

    here = {"sm_80", 108, 40ll << 20, 163 << 10, 5120};
    result = compare(p, "disentangled_attention", here, "", std::string(64, 'b'));
    REQUIRE(result.grade == Grade::incompatible);
    REQUIRE(result.differences ==
            std::vector<std::string>{
                "arch: profile sm_90, here sm_80", "sm_count: profile 132, here 108",
                "l2_bytes: profile 62914560, here 41943040", "shared_per_block: profile 232448, here 166912",
                "bus_width: profile 6144, here 5120", "compiler: profile nvrtc-13.0.88+1f2e3d, here none",
                "templates: profile aaaaaaaaaaaa, here bbbbbbbbbbbb"});
    REQUIRE(compare(p, "other", h200(), kCompiler, kDigest).differences ==
            std::vector<std::string>{"templates: profile has none of other, here aaaaaaaaaaaa"});
}

TEST_CASE("Boards that share a name are told apart by their numbers", "[profile]") {
    struct Board {
        const char* name;
        DeviceClass device;
    };
    // H100 SXM and PCIe, H200 and its 141 GB sibling under another name, H20, and slices of an H200.
    const std::vector<Board> boards = {
        {"NVIDIA H100 80GB HBM3", {"sm_90", 132, 50ll << 20, 227 << 10, 5120}},
        {"NVIDIA H100 PCIe", {"sm_90", 114, 50ll << 20, 227 << 10, 5120}},
        {"NVIDIA H200", h200()},
        {"NVIDIA H20-3e", {"sm_90", 78, 60ll << 20, 227 << 10, 6144}},
        {"NVIDIA H200 MIG 3g.71gb", {"sm_90", 60, 30ll << 20, 227 << 10, 3072}},
        {"NVIDIA H200 MIG 1g.18gb", {"sm_90", 16, 7680ll << 10, 227 << 10, 768}},
    };
    std::vector<LoadedProfile> profiles;
    for (std::size_t i = 0; i < boards.size(); ++i)
        // All under one name: it must not matter.
        profiles.push_back(loaded(boards[i].name, 16 * (static_cast<int>(i) + 1), boards[i].device));
    for (std::size_t here = 0; here < boards.size(); ++here) {
        INFO(boards[here].name);
        const auto selection = select_from_profiles(profiles, query_for(workload(512), boards[here].device), nullptr);
        REQUIRE(selection);
        CHECK(selection->profile_path == boards[here].name);
        CHECK(selection->grade == Grade::exact);
        CHECK(selection->config.integer("block_m") == 16 * (static_cast<int>(here) + 1));
        for (std::size_t tuned = 0; tuned < boards.size(); ++tuned)
            CHECK(grade_of(profiles[tuned].profile, boards[here].device) ==
                  (tuned == here ? Grade::exact : Grade::incompatible));
    }

    // The same numbers under another name: served.
    DeviceClass renamed = h200();
    REQUIRE(select_from_profiles({profiles[2]}, query_for(workload(512), renamed), nullptr));
    // A slice whose name says H200, with only the H200's own profile at hand: not served, and said why.
    std::string why;
    REQUIRE_FALSE(select_from_profiles({profiles[2]}, query_for(workload(512), boards[4].device), &why));
    REQUIRE_THAT(why, ContainsSubstring("NVIDIA H200: incompatible: sm_count: profile 132, here 60"));
}

TEST_CASE("Exact profiles come before same-class ones, whatever the order", "[profile]") {
    const LoadedProfile exact = loaded("exact", 64), same = loaded("same", 32, h200(), "nvrtc-12.9");
    for (const auto& profiles : {std::vector{exact, same}, std::vector{same, exact}}) {
        const auto selection = select_from_profiles(profiles, query_for(workload(512)), nullptr);
        REQUIRE(selection);
        REQUIRE(selection->profile_path == "exact");
        REQUIRE(selection->origin == "profile");
        REQUIRE(selection->note.empty());
        REQUIRE(selection->matched == workload(512));
    }
    const auto selection = select_from_profiles({same}, query_for(workload(512)), nullptr);
    REQUIRE(selection->grade == Grade::same_class);
    REQUIRE(selection->note == "compiler: profile nvrtc-12.9, here nvrtc-13.0.88+1f2e3d");
}

TEST_CASE("Of equal profiles the first wins", "[profile]") {
    const auto first = select_from_profiles({loaded("a", 64), loaded("b", 32)}, query_for(workload(512)), nullptr);
    REQUIRE(first->profile_path == "a");
    const auto second = select_from_profiles({loaded("b", 32), loaded("a", 64)}, query_for(workload(512)), nullptr);
    REQUIRE(second->profile_path == "b");
}

TEST_CASE("The workload itself in a same-class profile comes before a neighbour in an exact one", "[profile]") {
    LoadedProfile near = loaded("near", 64);
    near.profile.entries = {entry(1024, 64)};
    const LoadedProfile same = loaded("same", 32, h200(), "nvrtc-12.9");
    SelectionQuery query = query_for(workload(512));
    query.neighbours = {workload(2048), workload(1024)};
    REQUIRE(select_from_profiles({near, same}, query, nullptr)->profile_path == "same");

    const auto neighbour = select_from_profiles({near}, query, nullptr);
    REQUIRE(neighbour->matched == workload(1024));
    REQUIRE(neighbour->grade == Grade::exact);
    REQUIRE(neighbour->note == "tuned for " + workload(1024).to_string());

    near.profile.entries = {entry(1024, 64), entry(2048, 32)};
    REQUIRE(select_from_profiles({near}, query, nullptr)->matched == workload(2048));
}

TEST_CASE("A refused config is passed over with one warning", "[profile]") {
    const std::vector<LoadedProfile> profiles = {loaded("refused-one", 64), loaded("taken", 32)};
    SelectionQuery query = query_for(workload(512));
    std::vector<std::string> asked;
    query.refuse = [&](const Workload& wanted, const Config& candidate) -> std::string {
        asked.push_back(wanted.to_string());
        return candidate.integer("block_m") == 64 ? "block_m 64 is not a value of this tier" : "";
    };
    ScopedLog log;
    for (int i = 0; i < 3; ++i) REQUIRE(select_from_profiles(profiles, query, nullptr)->profile_path == "taken");
    REQUIRE(log.warnings().size() == 1);
    REQUIRE_THAT(log.warnings()[0], ContainsSubstring("refused-one") &&
                                        ContainsSubstring("block_m 64 is not a value of this tier") &&
                                        ContainsSubstring("length=512"));
    REQUIRE(asked.size() == 6);

    std::string why;
    REQUIRE_FALSE(select_from_profiles({profiles[0]}, query, &why));
    REQUIRE_THAT(why, ContainsSubstring("refused-one: config tier=mma block_m=64") &&
                          ContainsSubstring("not a value of this tier"));
}

TEST_CASE("A neighbour's config is checked for the workload that will run it", "[profile]") {
    LoadedProfile near = loaded("neighbour-check", 64);
    near.profile.entries = {entry(1024, 64)};
    SelectionQuery query = query_for(workload(512));
    query.neighbours = {workload(1024)};
    query.refuse = [](const Workload& wanted, const Config&) {
        return wanted == workload(512) ? std::string() : std::string("asked about the wrong workload");
    };
    REQUIRE(select_from_profiles({near}, query, nullptr));
}

TEST_CASE("exact_only takes exact profiles and says why each other did not match", "[profile]") {
    LoadedProfile without = loaded("without", 64);
    without.profile.entries = {entry(64, 64)};
    DeviceClass slice = h200();
    slice.sm_count = 60;
    const std::vector<LoadedProfile> profiles = {loaded("same", 32, h200(), "nvrtc-12.9"), loaded("slice", 32, slice),
                                                 without};
    SelectionQuery query = query_for(workload(512));
    query.exact_only = true;
    std::string why;
    REQUIRE_FALSE(select_from_profiles(profiles, query, &why));
    REQUIRE(std::count(why.begin(), why.end(), '\n') == 2);
    REQUIRE_THAT(why, ContainsSubstring("same: same-class: compiler: profile nvrtc-12.9") &&
                          ContainsSubstring("slice: incompatible: sm_count: profile 60, here 132") &&
                          ContainsSubstring("without: no entry for " + workload(512).to_string()));
    REQUIRE_FALSE(select_from_profiles({}, query, &why));
    REQUIRE(why == "no profile was found");
}

TEST_CASE("Selection is a pure function: a thousand calls agree", "[profile]") {
    std::vector<LoadedProfile> profiles;
    for (int i = 0; i < 8; ++i)
        profiles.push_back(loaded("p" + std::to_string(i), 16 + i, h200(), i % 3 == 2 ? kCompiler : "nvrtc-12.9"));
    const SelectionQuery query = query_for(workload(512));
    for (int i = 0; i < 1000; ++i) {
        const auto selection = select_from_profiles(profiles, query, nullptr);
        REQUIRE(selection->profile_path == "p2");
        REQUIRE(selection->config == config(18));
    }
}

TEST_CASE("Policies have names, and an unknown one lists them", "[profile]") {
    for (const Policy policy :
         {Policy::automatic, Policy::heuristic, Policy::autotune, Policy::fixed, Policy::profile_only})
        REQUIRE(parse_policy(to_string(policy)) == policy);
    REQUIRE(std::string(to_string(Policy::automatic)) == "auto");
    REQUIRE_THROWS_AS(parse_policy("fastest"), InvalidArgument);
    REQUIRE_THROWS_WITH(parse_policy("fastest"), ContainsSubstring("auto, heuristic, autotune, fixed, profile_only"));
}
