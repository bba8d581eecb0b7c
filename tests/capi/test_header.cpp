// turbotune.h is plain C11 and plain C++, and libturbotune.so exports its functions and nothing else.
#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>

#include "capi_testing.h"

using namespace turbotune::testing;

namespace {

std::string output_of(const std::string& command, int* status) {
    std::string text;
    FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
    REQUIRE(pipe != nullptr);
    char part[4096];
    while (const std::size_t count = std::fread(part, 1, sizeof part, pipe)) text.append(part, count);
    *status = ::pclose(pipe);
    return text;
}

void check_compiles(const std::string& compiler, const std::string& name) {
    const TempFolder folder;
    const std::string source = folder.path() + '/' + name;
    std::ofstream(source) << "#include \"turbotune/turbotune.h\"\n#include \"turbotune/turbotune.h\"\n"
                             "int main(void) { return turbotune_version() == 0; }\n";
    int status = 0;
    const std::string command =
        compiler + " -pedantic -Wall -Wextra -Werror -fsyntax-only -I" TURBOTUNE_SOURCE_DIR "/runtime/rooms/capi " +
        source;
    const std::string text = output_of(command, &status);
    INFO(command << '\n' << text);
    CHECK(status == 0);
}

// Functions that the header declares.
std::set<std::string> declared() {
    std::ifstream file(TURBOTUNE_SOURCE_DIR "/runtime/include/turbotune/turbotune.h");
    std::set<std::string> names;
    bool in_declaration = false;
    for (std::string line; std::getline(file, line);) {
        in_declaration |= line.rfind("TURBOTUNE_API", 0) == 0;
        const std::size_t open = line.find('(');
        if (!in_declaration || open == std::string::npos) continue;
        const std::size_t begin = line.find_last_of(" *", open) + 1;
        names.insert(line.substr(begin, open - begin));
        in_declaration = false;
    }
    return names;
}

}  // namespace

TEST_CASE("The header compiles as C11 and as C++, and may be included twice", "[capi][headers]") {
    check_compiles(TURBOTUNE_C_COMPILER " -std=c11", "unit.c");
    check_compiles(TURBOTUNE_C_COMPILER " -std=c17", "unit.c");
    check_compiles(TURBOTUNE_CXX_COMPILER " -std=c++11", "unit.cpp");
    check_compiles(TURBOTUNE_CXX_COMPILER " -std=c++20", "unit.cpp");
}

TEST_CASE("The shared library exports the functions of the header and nothing else", "[capi]") {
    int status = 0;
    const std::string text = output_of("nm -D --defined-only " TURBOTUNE_SHARED_LIBRARY, &status);
    REQUIRE(status == 0);
    std::set<std::string> exported;
    std::istringstream lines(text);
    for (std::string address, kind, name; lines >> address >> kind >> name;) exported.insert(name);
    CHECK(declared().size() > 30);
    CHECK(exported == declared());
}

TEST_CASE("The shared library has a versioned name", "[capi]") {
    int status = 0;
    const std::string text = output_of("readelf -d " TURBOTUNE_SHARED_LIBRARY, &status);
    REQUIRE(status == 0);
    const std::string version = turbotune_version();
    CHECK(text.find("Library soname: [libturbotune.so." + version.substr(0, version.find('.')) + "]") !=
          std::string::npos);
}
