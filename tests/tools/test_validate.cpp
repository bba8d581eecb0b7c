#include <signal.h>

#include <chrono>
#include <filesystem>
#include <set>
#include <thread>

#include "catch.h"
#include "program.h"
#include "turbotune/base/json.h"
#include "turbotune/base/safetensors.h"

using namespace turbotune;
using namespace turbotune::test;

namespace {

const std::string kData = TURBOTUNE_TEST_DATA;

// A directory with copies of some cases.
std::string cases(const TempDir& home, const std::vector<std::string>& names) {
    const std::string directory = home / "cases";
    std::filesystem::create_directory(directory);
    for (const std::string& name : names) std::filesystem::copy_file(kData + '/' + name, directory + '/' + name);
    return directory;
}

Json validate(const TempDir& home, const std::string& directory, int exit_code) {
    const Outcome outcome =
        run_turbotune(home, {"validate", "--cases", directory, "--device", "cpu", "--json"}, shared_store());
    INFO(outcome.out << outcome.err);
    REQUIRE(outcome.exit_code == exit_code);
    return parse_json(outcome.out, "standard output");
}

const Json* find(const Json& report, const std::string& name, const std::string& dtype = "") {
    for (const Json& each : report["cases"])
        if (each["case"] == name && (dtype.empty() || each["dtype"] == dtype)) return &each;
    return nullptr;
}

}  // namespace

TEST_CASE("validate passes a known case in every precision and tells its errors", "[validate]") {
    const TempDir home;
    const Json report = validate(home, cases(home, {"da_both_l33_d32.safetensors"}), 0);
    CHECK(report["device"]["id"] == "cpu");
    CHECK(report["failed"] == 0);
    CHECK(report["passed"] == 9);
    for (const char* dtype : {"f32", "f16", "bf16"}) {
        const Json* row = find(report, "da_both_l33_d32", dtype);
        REQUIRE(row != nullptr);
        CHECK((*row)["passed"] == true);
        CHECK((*row)["operation"] == "disentangled_attention");
        CHECK((*row)["pass"] == "inference");
        CHECK((*row)["tier"] == "host");
        REQUIRE((*row)["outputs"].size() == 1);
        const Json& output = (*row)["outputs"][0];
        CHECK(output["output"] == "out");
        CHECK(output["tolerance"] == (std::string(dtype) == "f32" ? 2e-4 : 2e-2));
        CHECK(output["error"].get<double>() > 0);  // a float result is never the float64 one everywhere
        CHECK(output["error"] <= output["tolerance"]);
    }
    std::set<std::string> gradients;
    for (const Json& each : report["cases"])
        if (each["pass"] == "backward")
            for (const Json& output : each["outputs"]) gradients.insert(output["output"].get<std::string>());
    CHECK(gradients == std::set<std::string>{"dq", "dk", "dv", "d_position_key", "d_position_query"});
}

TEST_CASE("validate skips operations and passes that do not exist, without calling them passed", "[validate]") {
    const TempDir home;
    const Json report = validate(home, cases(home, {"ta_n5_d16.safetensors", "da_both_l1.safetensors"}), 0);
    const Json* other = find(report, "ta_n5_d16");
    REQUIRE(other != nullptr);
    if (report["passed"] == 9) {  // once the operation exists its cases run instead
        CHECK((*other)["skipped"] == true);
        CHECK((*other)["passed"] == false);
        CHECK((*other)["operation"] == "triangle_attention");
        CHECK_FALSE((*other)["reason"].get<std::string>().empty());
    }
    int passed = 0, skipped = 0;
    for (const Json& each : report["cases"]) {
        passed += each["passed"].get<bool>();
        skipped += each["skipped"].get<bool>();
        CHECK_FALSE((each["passed"].get<bool>() && each["skipped"].get<bool>()));
    }
    CHECK(report["passed"] == passed);
    CHECK(report["skipped"] == skipped);
}

TEST_CASE("validate fails a case whose expected value is wrong, and only that one", "[validate]") {
    const TempDir home;
    const std::string directory = cases(home, {"da_both_l33_d32.safetensors", "da_none_l50_d64.safetensors"});
    SafetensorsFile file = read_safetensors(directory + "/da_none_l50_d64.safetensors");
    HostTensor& want = file.tensors.at("out.o");
    want.set(77, want.at(77) + 1);
    write_safetensors(directory + "/da_none_l50_d64.safetensors", file);
    const Json report = validate(home, directory, 1);
    CHECK(report["failed"] == 9);  // the backward pass reads out
    CHECK(report["passed"] == 9);
    const Json* row = find(report, "da_none_l50_d64", "f32");
    REQUIRE(row != nullptr);
    CHECK((*row)["passed"] == false);
    CHECK((*row)["reason"].get<std::string>().find("mismatch") != std::string::npos);
}

TEST_CASE("validate fails a case that expects what is no number, whatever a kernel gives", "[validate]") {
    const TempDir home;
    const std::string directory = cases(home, {"da_none_l50_d64.safetensors"});
    SafetensorsFile file = read_safetensors(directory + "/da_none_l50_d64.safetensors");
    for (const char* name : {"out.o", "in.q"}) {
        HostTensor& tensor = file.tensors.at(name);
        for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, std::nan(""));
    }
    write_safetensors(directory + "/da_none_l50_d64.safetensors", file);
    const Json report = validate(home, directory, 1);
    CHECK(report["passed"] == 0);
    const Json* row = find(report, "da_none_l50_d64", "f32");
    REQUIRE(row != nullptr);
    CHECK((*row)["reason"].get<std::string>().find("the expected out is no number at [0]") != std::string::npos);
}

TEST_CASE("validate names malformed files and still runs the others", "[validate]") {
    const TempDir home;
    const std::string directory = cases(home, {"da_both_l33_d32.safetensors"});
    const std::string good = read_text(directory + "/da_both_l33_d32.safetensors");
    write_text(directory + "/a_truncated.safetensors", good.substr(0, good.size() / 2));
    write_text(directory + "/b_empty.safetensors", "");
    SafetensorsFile no_case = read_safetensors(directory + "/da_both_l33_d32.safetensors");
    no_case.metadata.clear();
    write_safetensors(directory + "/c_no_case.safetensors", no_case);
    SafetensorsFile no_op = no_case;
    no_op.metadata["case"] = R"({"B": 1})";
    write_safetensors(directory + "/d_no_op.safetensors", no_op);
    SafetensorsFile not_json = no_case;
    not_json.metadata["case"] = "padded, 33";
    write_safetensors(directory + "/e_not_json.safetensors", not_json);
    SafetensorsFile no_tensor = read_safetensors(directory + "/da_both_l33_d32.safetensors");
    no_tensor.tensors.erase("in.k");
    write_safetensors(directory + "/f_no_tensor.safetensors", no_tensor);

    const Json report = validate(home, directory, 1);
    for (const char* name : {"a_truncated", "b_empty", "c_no_case", "d_no_op", "e_not_json", "f_no_tensor"}) {
        INFO(name);
        const Json* row = find(report, name);
        REQUIRE(row != nullptr);
        CHECK((*row)["passed"] == false);
        CHECK((*row)["skipped"] == false);
        CHECK_FALSE((*row)["reason"].get<std::string>().empty());
    }
    CHECK(report["failed"] == 6);
    CHECK(report["passed"] == 9);
    // In name order.
    CHECK(report["cases"][0]["case"] == "a_truncated");
}

TEST_CASE("validate ends at Ctrl-C with what is known by then", "[validate][slow]") {
    const TempDir home;
    Running running(home, {turbotune_program(), "validate", "--cases", kData, "--device", "cpu", "--json"});
    // Signals are taken before the store is opened, and its first kernel comes long before the last case.
    const std::filesystem::path store = home / "cache";
    for (int i = 0; i < 3000 && !(std::filesystem::exists(store) && !std::filesystem::is_empty(store)); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    running.send(SIGINT);
    const Outcome outcome = running.wait(60);
    INFO(outcome.out << outcome.err);
    CHECK(outcome.exit_code == 130);
    const Json report = parse_json(outcome.out, "standard output");
    CHECK(report["interrupted"] == true);
    CHECK(report["failed"] == 0);
    CHECK(report["cases"].size() < 40);
}

TEST_CASE("validate refuses a tier that the device does not have", "[validate]") {
    const TempDir home;
    const Outcome outcome = run_turbotune(home, {"validate", "--cases", kData, "--device", "cpu", "--tier", "mma"});
    CHECK(outcome.exit_code == 2);
    CHECK(outcome.err.find("host") != std::string::npos);
}

TEST_CASE("validate passes every known case on the CPU", "[validate][slow]") {
    const TempDir home;
    const Json report = validate(home, kData, 0);
    std::set<std::string> passed;
    for (const Json& each : report["cases"])
        if (each["passed"] == true) passed.insert(each["case"].get<std::string>());
    for (const auto& file : std::filesystem::directory_iterator(kData)) {
        const std::string name = file.path().stem().string();
        INFO(name);
        if (name.rfind("da_", 0) == 0) CHECK(passed.count(name) == 1);
    }
    const Outcome text = run_turbotune(home, {"validate", "--cases", kData, "--device", "cpu"}, shared_store());
    CHECK(text.out.find(" 0 failed") != std::string::npos);
}
