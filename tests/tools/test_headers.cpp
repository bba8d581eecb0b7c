// Each public header compiles alone in its own room, and a room cannot include what lies above it. Both are tried with
// the very command that the build uses for the room's sources.
#include <filesystem>
#include <sstream>

#include "catch.h"
#include "program.h"
#include "turbotune/base/json.h"

using namespace turbotune;
using namespace turbotune::test;

namespace {

struct Room {
    std::string name, headers;  // below the root
};

const Room kRooms[] = {{"base", "runtime/include/turbotune/base"},     {"device", "runtime/include/turbotune/device"},
                       {"kernel", "runtime/include/turbotune/kernel"}, {"profile", "runtime/include/turbotune/profile"},
                       {"ops", "runtime/include/turbotune/ops"},       {"tuner", "tuner/include/turbotune/tuner"}};

const std::string kRoot = TURBOTUNE_SOURCE_DIR;

// The words of the command that compiles the room's sources, up to the output.
std::vector<std::string> compile_command(const std::string& room) {
    const Json commands = parse_json(read_text(TURBOTUNE_BUILD_DIR "/compile_commands.json"), "compile_commands.json");
    for (const Json& each : commands) {
        const std::string whole = each["command"];
        if (whole.find("/turbotune_" + room + ".dir/") == std::string::npos) continue;
        std::istringstream text(whole);
        std::vector<std::string> words;
        for (std::string word; text >> word && word != "-o";) {
            std::string plain;
            for (char c : word)
                if (c != '\\') plain += c;  // -DNAME=\"VALUE\"
            words.push_back(plain);
        }
        return words;
    }
    FAIL("no source of room " << room << " is built");
    return {};
}

Outcome compile(const TempDir& home, const std::string& room, const std::string& text) {
    write_text(home / "unit.cpp", text);
    std::vector<std::string> command = compile_command(room);
    command.push_back("-fsyntax-only");
    command.push_back(home / "unit.cpp");
    return run_program(home, command);
}

std::string header_name(const std::string& path) {
    return path.substr(path.find("/turbotune/") + 1);
}

void check_headers_of(std::size_t index) {
    const Room& room = kRooms[index];
    const TempDir home;
    int headers = 0;
    for (const auto& each : std::filesystem::recursive_directory_iterator(kRoot + '/' + room.headers)) {
        if (each.path().extension() != ".h") continue;
        const std::string name = header_name(each.path().string().substr(each.path().string().find("/include/") + 8));
        const Outcome outcome = compile(home, room.name, "#include \"" + name + "\"\n");
        INFO(name << "\n" << outcome.err);
        CHECK(outcome.exit_code == 0);
        ++headers;
    }
    CHECK(headers > 0);
}

}  // namespace

TEST_CASE("Each header of base compiles alone", "[headers][slow]") {
    check_headers_of(0);
}
TEST_CASE("Each header of device compiles alone", "[headers][slow]") {
    check_headers_of(1);
}
TEST_CASE("Each header of kernel compiles alone", "[headers][slow]") {
    check_headers_of(2);
}
TEST_CASE("Each header of profile compiles alone", "[headers][slow]") {
    check_headers_of(3);
}
TEST_CASE("Each header of ops compiles alone", "[headers][slow]") {
    check_headers_of(4);
}
TEST_CASE("Each header of tuner compiles alone", "[headers][slow]") {
    check_headers_of(5);
}

TEST_CASE("An include of a higher room does not build", "[headers][slow]") {
    const TempDir home;
    for (std::size_t low = 0; low + 1 < std::size(kRooms); ++low) {
        const Room& above = kRooms[low + 1];
        std::string header;
        for (const auto& each : std::filesystem::directory_iterator(kRoot + '/' + above.headers))
            if (each.path().extension() == ".h")
                header = "turbotune/" + above.name + '/' + each.path().filename().string();
        REQUIRE_FALSE(header.empty());
        const Outcome outcome = compile(home, kRooms[low].name, "#include \"" + header + "\"\n");
        INFO(kRooms[low].name << " includes " << header);
        CHECK(outcome.exit_code != 0);
        CHECK(outcome.err.find("No such file") != std::string::npos);
    }
}

TEST_CASE("No room sees the C interface, which lies above all of them", "[headers][slow]") {
    const TempDir home;
    const std::string text = "#include \"turbotune/turbotune.h\"\n";
    for (const Room& room : kRooms) {
        INFO(room.name);
        CHECK(compile(home, room.name, text).exit_code != 0);
    }
    CHECK(compile(home, "capi", text).exit_code == 0);
}

TEST_CASE("No room reaches another by a relative path", "[headers]") {
    for (const char* folder : {"runtime", "tuner", "tools"})
        for (const auto& each : std::filesystem::recursive_directory_iterator(kRoot + '/' + folder)) {
            if (!each.is_regular_file()) continue;
            INFO(each.path().string());
            CHECK(read_text(each.path().string()).find("#include \"../") == std::string::npos);
        }
}
