#include <filesystem>

#include "catch.h"
#include "program.h"
#include "turbotune/base/json.h"
#include "turbotune/kernel/store.h"

using namespace turbotune;
using namespace turbotune::test;

namespace {

// Fills the cache that the program will see; returns the path of the last entry.
std::string fill(const TempDir& home, int entries) {
    Store store({.directory = home / "cache"});
    for (int i = 0; i < entries; ++i) {
        Image image;
        image.bytes = std::string(1000, static_cast<char>('a' + i));
        image.metadata.kernel_name = "kernel_" + std::to_string(i);
        image.metadata.registers = 32 + i;
        store.put(store_key(image.bytes, {"-O3"}, "sm_80", "compiler", image.metadata.kernel_name), image);
    }
    const auto listed = store.list(true);
    REQUIRE(listed.size() == static_cast<std::size_t>(entries));
    return listed.back().path;
}

}  // namespace

TEST_CASE("cache list shows every entry", "[cli]") {
    const TempDir home;
    fill(home, 3);
    const Outcome text = run_turbotune(home, {"cache", "list"});
    CHECK(text.exit_code == 0);
    for (const char* name : {"kernel_0", "kernel_1", "kernel_2"}) CHECK(text.out.find(name) != std::string::npos);
    const Json json = parse_json(run_turbotune(home, {"cache", "list", "--json"}).out, "standard output");
    CHECK(json["count"] == 3);
    CHECK(json["directory"] == home / "cache");
    CHECK(json["entries"][0]["problem"] == "");
}

TEST_CASE("cache verify passes a good store and fails a bad entry by name", "[cli]") {
    const TempDir home;
    const std::string path = fill(home, 3);
    CHECK(run_turbotune(home, {"cache", "verify"}).exit_code == 0);

    std::string bytes = read_text(path);
    bytes[bytes.size() - 10] = static_cast<char>(bytes[bytes.size() - 10] ^ 4);
    write_text(path, bytes);
    const Outcome text = run_turbotune(home, {"cache", "verify"});
    CHECK(text.exit_code == 1);
    CHECK(text.out.find(std::filesystem::path(path).filename().string().substr(0, 12)) != std::string::npos);
    CHECK(text.out.find("1 bad") != std::string::npos);
    const Outcome json = run_turbotune(home, {"cache", "verify", "--json"});
    CHECK(json.exit_code == 1);
    CHECK(parse_json(json.out, "standard output")["bad"] == 1);
}

TEST_CASE("cache clear says how many entries it removed", "[cli]") {
    const TempDir home;
    fill(home, 3);
    const Outcome first = run_turbotune(home, {"cache", "clear"});
    CHECK(first.exit_code == 0);
    CHECK(first.out.find("3 entries removed") != std::string::npos);
    CHECK(parse_json(run_turbotune(home, {"cache", "clear", "--json"}).out, "standard output")["removed"] == 0);
}

TEST_CASE("cache clear leaves what others keep under such names, and says so", "[cli]") {
    const TempDir home;
    fill(home, 1);
    const std::string folder = home / "cache/ab", foreign = folder + '/' + std::string(64, 'a');
    std::filesystem::create_directories(folder);
    write_text(foreign, "somebody's object");
    write_text(folder + '/' + std::string(63, 'a') + 'b', "");
    const Outcome json = run_turbotune(home, {"cache", "clear", "--json"});
    CHECK(json.exit_code == 0);
    const Json report = parse_json(json.out, "standard output");
    CHECK(report["removed"] == 2);
    REQUIRE(report["left"].size() == 1);
    CHECK(report["left"][0]["path"] == foreign);
    CHECK(run_turbotune(home, {"cache", "clear"}).out.find("left: " + foreign + ": it is truncated") !=
          std::string::npos);
    CHECK(read_text(foreign) == "somebody's object");
}

TEST_CASE("cache commands take an explicit directory", "[cli]") {
    const TempDir home;
    fill(home, 2);
    std::filesystem::create_directory(home / "elsewhere");
    const Outcome outcome = run_turbotune(home, {"cache", "list", "--json", "--directory", home / "elsewhere"});
    CHECK(outcome.exit_code == 0);
    CHECK(parse_json(outcome.out, "standard output")["count"] == 0);
}

TEST_CASE("cache commands refuse a directory that is not there", "[cli]") {
    const TempDir home;
    write_text(home / "file", "mine");
    for (const char* verb : {"list", "verify", "clear"}) {
        INFO(verb);
        const Outcome absent = run_turbotune(home, {"cache", verb, "--directory", home / "absent"});
        CHECK(absent.exit_code == 2);
        CHECK(absent.out.empty());
        CHECK(absent.err.find("--directory") != std::string::npos);
        CHECK(absent.err.find("does not exist") != std::string::npos);
        CHECK_FALSE(std::filesystem::exists(home / "absent"));
        const Outcome file = run_turbotune(home, {"cache", verb, "--directory", home / "file"});
        CHECK(file.exit_code == 2);
        CHECK(file.err.find("is no directory") != std::string::npos);
    }
    CHECK(read_text(home / "file") == "mine");
}

TEST_CASE("cache commands fail on a folder that programs refuse, with the reason", "[cli]") {
    const TempDir home;
    fill(home, 1);
    const std::string directory = home / "cache";
    std::filesystem::permissions(directory, std::filesystem::perms::all);
    for (const char* verb : {"list", "verify", "clear"}) {
        const Outcome outcome = run_turbotune(home, {"cache", verb, "--directory", directory});
        INFO(verb << outcome.out << outcome.err);
        CHECK(outcome.exit_code == 1);
        CHECK(outcome.err.find("can be written by others") != std::string::npos);
    }
    std::filesystem::permissions(directory, std::filesystem::perms::owner_all);
    CHECK(run_turbotune(home, {"cache", "verify", "--directory", directory}).exit_code == 0);
}
