#include "catch.h"
#include "program.h"
#include "turbotune/base/json.h"

using namespace turbotune::test;

namespace {

// Exit code, exactly one line on standard error that begins as promised, nothing on standard output.
void check_refused(const std::vector<std::string>& arguments, int exit_code, const std::string& expected_text) {
    const TempDir home;
    const Outcome outcome = run_turbotune(home, arguments);
    std::string shown;
    for (const std::string& each : arguments) shown += ' ' + each;
    INFO("turbotune" << shown << "\n" << outcome.err);
    CHECK(outcome.exit_code == exit_code);
    CHECK(outcome.out.empty());
    CHECK(outcome.err.rfind("turbotune: error: ", 0) == 0);
    CHECK(outcome.err.find('\n') == outcome.err.size() - 1);
    CHECK(outcome.err.find(expected_text) != std::string::npos);
}

}  // namespace

TEST_CASE("More compile threads than any machine has are refused by name", "[usage]") {
    const TempDir home;
    for (const std::vector<std::string>& arguments :
         {std::vector<std::string>{"--preset", "quick", "--device", "cpu", "--jobs", "100000"},
          {"cache", "warm", "--arch", "cpu", "--preset", "quick", "--jobs", "100000"}}) {
        const Outcome outcome = run_turbotune(home, arguments);
        CHECK(outcome.exit_code == 2);
        CHECK(outcome.err.find("--jobs") != std::string::npos);
    }
}

TEST_CASE("Unknown flags and commands are refused with a hint", "[cli]") {
    check_refused({"--prset", "quick"}, 2, "did you mean --preset?");
    check_refused({"inspct"}, 2, "did you mean inspect?");
    check_refused({"inspect", "--workloads", "x"}, 2, "did you mean --workload?");
    check_refused({"cache", "verfy"}, 2, "did you mean verify?");
    check_refused({"--frobnicate"}, 2, "turbotune --help");
}

TEST_CASE("An option in front of a command is refused, not dropped", "[cli]") {
    check_refused({"--json", "devices"}, 2, "turbotune devices --help");
}

TEST_CASE("Options with bad values are refused by name", "[cli]") {
    check_refused({"--preset", "fast", "--device", "cpu", "--dry-run"}, 2, "quick");
    check_refused({"--ops", "matmul", "--dry-run"}, 2, "disentangled_attention");
    check_refused({"--lengths", "128,,256", "--dry-run"}, 2, "--lengths");
    check_refused({"--lengths", "many", "--dry-run"}, 2, "--lengths");
    check_refused({"--lengths", "-5", "--dry-run"}, 2, "--lengths");
    check_refused({"--head-dims", "65", "--dry-run"}, 2, "--head-dims");
    check_refused({"--dtypes", "int8", "--dry-run"}, 2, "--dtypes");
    check_refused({"--dropout", "maybe", "--dry-run"}, 2, "--dropout");
    check_refused({"--relative-modes", "sideways", "--dry-run"}, 2, "--relative-modes");
    check_refused({"--passes", "backward_everything", "--dry-run"}, 2, "--passes");
    check_refused({"--layouts", "ragged", "--dry-run"}, 2, "--layouts");
    check_refused({"--shard", "3/2", "--dry-run"}, 2, "--shard");
    check_refused({"--shard", "0/2", "--dry-run"}, 2, "--shard");
    check_refused({"--shard", "1/2x", "--dry-run"}, 2, "--shard");
    check_refused({"--jobs", "-1", "--dry-run"}, 2, "--jobs");
    check_refused({"--jobs", "two", "--dry-run"}, 2, "--jobs");
    check_refused({"--time-budget", "-3", "--dry-run"}, 2, "--time-budget");
    check_refused({"--time-budget", "nan", "--dry-run"}, 2, "--time-budget");
    check_refused({"--preset"}, 2, "--preset");
}

TEST_CASE("Empty values are refused by name", "[cli]") {
    for (const char* flag : {"--output", "--preset", "--ops", "--lengths", "--passes", "--device", "--shard", "--jobs"})
        check_refused({flag, "", "--dry-run"}, 2, flag);
    check_refused({"--output=", "--dry-run"}, 2, "--output: the value is empty");
    for (const char* verb : {"list", "verify", "clear"})
        check_refused({"cache", verb, "--directory", ""}, 2, "--directory");
    check_refused({"validate", "--cases", TURBOTUNE_TEST_DATA, "--tier", ""}, 2, "--tier");
    check_refused({"validate", "--cases", TURBOTUNE_TEST_DATA, "--device", ""}, 2, "--device");
    check_refused({"validate", "--cases", ""}, 2, "--cases");
    check_refused({"inspect", ""}, 2, "FILE");
    check_refused({"inspect", "--compare", ""}, 2, "--compare");
}

TEST_CASE("Standard output that cannot be written is exit code 1", "[cli]") {
    const TempDir home;
    const std::string program = turbotune_program();
    for (const std::string arguments :
         {"--help", "cache list --help", "--version", "devices --json", "devices", "cache list",
          "--preset quick --device cpu --dry-run --json", "--preset exhaustive --device cpu --dry-run"}) {
        INFO(arguments);
        const Outcome full = run_program(home, {"/bin/sh", "-c", "'" + program + "' " + arguments + " >/dev/full"}, 60);
        CHECK(full.exit_code == 1);
        CHECK(full.err.rfind("turbotune: error: cannot write to standard output: ", 0) == 0);
        CHECK(full.err.find('\n') == full.err.size() - 1);
    }
}

TEST_CASE("A memory limit that is no number is refused before anything runs", "[cli]") {
    const TempDir home;
    const Outcome outcome = run_turbotune(home, {"--preset", "quick", "--device", "cpu", "--output", home / "p.json"},
                                          {{"TURBOTUNE_MEMORY_LIMIT", "2G"}});
    CHECK(outcome.exit_code == 2);
    CHECK(outcome.out.empty());
    CHECK(outcome.err.find("TURBOTUNE_MEMORY_LIMIT") != std::string::npos);
}

TEST_CASE("Standard error that cannot be written costs nothing of what standard output gets", "[cli]") {
    const TempDir home;
    const std::string command =
        turbotune_program() +
        " --device cpu --preset quick --lengths 64 --passes inference --layouts padded --dtypes fp32 "
        "--json 2>/dev/full";
    const Outcome outcome = run_program(home, {"/bin/sh", "-c", command}, 200);
    CHECK(outcome.exit_code == 0);
    CHECK(parse_json(outcome.out, "standard output")["measured"] == 1);
}

TEST_CASE("A device that is not there is exit code 3", "[cli]") {
    const TempDir other;
    const Outcome several = run_turbotune(other, {"--devices", "0,1", "--dry-run"});
    CHECK(several.exit_code == 3);
    CHECK(several.err.find("there is no GPU") != std::string::npos);
    CHECK(run_turbotune(other, {"--devices", "cpu,x", "--dry-run"}).exit_code == 2);
    const Outcome all = run_turbotune(other, {"--devices", "all", "--dry-run"});
    CHECK(all.exit_code == 0);
    CHECK(all.err.find("the CPU is tuned") != std::string::npos);
    check_refused({"--device", "97", "--dry-run"}, 3, "97");
    check_refused({"validate", "--cases", TURBOTUNE_TEST_DATA, "--device", "97"}, 3, "97");
}

TEST_CASE("Files that cannot be read are exit code 2 and named", "[cli]") {
    check_refused({"inspect", "/nonexistent/profile.json"}, 2, "/nonexistent/profile.json");
    check_refused({"inspect", TURBOTUNE_TEST_DATA "/da_both_l1.safetensors"}, 2, "da_both_l1.safetensors");
    check_refused({"validate", "--cases", "/nonexistent"}, 2, "/nonexistent");
    check_refused({"validate", "--cases", TURBOTUNE_SOURCE_DIR "/cmake-there-is-none"}, 2, "cmake-there-is-none");
    check_refused({"validate", "--cases", TURBOTUNE_SOURCE_DIR "/tests/tools"}, 2, "no case");
    check_refused({"validate"}, 2, "--cases");
    check_refused({"cache"}, 2, "turbotune cache --help");
}

TEST_CASE("inspect without a file says what to do when nothing was tuned", "[cli]") {
    check_refused({"inspect"}, 2, "run turbotune");
}
