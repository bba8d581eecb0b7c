// --devices: which devices may be tuned side by side.
#include "device_list.h"

#include <cstdlib>
#include <map>

#include "catch.h"
#include "program.h"
#include "turbotune/base/error.h"
#include "turbotune/base/json.h"
#include "turbotune/device/device.h"

using namespace turbotune;
using namespace turbotune::test;

namespace {

DeviceInfo gpu(int ordinal, const std::string& name, int sm_count) {
    DeviceInfo info;
    info.kind = DeviceKind::cuda;
    info.ordinal = ordinal;
    info.name = name;
    info.device_class = {"sm_90", sm_count, 60 << 20, 227 << 10, 6016};
    info.cc_major = 9;
    return info;
}

std::vector<DeviceInfo> host(std::vector<DeviceInfo> gpus) {
    gpus.push_back(open_device("cpu").info());
    return gpus;
}

std::string refusal(const std::string& text, const std::vector<DeviceInfo>& present) {
    try {
        cli::choose_devices(text, present);
    } catch (const InvalidArgument& error) {
        CHECK(error.argument() == "--devices");
        return error.what();
    }
    return "accepted";
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("All devices are all GPUs, and the CPU only where there is none", "[devices]") {
    const auto two = host({gpu(0, "A", 132), gpu(1, "A", 132)});
    CHECK(cli::choose_devices("all", two) == Names{"0", "1"});
    CHECK(cli::choose_devices("all", host({})) == Names{"cpu"});
    CHECK(cli::choose_devices("1", two) == Names{"1"});
    CHECK(cli::choose_devices("1,0", two) == Names{"1", "0"});
    CHECK(cli::choose_devices("cpu", two) == Names{"cpu"});
}

TEST_CASE("Devices of several classes are refused by name, with those that are alike", "[devices]") {
    const auto mixed = host({gpu(0, "A", 132), gpu(1, "B", 114), gpu(2, "A", 132)});
    const std::string text = refusal("all", mixed);
    INFO(text);
    CHECK(text.find("0,2 (A, sm_90-132sm") != std::string::npos);
    CHECK(text.find("1 (B, sm_90-114sm") != std::string::npos);
    CHECK(text.find("--devices 0,2") != std::string::npos);
    CHECK(cli::choose_devices("0,2", mixed) == Names{"0", "2"});
    CHECK(refusal("0,cpu", mixed).find("2 classes") != std::string::npos);
    // The name alone makes no class.
    CHECK(cli::choose_devices("all", host({gpu(0, "A", 132), gpu(1, "B", 132)})).size() == 2);
}

TEST_CASE("Devices that are not there or named twice are refused", "[devices]") {
    const auto two = host({gpu(0, "A", 132), gpu(1, "A", 132)});
    CHECK(refusal("0,5", two).find("'5' is neither all nor one of 0,1,cpu") != std::string::npos);
    CHECK(refusal("0,0", two).find("twice") != std::string::npos);
    CHECK(refusal("0,,1", two).find("empty") != std::string::npos);
    CHECK(refusal("every", two).find("every") != std::string::npos);
}

TEST_CASE("The program tunes all devices of a machine that has only the CPU", "[devices][slow]") {
    const TempDir home;
    const Outcome both = run_turbotune(home, {"--device", "cpu", "--devices", "all", "--dry-run"});
    CHECK(both.exit_code == 2);
    CHECK(both.err.find("--devices") != std::string::npos);
    const Outcome outcome = run_turbotune(home,
                                          {"--devices", "all", "--preset", "quick", "--passes", "inference",
                                           "--layouts", "packed", "--ops", "disentangled_attention", "--json"},
                                          shared_store());
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    const Json report = parse_json(outcome.out, "standard output");
    CHECK(report["devices"] == Json::array({"cpu"}));
    CHECK(report["measured"] == 1);
    CHECK(report["shard"].is_null());
}

TEST_CASE("Of two GPUs of a driver the program plans for both, or says why it cannot", "[devices]") {
    const TempDir home;
    const char* chosen = std::getenv("CXX");
    const Outcome built = run_program(
        home, {chosen && *chosen ? chosen : "c++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", home / "libcuda.so.1",
               TURBOTUNE_SOURCE_DIR "/tests/device/fake_driver/fake_libcuda.cpp", "-pthread"});
    INFO(built.err);
    REQUIRE(built.exit_code == 0);
    std::map<std::string, std::string> driver = {{"LD_LIBRARY_PATH", home.path()}};
    const std::vector<std::string> plan = {"--devices", "all", "--preset", "quick", "--dry-run", "--json"};
    const Outcome mixed = run_turbotune(home, plan, driver);  // the fake's second GPU is an older one
    CHECK(mixed.exit_code == 2);
    INFO(mixed.err);
    CHECK(mixed.err.find("--devices: 2 classes of devices: 0 (Fake H200, sm_90-") != std::string::npos);
    CHECK(mixed.err.find("; 1 (Fake H200, sm_80-") != std::string::npos);
    driver["FAKE_CC_1"] = "90";
    const Outcome alike = run_turbotune(home, plan, driver);
    INFO(alike.err);
    REQUIRE(alike.exit_code == 0);
    CHECK(parse_json(alike.out, "plan")["device"]["id"] == "0");
}
