// Joining profiles: which entry wins, what is refused, what is still missing.
#include "turbotune/tuner/merge.h"

#include "catch.h"
#include "scratch.h"
#include "toy_operation.h"
#include "turbotune/base/error.h"
#include "turbotune/device/device.h"

using namespace turbotune;

namespace {

ProfileEntry entry(int length, double median, int id = 0) {
    ProfileEntry out;
    out.workload = {"toy", Fields{}.set("length", length)};
    out.config = toy_config("good", 50, id);
    out.latency = {median, median, median, median, 10};
    return out;
}

LoadedProfile loaded(const std::string& path, std::vector<ProfileEntry> entries) {
    Profile profile;
    profile.device_class = open_device("cpu").info().device_class;
    profile.device_name = "a CPU";
    profile.compiler = "cc-1";
    profile.templates = {{"toy", std::string(64, 'a')}};
    profile.provenance = {{"date", path}, {"turbotune", "1"}};
    profile.entries = std::move(entries);
    return {path, profile};
}

std::string refusal(const LoadedProfile& a, const LoadedProfile& b) {
    try {
        merge_profiles({a, b});
    } catch (const InvalidArgument& error) {
        return error.what();
    }
    return "accepted";
}

bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("merge keeps every workload once, in the order in which they are named", "[merge]") {
    const MergeReport report =
        merge_profiles({loaded("a", {entry(8, 1), entry(32, 1)}), loaded("b", {entry(16, 1)}), loaded("c", {})});
    REQUIRE(report.profile.entries.size() == 3);
    CHECK(report.profile.entries[0].workload.fields.integer("length") == 8);
    CHECK(report.profile.entries[1].workload.fields.integer("length") == 32);
    CHECK(report.profile.entries[2].workload.fields.integer("length") == 16);
    CHECK(report.conflicts.empty());
    REQUIRE(report.sources.size() == 3);
    CHECK(report.sources[0].kept == 2);
    CHECK(report.sources[1].entries == 1);
    CHECK(report.sources[2].kept == 0);
    CHECK(report.profile.compiler == "cc-1");
    CHECK(report.profile.provenance.at("turbotune") == "1");
    CHECK(report.profile.provenance.at("date") == "a | b | c");
}

TEST_CASE("of two entries of a workload the lower median wins, and equal ones go to the first named", "[merge]") {
    for (const bool slower_first : {true, false}) {
        const LoadedProfile slow = loaded("slow", {entry(8, 2, 1)}), fast = loaded("fast", {entry(8, 1, 2)});
        const MergeReport report =
            merge_profiles(slower_first ? std::vector{slow, fast} : std::vector<LoadedProfile>{fast, slow});
        REQUIRE(report.profile.entries.size() == 1);
        CHECK(report.profile.entries[0].config.integer("id") == 2);
        REQUIRE(report.conflicts.size() == 1);
        CHECK(report.conflicts[0].kept == "fast");
        CHECK(report.conflicts[0].dropped == "slow");
        CHECK(report.conflicts[0].kept_ms == 1);
        CHECK(report.conflicts[0].dropped_ms == 2);
        CHECK_FALSE(report.conflicts[0].same_config);
    }
    const MergeReport tie =
        merge_profiles({loaded("a", {entry(8, 3, 0)}), loaded("b", {entry(8, 1, 1)}), loaded("c", {entry(8, 1, 2)})});
    CHECK(tie.profile.entries.at(0).config.integer("id") == 1);
    CHECK(tie.conflicts.size() == 2);
}

TEST_CASE("a workload is the same whatever the order of its fields, and a text is no number", "[merge]") {
    ProfileEntry a = entry(8, 2), b = entry(8, 1), text = entry(8, 1);
    a.workload.fields = Fields{}.set("length", 8).set("pass", std::string("x"));
    b.workload.fields = Fields{}.set("pass", std::string("x")).set("length", 8);
    text.workload.fields = Fields{}.set("pass", std::string("x")).set("length", std::string("8"));
    CHECK(merge_profiles({loaded("a", {a}), loaded("b", {b, text})}).profile.entries.size() == 2);
}

TEST_CASE("the same entry in two files is no conflict", "[merge]") {
    const MergeReport report = merge_profiles({loaded("a", {entry(8, 1)}), loaded("b", {entry(8, 1), entry(16, 1)})});
    CHECK(report.conflicts.empty());
    CHECK(report.sources[0].kept == 1);
    CHECK(report.sources[1].kept == 1);
}

TEST_CASE("profiles of another class, compiler or templates are refused naming file and difference", "[merge]") {
    const LoadedProfile first = loaded("first.json", {entry(8, 1)});
    LoadedProfile other = loaded("other.json", {entry(16, 1)});
    CHECK(refusal(first, other) == "accepted");
    other.profile.device_class.sm_count += 2;
    other.profile.compiler = "cc-2";
    const std::string two = refusal(first, other);
    for (const char* part : {"other.json", "first.json", "sm_count", "compiler: cc-2, there cc-1"}) {
        INFO(two);
        CHECK(has(two, part));
    }
    other = loaded("other.json", {});
    other.profile.templates["toy"] = std::string(64, 'b');
    CHECK(has(refusal(first, other), "templates of toy: bbbbbbbbbbbb, there aaaaaaaaaaaa"));
    // Operations that only one of them knows are no difference, but a third must agree with either.
    other.profile.templates = {{"another", std::string(64, 'c')}};
    CHECK(merge_profiles({first, other}).profile.templates.size() == 2);
    LoadedProfile third = loaded("third.json", {});
    third.profile.templates = {{"another", std::string(64, 'd')}};
    REQUIRE_THROWS_AS(merge_profiles({first, other, third}), InvalidArgument);
    REQUIRE_THROWS_AS(merge_profiles({}), InvalidArgument);
}

TEST_CASE("entries of unknown templates do not become exact by joining", "[merge]") {
    const LoadedProfile first = loaded("first.json", {entry(8, 1)});
    LoadedProfile unknown = loaded("unknown.json", {entry(16, 1)});
    unknown.profile.templates.clear();
    for (const auto& [a, b] : {std::pair{first, unknown}, {unknown, first}}) {
        const std::string why = refusal(a, b);
        CHECK(has(why, "unknown.json: cannot be joined with first.json: it does not say which templates of toy"));
    }
    CHECK(merge_profiles({unknown, unknown}).profile.templates.empty());  // nobody claims anything
    unknown.profile.entries.clear();
    CHECK(refusal(first, unknown) == "accepted");
}

TEST_CASE("merge writes where a symbolic link leads", "[merge]") {
    const Scratch scratch;
    const std::string real = scratch.file("real.json"), link = scratch.file("link.json"), more = scratch.file("b.json");
    save_profile(loaded("a", {entry(8, 1)}).profile, real);
    save_profile(loaded("b", {entry(16, 1)}).profile, more);
    std::filesystem::create_symlink("real.json", link);
    merge_files(link, {more});
    CHECK(std::filesystem::is_symlink(link));
    CHECK(load_profile(real).entries.size() == 2);
}

TEST_CASE("merging files again changes nothing, and what the output held stays", "[merge]") {
    const Scratch scratch;
    const std::string a = scratch.file("a.json"), b = scratch.file("b.json"), out = scratch.file("new/out.json");
    save_profile(loaded("a", {entry(8, 1)}).profile, a);
    save_profile(loaded("b", {entry(16, 1)}).profile, b);
    merge_files(out, {a, b});
    const std::string once = slurp(out);
    CHECK(load_profile(out).entries.size() == 2);
    merge_files(out, {a, b});
    CHECK(slurp(out) == once);
    save_profile(loaded("c", {entry(32, 1)}).profile, a);
    CHECK(merge_files(out, {a}).profile.entries.size() == 3);
    CHECK(merge_files(out, {out, b}).sources.size() == 2);  // named as an input, too
}

TEST_CASE("a merge that is refused leaves the output as it was", "[merge]") {
    const Scratch scratch;
    const std::string good = scratch.file("good.json"), bad = scratch.file("bad.json"), out = scratch.file("out.json");
    save_profile(loaded("a", {entry(8, 1)}).profile, good);
    save_profile(loaded("a", {entry(16, 1)}).profile, out);
    const std::string before = slurp(out);
    for (const char* text : {"", "{", "{\"format\": 99}"}) {
        spit(bad, text);
        REQUIRE_THROWS_AS(merge_files(out, {good, bad}), InvalidArgument);
        CHECK(slurp(out) == before);
    }
    REQUIRE_THROWS_AS(merge_files(out, {good, scratch.file("absent.json")}), InvalidArgument);
    REQUIRE_THROWS_AS(merge_files(scratch.path(), {good}), InvalidArgument);
    spit(out, "not a profile");
    REQUIRE_THROWS_AS(merge_files(out, {good}), InvalidArgument);
    CHECK(slurp(out) == "not a profile");
}

TEST_CASE("coverage names the workloads that nobody measured, and whose share they were", "[merge]") {
    const ToyOperation toy({toy_config("good", 50)});
    SweepOptions options;
    options.query.axes["length"] = {"8", "13", "16", "32", "64"};  // 13 is not served
    LoadedProfile first = loaded("1", {entry(8, 1), entry(32, 1)});
    first.profile.provenance["shard"] = "1/3";
    LoadedProfile third = loaded("3", {});
    third.profile.provenance["shard"] = "3/3";
    const Profile joined = merge_profiles({first, third}).profile;
    CHECK(joined.provenance.at("shard") == "1/3, 3/3");
    options.shard = 2, options.shards = 3;  // all shards count, whatever is set
    const Coverage covered = coverage(joined, options, {&toy});
    CHECK(covered.workloads == 5);
    CHECK(covered.held == 2);
    CHECK(covered.unavailable == 1);
    REQUIRE(covered.missing.size() == 2);
    CHECK(covered.missing[0].workload.fields.integer("length") == 16);
    CHECK(covered.missing[0].shard == "3/3");
    CHECK(covered.missing[1].shard == "2/3");

    LoadedProfile other_shares = loaded("x", {});
    other_shares.profile.provenance["shard"] = "1/2";
    const Profile mixed = merge_profiles({first, other_shares}).profile;
    CHECK(coverage(mixed, options, {&toy}).missing.at(0).shard.empty());
    CHECK(coverage(loaded("y", {}).profile, options, {&toy}).missing.at(0).shard.empty());
}

TEST_CASE("a device that is not here is known by its class", "[merge]") {
    const DeviceInfo& cpu = open_device("cpu").info();
    CHECK(device_of_class(cpu.device_class).name == cpu.name);
    const DeviceInfo hopper = device_of_class({"sm_90", 131, 60 << 20, 227 << 10, 6016});
    CHECK(hopper.kind == DeviceKind::cuda);
    CHECK(hopper.target() == "sm_90a");
    CHECK(hopper.tiers().front() == "sm90");
    CHECK(device_of_class({"sm_120", 1, 1, 1, 1}).target() == "sm_120a");
    DeviceClass elsewhere = cpu.device_class;
    elsewhere.sm_count += 1;
    CHECK(device_of_class(elsewhere).kind == DeviceKind::cpu);
}
