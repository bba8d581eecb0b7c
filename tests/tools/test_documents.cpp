// Documents do not drift: their links lead somewhere, their example is the file that compiles, their lists are
// complete.
#include <filesystem>
#include <set>

#include "catch.h"
#include "program.h"

using namespace turbotune::test;

namespace {

const std::string kRoot = TURBOTUNE_SOURCE_DIR;

std::vector<std::string> documents() {
    std::vector<std::string> paths = {kRoot + "/README.md"};
    for (const auto& each : std::filesystem::recursive_directory_iterator(kRoot + "/docs"))
        if (each.path().extension() == ".md") paths.push_back(each.path().string());
    return paths;
}

std::vector<std::string> sources(const std::vector<std::string>& folders) {
    std::vector<std::string> paths;
    for (const std::string& folder : folders)
        for (const auto& each : std::filesystem::recursive_directory_iterator(kRoot + '/' + folder))
            if (each.path().extension() == ".cpp" || each.path().extension() == ".h")
                paths.push_back(each.path().string());
    return paths;
}

// Every text that stands between `before` and the next `after`. (std::regex trips g++ 12's warnings under the
// sanitizers.)
std::set<std::string> between(const std::string& text, const std::string& before, const std::string& after) {
    std::set<std::string> found;
    for (std::size_t at = text.find(before); at != std::string::npos; at = text.find(before, at)) {
        at += before.size();
        const std::size_t end = text.find(after, at);
        if (end == std::string::npos) break;
        found.insert(text.substr(at, end - at));
    }
    return found;
}

// "--lengths", ...
std::set<std::string> flags_in(const std::string& text) {
    std::set<std::string> found;
    for (std::size_t at = text.find("--"); at != std::string::npos; at = text.find("--", at + 2)) {
        const std::size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz-", at);
        if (end != at + 2) found.insert(text.substr(at, end - at));
    }
    return found;
}

// The titles of the test cases of a source; a long one may be cut into several literals.
std::set<std::string> titles_in(const std::string& text) {
    std::set<std::string> titles;
    const std::string head = "TEST_CASE(";
    for (std::size_t at = text.find(head); at != std::string::npos; at = text.find(head, at)) {
        at += head.size();
        std::string title;
        while ((at = text.find_first_not_of(" \n", at)) != std::string::npos && text[at] == '"') {
            for (++at; at < text.size() && text[at] != '"'; ++at) {
                if (text[at] == '\\') ++at;
                title += text[at];
            }
            ++at;
        }
        titles.insert(title);
    }
    return titles;
}

}  // namespace

TEST_CASE("Links of the documents exist", "[documents]") {
    for (const std::string& path : documents()) {
        for (std::string target : between(read_text(path), "](", ")")) {
            if (target.rfind("http", 0) == 0 || target[0] == '#') continue;
            target = target.substr(0, target.find('#'));
            INFO(path << " -> " << target);
            CHECK(std::filesystem::exists(std::filesystem::path(path).parent_path() / target));
        }
    }
}

TEST_CASE("The README's embedding example is examples/embed.cpp", "[documents]") {
    const std::string readme = read_text(kRoot + "/README.md");
    const std::size_t begin = readme.find("```cpp\n");
    REQUIRE(begin != std::string::npos);
    const std::size_t end = readme.find("```", begin + 7);
    CHECK(readme.substr(begin + 7, end - begin - 7) == read_text(kRoot + "/examples/embed.cpp"));
}

TEST_CASE("The embedding example runs", "[documents][slow]") {
    const TempDir home;
    const Outcome outcome = run_program(home, {TURBOTUNE_BUILD_DIR "/examples/example_embed"}, 300);
    INFO(outcome.err);
    CHECK(outcome.exit_code == 0);
    CHECK(outcome.out.find("tier=") != std::string::npos);
}

TEST_CASE("Every test that the reliability page names exists, and every promise names one", "[documents]") {
    std::set<std::string> titles;
    for (const std::string& path : sources({"tests"}))
        for (const std::string& title : titles_in(read_text(path))) titles.insert(title);
    CHECK(titles.count("Links of the documents exist") == 1);
    CHECK(titles.count("a profile of another compiler whose config does not compile here falls back, and says so; an "
                       "exact one fails") == 1);

    const std::string page = read_text(kRoot + "/docs/reliability.md");
    int promises = 0;
    std::size_t begin = 0;
    while (begin < page.size()) {
        const std::size_t end = std::min(page.find('\n', begin), page.size());
        const std::string line = page.substr(begin, end - begin);
        begin = end + 1;
        if (line.rfind("| ", 0) != 0 || line.rfind("| what goes wrong", 0) == 0) continue;
        ++promises;
        const std::string column = line.substr(line.rfind('|', line.size() - 2));
        INFO(line);
        int named = 0;
        for (std::size_t at = column.find('`'); at != std::string::npos; at = column.find('`', at)) {
            const std::size_t close = column.find('`', at + 1);
            REQUIRE(close != std::string::npos);
            const std::string title = column.substr(at + 1, close - at - 1);
            INFO(title);
            CHECK(titles.count(title) == 1);
            ++named;
            at = close + 1;
        }
        CHECK(named > 0);
    }
    CHECK(promises == 28);
    // Outside the tables names are long; short words in such quotes are commands and files.
    for (const std::string& each : between(page.substr(page.find("## Beyond")), ": `", "`.")) {
        INFO(each);
        CHECK(titles.count(each) == 1);
    }
}

TEST_CASE("Every environment variable that is read is documented, and no other", "[documents]") {
    std::set<std::string> read;
    for (const std::string& path : sources({"runtime", "tuner", "tools"}))
        for (const char* call : {"environment(\"", "getenv(\""})
            for (const std::string& name : between(read_text(path), call, "\""))
                if (name.rfind("TURBOTUNE_", 0) == 0) read.insert(name);
    CHECK(read.size() >= 5);
    std::set<std::string> documented;
    for (const std::string& name : between(read_text(kRoot + "/docs/environment.md"), "\n| `", "` |"))
        if (name.rfind("TURBOTUNE_", 0) == 0) documented.insert(name);
    for (const std::string& name : read) {
        INFO(name << " is read, but not in docs/environment.md");
        CHECK(documented.count(name) == 1);
    }
    for (const std::string& name : documented) {
        INFO(name << " is in docs/environment.md, but nothing reads it");
        CHECK(read.count(name) == 1);
    }
}

TEST_CASE("The command line page names every flag of the help texts", "[documents]") {
    const std::string page = read_text(kRoot + "/docs/command-line.md");
    std::size_t flags = 0;
    for (const auto& each : std::filesystem::directory_iterator(kRoot + "/tests/tools/approved"))
        for (const std::string& flag : flags_in(read_text(each.path().string()))) {
            INFO(flag << " of " << each.path().filename());
            CHECK(page.find(flag) != std::string::npos);
            ++flags;
        }
    CHECK(flags > 20);
}

TEST_CASE("The umbrella header includes every public C++ header of the runtime but json.h", "[documents]") {
    const std::string include = kRoot + "/runtime/include/turbotune";
    const std::set<std::string> included =
        between(read_text(include + "/turbotune.hpp"), "#include \"turbotune/", "\"");
    std::set<std::string> headers;
    for (const auto& each : std::filesystem::recursive_directory_iterator(include))
        if (each.path().extension() == ".h") headers.insert(std::filesystem::relative(each.path(), include).string());
    headers.erase("base/json.h");
    headers.erase("turbotune.h");  // the C interface
    CHECK(included == headers);
}

TEST_CASE("Scripts are executable", "[documents]") {
    for (const char* script :
         {".ci/run", "tools/setup", "tools/quickstart", "tools/check", "tools/gpu_check", "tools/fuzz",
          "tests/install/install_and_use", "benchmarks/peers.py", "benchmarks/train_stack.py", "tests/cluster/recipe",
          "tests/cluster/mpirun_sweep", "tests/cluster/slurm_sweep"}) {
        INFO(script);
        const auto permissions = std::filesystem::status(kRoot + '/' + script).permissions();
        CHECK((permissions & std::filesystem::perms::owner_exec) != std::filesystem::perms::none);
    }
}
