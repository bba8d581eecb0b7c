// tests/gpu/verified.json says on which kernels and runtime the GPU tests last passed.
#include <algorithm>
#include <filesystem>

#include "catch.h"
#include "program.h"
#include "turbotune/base/json.h"
#include "turbotune/base/sha256.h"

using namespace turbotune;
using namespace turbotune::test;

namespace {

const std::filesystem::path kRoot = TURBOTUNE_SOURCE_DIR;

// As tools/gpu_record.py: over path, zero byte, length (8 bytes, little endian) and bytes of each file in path order.
std::string tree_digest(const std::string& folder) {
    std::vector<std::string> paths;
    for (const auto& each : std::filesystem::recursive_directory_iterator(kRoot / folder))
        if (each.is_regular_file()) paths.push_back(each.path().lexically_relative(kRoot).string());
    std::sort(paths.begin(), paths.end());
    Sha256 hash;
    for (const std::string& path : paths) {
        hash.update(path.c_str(), path.size() + 1);
        hash.field(read_text((kRoot / path).string()));
    }
    return to_hex(hash.finish());
}

}  // namespace

TEST_CASE("The record's digests are what this test computes, too", "[record]") {
    const TempDir home;
    const Outcome outcome = run_program(home, {"python3", (kRoot / "tools/gpu_record.py").string(), "--digests"});
    REQUIRE(outcome.exit_code == 0);
    const Json digests = parse_json(outcome.out, "gpu_record.py");
    CHECK(digests["kernel_templates"] == tree_digest("kernel_templates"));
    CHECK(digests["runtime"] == tree_digest("runtime"));
}

TEST_CASE("The record of the GPU tests is complete, and says so when the tree has moved on", "[record]") {
    const std::filesystem::path path = kRoot / "tests/gpu/verified.json";
    if (!std::filesystem::exists(path)) {
        WARN("skipped: there is no tests/gpu/verified.json yet; tools/gpu_check writes it on a machine with a GPU");
        return;
    }
    const Json record = parse_json(read_text(path.string()), path.string());
    for (const char* key : {"device", "driver", "nvrtc", "date", "digests", "passed", "failed", "skipped", "tests"}) {
        INFO(key);
        CHECK(record.contains(key));
    }
    CHECK(record["failed"] == 0);
    CHECK(record["passed"].get<int>() > 0);
    for (const char* folder : {"kernel_templates", "runtime"})
        if (record["digests"][folder] != tree_digest(folder))
            WARN("skipped: " << folder << " changed since the GPU tests last ran (" << record["date"] << ", "
                             << record["device"] << "); run tools/gpu_check on a machine with a GPU");
}

TEST_CASE("gpu_record reads ctest's report: passed, failed, skipped", "[record]") {
    const TempDir home;
    write_text(home / "tests.xml",
               "<testsuite name=\"x\">"
               "<testcase name=\"b\" status=\"run\" time=\"0.5\"/>"
               "<testcase name=\"a\" status=\"fail\" time=\"1\"><failure message=\"\"/></testcase>"
               "<testcase name=\"c\" status=\"notrun\" time=\"0\"><skipped message=\"\"/></testcase>"
               "</testsuite>");
    // Stands for the program on a machine with a GPU.
    write_text(home / "turbotune",
               "#!/bin/sh\necho '{\"devices\": [{\"kind\": \"cuda\", \"name\": \"GPU\", \"class\": \"sm_90\", "
               "\"driver\": \"13.0\", "
               "\"compiler\": \"nvrtc-13.0.88\"}], \"no_cuda\": \"\"}'\n");
    std::filesystem::permissions(home / "turbotune", std::filesystem::perms::owner_all);
    const Outcome outcome =
        run_program(home, {"python3", (kRoot / "tools/gpu_record.py").string(), "--junit", home / "tests.xml",
                           "--turbotune", home / "turbotune", "--output", home / "record.json"});
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    const Json record = parse_json(read_text(home / "record.json"), "record.json");
    CHECK(record["device"] == "GPU");
    CHECK(record["passed"] == 1);
    CHECK(record["failed"] == 1);
    CHECK(record["skipped"] == 1);
    CHECK(record["tests"][0]["name"] == "a");
    CHECK(record["tests"][0]["outcome"] == "failed");
}
