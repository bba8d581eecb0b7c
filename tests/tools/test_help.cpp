// Help texts are approved files. After a change on purpose: TURBOTUNE_APPROVE=1 test_tools "[approved]"
#include <cstdlib>

#include "catch.h"
#include "program.h"

using namespace turbotune::test;

namespace {

void check_approved(const std::string& name, const std::string& text) {
    const std::string path = TURBOTUNE_SOURCE_DIR "/tests/tools/approved/" + name + ".txt";
    if (std::getenv("TURBOTUNE_APPROVE") != nullptr) write_text(path, text);
    INFO("approved text: " << path);
    CHECK(text == read_text(path));
}

}  // namespace

TEST_CASE("Help texts are the approved ones, teach by an example, and fit 100 columns", "[approved]") {
    const std::vector<std::pair<std::string, std::vector<std::string>>> pages = {
        {"help", {}},
        {"help_inspect", {"inspect"}},
        {"help_merge", {"merge"}},
        {"help_retarget", {"retarget"}},
        {"help_validate", {"validate"}},
        {"help_bench", {"bench"}},
        {"help_devices", {"devices"}},
        {"help_cache", {"cache"}},
        {"help_cache_list", {"cache", "list"}},
        {"help_cache_verify", {"cache", "verify"}},
        {"help_cache_clear", {"cache", "clear"}},
        {"help_cache_warm", {"cache", "warm"}},
    };
    const TempDir home;
    for (const auto& [name, command] : pages) {
        auto arguments = command;
        arguments.push_back("--help");
        const Outcome outcome = run_turbotune(home, arguments);
        INFO(name << outcome.err);
        CHECK(outcome.exit_code == 0);
        CHECK(outcome.err.empty());
        CHECK(outcome.out.find("Example") != std::string::npos);
        std::size_t begin = 0;
        while (begin < outcome.out.size()) {
            const std::size_t end = outcome.out.find('\n', begin);
            INFO(outcome.out.substr(begin, end - begin));
            CHECK(end - begin <= 100);
            begin = end + 1;
        }
        check_approved(name, outcome.out);
    }
}

TEST_CASE("The worker is not offered to people", "[approved]") {
    const TempDir home;
    CHECK(run_turbotune(home, {"--help"}).out.find("worker") == std::string::npos);
}

TEST_CASE("The flag --version names the program and its version", "[cli]") {
    const TempDir home;
    const Outcome outcome = run_turbotune(home, {"--version"});
    CHECK(outcome.exit_code == 0);
    CHECK(outcome.out.rfind("turbotune 0.", 0) == 0);
}
