// merge and retarget through the program: exit codes, what is said, what is written.
#include <filesystem>

#include "catch.h"
#include "program.h"
#include "turbotune/base/json.h"
#include "turbotune/device/device.h"
#include "turbotune/kernel/compiler.h"
#include "turbotune/kernel/kernel_spec.h"
#include "turbotune/ops/operation.h"
#include "turbotune/profile/profile.h"

using namespace turbotune;
using namespace turbotune::test;

namespace {

const std::string kOperation = "disentangled_attention";
const std::vector<std::string> kThree = {"--preset", "quick", "--ops", kOperation, "--passes", "inference"};

Profile empty_profile() {
    const DeviceInfo& cpu = open_device("cpu").info();
    Profile profile;
    profile.device_class = cpu.device_class;
    profile.device_name = cpu.name;
    profile.compiler = host_compiler().identity();
    profile.templates[kOperation] = to_hex(template_digest(kOperation));
    profile.provenance["date"] = "2026-11-30";
    return profile;
}

// As if the K-th of N shards of kThree had been measured.
Profile shard(int k, int n, double median = 1) {
    WorkloadQuery query;
    query.preset = Preset::quick;
    query.axes["pass"] = {"inference"};
    const Operation& operation = find_operation(kOperation);
    const DeviceInfo& cpu = open_device("cpu").info();
    Profile profile = empty_profile();
    profile.provenance["shard"] = std::to_string(k) + "/" + std::to_string(n);
    int place = 0;
    for (const Workload& workload : operation.workloads(query)) {
        if (place++ % n != k - 1) continue;
        ProfileEntry entry;
        entry.workload = workload;
        entry.config = operation.heuristic(workload, cpu);
        entry.latency = {median, median, median, median, 10};
        profile.entries.push_back(entry);
    }
    return profile;
}

Outcome merge(const TempDir& home, std::vector<std::string> arguments, const std::vector<std::string>& more = {}) {
    arguments.insert(arguments.begin(), "merge");
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_turbotune(home, arguments);
}

bool has(const std::string& text, const std::string& part) {
    INFO(text);
    return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("merge joins shards, and a preset says that nothing is missing", "[merge]") {
    const TempDir home;
    save_profile(shard(1, 2), home / "1.json");
    save_profile(shard(2, 2), home / "2.json");
    std::vector<std::string> more = kThree;
    more.push_back("--json");
    const Outcome outcome = merge(home, {home / "all.json", home / "1.json", home / "2.json"}, more);
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    const Json report = parse_json(outcome.out, "standard output");
    CHECK(report["profile"] == home / "all.json");
    CHECK(report["entries"] == 3);
    REQUIRE(report["inputs"].size() == 2);
    CHECK(report["inputs"][0]["entries"] == 2);
    CHECK(report["inputs"][1]["kept"] == 1);
    CHECK(report["conflicts"].empty());
    CHECK(report["workloads"] == 3);
    CHECK(report["held"] == 3);
    CHECK(report["missing"].empty());
    CHECK(load_profile(home / "all.json").entries.size() == 3);
    const Json seen = parse_json(run_turbotune(home, {"inspect", home / "all.json", "--json"}).out, "inspect");
    CHECK(seen["grade"] == "exact");
}

TEST_CASE("merge names what a shard that died left unmeasured, and exits with 1", "[merge]") {
    const TempDir home;
    save_profile(shard(1, 3), home / "1.json");
    save_profile(shard(3, 3), home / "3.json");
    const Outcome text = merge(home, {home / "all.json", home / "1.json", home / "3.json"}, kThree);
    CHECK(text.exit_code == 1);
    CHECK(has(text.out, "missing: disentangled_attention pass=inference layout=padded_masked"));
    CHECK(has(text.out, "(shard 2/3)"));
    CHECK(has(text.out, "2 of 3 workloads held, 1 missing, 0 not available"));
    CHECK(load_profile(home / "all.json").entries.size() == 2);  // what is there is joined all the same

    std::vector<std::string> more = kThree;
    more.push_back("--json");
    const Outcome json = merge(home, {home / "all.json", home / "1.json"}, more);
    CHECK(json.exit_code == 1);
    const Json report = parse_json(json.out, "standard output");
    CHECK(report["inputs"][0]["path"] == home / "all.json");  // it was there: nothing of it is lost
    REQUIRE(report["missing"].size() == 1);
    CHECK(report["missing"][0]["shard"] == "2/3");
    CHECK(report["missing"][0]["workload"]["operation"] == kOperation);

    const Outcome unasked = merge(home, {home / "all.json", home / "1.json"});
    CHECK(unasked.exit_code == 0);
    CHECK_FALSE(has(unasked.out, "missing"));
}

TEST_CASE("merge says what it kept where several hold a workload", "[merge]") {
    const TempDir home;
    save_profile(shard(1, 1, 2), home / "slow.json");
    save_profile(shard(1, 1, 1), home / "fast.json");
    const Outcome outcome = merge(home, {home / "all.json", home / "slow.json", home / "fast.json"});
    CHECK(outcome.exit_code == 0);
    CHECK(has(outcome.out, "1.000 ms of " + home / "fast.json" + " kept, not 2.000 ms of "));
    CHECK(has(outcome.out, "(the same config)"));
    CHECK(load_profile(home / "all.json").entries[0].latency.median == 1);
}

TEST_CASE("merge refuses profiles that do not belong together, and writes nothing", "[merge]") {
    const TempDir home;
    save_profile(shard(1, 2), home / "1.json");
    Profile other = shard(2, 2);
    other.compiler = "g++-1+0";
    save_profile(other, home / "compiler.json");
    other = shard(2, 2);
    other.device_class.sm_count += 1;
    save_profile(other, home / "device.json");
    other = shard(2, 2);
    other.templates[kOperation] = std::string(64, '0');
    save_profile(other, home / "templates.json");
    write_text(home / "broken.json", "{");
    const std::vector<std::pair<std::string, std::string>> refused = {{"compiler.json", "compiler: g++-1+0"},
                                                                      {"device.json", "sm_count"},
                                                                      {"templates.json", "templates of dis"},
                                                                      {"broken.json", "broken.json"},
                                                                      {"absent.json", "absent.json: cannot read"}};
    for (const auto& [file, expected] : refused) {
        const Outcome outcome = merge(home, {home / "all.json", home / "1.json", home / file});
        CHECK(outcome.exit_code == 2);
        CHECK(has(outcome.err, "turbotune: error: "));
        CHECK(has(outcome.err, file));
        CHECK(has(outcome.err, expected));
        CHECK_FALSE(std::filesystem::exists(home / "all.json"));
    }
    CHECK(merge(home, {home / "all.json"}).exit_code == 2);  // no input
    const Outcome flag = merge(home, {home / "all.json", home / "1.json"}, {"--preset", "fast"});
    CHECK(flag.exit_code == 2);
    CHECK_FALSE(std::filesystem::exists(home / "all.json"));
}

TEST_CASE("merge needs no device of the class that the profiles are of", "[merge]") {
    const TempDir home;
    Profile gpu = empty_profile();
    gpu.device_class = {"sm_90", 132, 60 << 20, 227 << 10, 6016};
    gpu.compiler = "nvrtc-13.0.88+0";
    save_profile(gpu, home / "gpu.json");
    const Outcome outcome = merge(home, {home / "all.json", home / "gpu.json"}, kThree);
    CHECK(outcome.exit_code == 1);
    CHECK(has(outcome.out, "0 of 3 workloads held, 3 missing"));
}

TEST_CASE("retarget re-issues a profile of another compiler after checking every config", "[retarget][slow]") {
    const TempDir home;
    Profile old = shard(1, 1);
    old.compiler = "g++-1.0+0";
    old.templates[kOperation] = std::string(64, '0');
    old.entries[2].config.set("block_m", 100000);  // one that this version would not run
    save_profile(old, home / "old.json");
    const Outcome outcome = run_turbotune(
        home, {"retarget", home / "old.json", "--output", home / "new.json", "--device", "cpu", "--json"});
    INFO(outcome.err);
    CHECK(outcome.exit_code == 1);
    const Json report = parse_json(outcome.out, "standard output");
    CHECK(report["entries"] == 3);
    CHECK(report["kept"] == 2);
    CHECK(report["differences"].size() == 2);
    REQUIRE(report["dropped"].size() == 1);
    CHECK(report["dropped"][0]["config"]["block_m"] == 100000);
    CHECK_FALSE(report["dropped"][0]["reason"].get<std::string>().empty());
    CHECK(has(outcome.err, "dropped: disentangled_attention"));

    const Json seen = parse_json(run_turbotune(home, {"inspect", home / "new.json", "--json"}).out, "inspect");
    CHECK(seen["grade"] == "exact");
    CHECK(seen["provenance"]["retargeted_from"] == "old.json");
    CHECK(seen["provenance"]["measured_compiler"] == "g++-1.0+0");
    REQUIRE(seen["entries"].size() == 2);
    CHECK(seen["entries"][0]["latency"]["median"] == 1);
    CHECK_FALSE(seen["entries"][0]["parity"]["patterns"].empty());
    CHECK(load_profile(home / "old.json").entries.size() == 3);

    // Again: everything is there already, and only what was dropped is looked at.
    const Outcome again =
        run_turbotune(home, {"retarget", home / "old.json", "--output", home / "new.json", "--device", "cpu"});
    CHECK(again.exit_code == 1);
    CHECK(has(again.out, "0 of 3 entries kept, 1 dropped, 2 already there"));
}

TEST_CASE("retarget refuses another device class and its own input as the output", "[retarget]") {
    const TempDir home;
    Profile other = shard(1, 1);
    other.device_class.sm_count += 1;
    save_profile(other, home / "other.json");
    const Outcome outcome =
        run_turbotune(home, {"retarget", home / "other.json", "--output", home / "new.json", "--device", "cpu"});
    CHECK(outcome.exit_code == 2);
    CHECK(has(outcome.err, other.device_class.to_string()));
    CHECK_FALSE(std::filesystem::exists(home / "new.json"));
    save_profile(shard(1, 1), home / "same.json");
    CHECK(run_turbotune(home, {"retarget", home / "same.json", "--output", home / "same.json"}).exit_code == 2);
    CHECK(run_turbotune(home, {"retarget", home / "same.json"}).exit_code == 2);
    CHECK(run_turbotune(home, {"retarget", home / "absent.json", "--output", home / "n.json"}).exit_code == 2);
    CHECK(run_turbotune(home, {"retarget", home / "same.json", "--output", home / "n.json", "--device", "97"})
              .exit_code == 3);
}
