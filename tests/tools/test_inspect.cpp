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

ProfileEntry entry(std::int64_t length, double median) {
    ProfileEntry out;
    out.workload = {kOperation, {{"pass", std::string("inference")}, {"length", length}}};
    out.config = {{"tier", std::string("host")}, {"block_m", std::int64_t{16}}};
    out.latency = {median * 0.9, median * 0.95, median, median * 1.1, 20};
    out.parity = {{{"out", 1e-3, 2e-2}}, {"L=33 mask=holes"}};
    out.measured = {{{{"tier", std::string("host")}, {"block_m", std::int64_t{32}}}, {2, 2, 2, 2, 20}}};
    out.rejected = {{{{"tier", std::string("host")}, {"block_m", std::int64_t{64}}}, "filtered", "too much scratch"}};
    return out;
}

// As this machine's own tuner would write it.
Profile own_profile() {
    const DeviceInfo& cpu = open_device("cpu").info();
    Profile profile;
    profile.device_class = cpu.device_class;
    profile.device_name = cpu.name;
    profile.compiler = host_compiler().identity();
    profile.templates[kOperation] = to_hex(template_digest(kOperation));
    profile.provenance["date"] = "2026-11-30";
    profile.entries = {entry(64, 1.25), entry(640, 7.5)};
    return profile;
}

Json inspect(const TempDir& home, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"inspect", "--json"});
    const Outcome outcome = run_turbotune(home, arguments);
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    return parse_json(outcome.out, "standard output");
}

}  // namespace

TEST_CASE("inspect --json holds everything that the profile holds", "[cli]") {
    const TempDir home;
    const std::string path = home / "mine.json";
    save_profile(own_profile(), path);
    const Json seen = inspect(home, {path});
    CHECK(seen["path"] == path);
    CHECK(seen["format"] == Profile::kFormat);
    CHECK(seen["device"]["class"] == open_device("cpu").info().device_class.to_string());
    CHECK(seen["grade"] == "exact");
    CHECK(seen["differences"].empty());
    REQUIRE(seen["entries"].size() == 2);
    const Json& first = seen["entries"][0];
    CHECK(first["workload"]["operation"] == kOperation);
    CHECK(first["workload"]["length"] == 64);
    CHECK(first["config"]["block_m"] == 16);
    CHECK(first["latency"]["median"] == 1.25);
    CHECK(first["latency"]["samples"] == 20);
    CHECK(first["parity"]["outputs"][0]["output"] == "out");
    CHECK(first["parity"]["patterns"][0] == "L=33 mask=holes");
    CHECK(first["measured"][0]["config"]["block_m"] == 32);
    CHECK(first["rejected"][0]["reason"] == "filtered");
    CHECK(first["registers"] == -1);
}

TEST_CASE("inspect tells which winners the runtime here would refuse", "[cli]") {
    const TempDir home;
    const std::string path = home / "mine.json";
    const Operation& operation = find_operation(kOperation);
    const DeviceInfo& cpu = open_device("cpu").info();
    Profile profile = own_profile();
    for (ProfileEntry& each : profile.entries) {
        const std::int64_t length = each.workload.fields.integer("length") == 64 ? 64 : 768;
        each.workload =
            operation.workloads({Preset::quick, {{"pass", {"inference"}}, {"length", {std::to_string(length)}}}})[0];
        each.config = operation.heuristic(each.workload, cpu);
    }
    profile.entries[1].config.set("block_m", 63);
    save_profile(profile, path);
    const Json seen = inspect(home, {path});
    CHECK(seen["entries"][0]["refused"] == "");
    CHECK(seen["entries"][1]["refused"].get<std::string>().find("block_m") != std::string::npos);
    const Outcome text = run_turbotune(home, {"inspect", path});
    CHECK(text.exit_code == 0);
    CHECK(text.out.find("refused here, the heuristic serves instead: " + profile.entries[1].workload.to_string()) !=
          std::string::npos);
    CHECK(text.out.find("refused here, the heuristic serves instead: " + profile.entries[0].workload.to_string()) ==
          std::string::npos);
}

TEST_CASE("inspect grades a profile with one line per difference", "[cli]") {
    const TempDir home;
    Profile other_build = own_profile();
    other_build.compiler = "g++-1.0.0+0000";
    other_build.templates[kOperation] = std::string(64, '0');
    save_profile(other_build, home / "build.json");
    const Json same_class = inspect(home, {home / "build.json"});
    CHECK(same_class["grade"] == "same-class");
    CHECK(same_class["differences"].size() == 2);

    Profile other_device = own_profile();
    other_device.device_class.sm_count += 1;
    save_profile(other_device, home / "device.json");
    const Json incompatible = inspect(home, {home / "device.json"});
    CHECK(incompatible["grade"] == "incompatible");
    CHECK(incompatible["differences"].size() == 1);

    const Outcome text = run_turbotune(home, {"inspect", home / "build.json"});
    CHECK(text.out.find("same-class") != std::string::npos);
    CHECK(text.out.find("g++-1.0.0+0000") != std::string::npos);
}

TEST_CASE("inspect grades a GPU's profile on a machine without one", "[cli]") {
    const TempDir home;
    Profile gpu = own_profile();
    gpu.device_class = {"sm_90", 132, 60 << 20, 227 << 10, 6144};
    gpu.compiler = "nvrtc-13.0.88+0";
    save_profile(gpu, home / "gpu.json");
    CHECK(inspect(home, {home / "gpu.json"})["grade"] == "incompatible");
}

TEST_CASE("inspect --workload keeps workloads that hold every word, whole", "[cli]") {
    const TempDir home;
    save_profile(own_profile(), home / "mine.json");
    const Json one = inspect(home, {home / "mine.json", "--workload", "length=64 pass=inference"});
    REQUIRE(one["entries"].size() == 1);  // not length=640
    CHECK(one["entries"][0]["workload"]["length"] == 64);
    CHECK(inspect(home, {home / "mine.json", "--workload", "inference"})["entries"].size() == 2);
    CHECK(inspect(home, {home / "mine.json", "--workload", "length=64 length=640 pass=inference"})["entries"].size() ==
          2);

    const auto refused = [&](const std::string& words) {
        const Outcome outcome = run_turbotune(home, {"inspect", home / "mine.json", "--workload", words});
        CHECK(outcome.exit_code == 2);
        CHECK(outcome.out.empty());
        return outcome.err;
    };
    CHECK(refused("pass=inference length=65").find("has length=65; length is 64, 640") != std::string::npos);
    CHECK(refused("lenght=64").find("has lenght=64; did you mean length?") != std::string::npos);
    CHECK(refused("colour").find("has colour; the fields are length, pass") != std::string::npos);
}

TEST_CASE("inspect --compare sets two profiles side by side", "[cli]") {
    const TempDir home;
    save_profile(own_profile(), home / "new.json");
    Profile old = own_profile();
    old.entries = {entry(64, 2.5), entry(128, 1)};
    old.entries[0].config.set("block_m", 32);
    save_profile(old, home / "old.json");
    const Json rows = inspect(home, {home / "new.json", "--compare", home / "old.json"})["comparison"];
    REQUIRE(rows.size() == 3);
    CHECK(rows[0]["ratio"] == 0.5);
    CHECK(rows[0]["same_config"] == false);
    CHECK(rows[1]["other_median"].is_null());
    CHECK(rows[2]["median"].is_null());
    CHECK(rows[2]["workload"]["length"] == 128);
    const Outcome text = run_turbotune(home, {"inspect", home / "new.json", "--compare", home / "old.json"});
    CHECK(text.exit_code == 0);
    CHECK(text.out.find("only in the other") != std::string::npos);
    CHECK(text.out.find("another device class") == std::string::npos);

    ++old.device_class.sm_count;
    save_profile(old, home / "elsewhere.json");
    CHECK(inspect(home, {home / "new.json", "--compare", home / "elsewhere.json"})["compared_device"] ==
          old.device_class.to_string());
    const Outcome devices = run_turbotune(home, {"inspect", home / "new.json", "--compare", home / "elsewhere.json"});
    CHECK(devices.out.find("of another device class") != std::string::npos);
}

TEST_CASE("inspect keeps names and values apart, and says what makes a profile exact", "[cli]") {
    const TempDir home;
    Profile profile = own_profile();
    profile.compiler += "-older";
    profile.provenance["measured_templates_disentangled_attention"] = "0123";
    save_profile(profile, home / "p.json");
    const Outcome text = run_turbotune(home, {"inspect", home / "p.json"});
    CHECK(text.out.find("measured_templates_disentangled_attention 0123") != std::string::npos);
    CHECK(text.out.find("turbotune retarget") != std::string::npos);
}

TEST_CASE("inspect as text shows each winner and why candidates were turned down", "[cli]") {
    const TempDir home;
    save_profile(own_profile(), home / "mine.json");
    const Outcome outcome = run_turbotune(home, {"inspect", home / "mine.json"});
    CHECK(outcome.exit_code == 0);
    for (const char* text :
         {"exact", "pass=inference", "640", "1.250", "7.500", "tier=host block_m=16", "2 filtered", "2026-11-30"}) {
        INFO(text << "\n" << outcome.out);
        CHECK(outcome.out.find(text) != std::string::npos);
    }
}

TEST_CASE("Broken profiles are refused with the path of the value", "[cli]") {
    const TempDir home;
    save_profile(own_profile(), home / "mine.json");
    Json profile = parse_json(read_text(home / "mine.json"), "mine.json");
    profile["entries"][1]["latency"]["median"] = -1;
    profile.erase("checksum");  // as somebody who edits by hand would
    write_text(home / "negative.json", profile.dump());
    const Outcome outcome = run_turbotune(home, {"inspect", home / "negative.json"});
    CHECK(outcome.exit_code == 2);
    INFO(outcome.err);
    CHECK(outcome.err.find("/entries/1/latency") != std::string::npos);
    CHECK(outcome.err.rfind("turbotune: error: ", 0) == 0);
}
