// Where profiles are looked for, and that broken ones stop nobody.
#include <sys/stat.h>
#include <unistd.h>

#include "../../runtime/profile/directories.h"
#include "catch.h"
#include "fixtures.h"
#include "turbotune/base/error.h"
#include "turbotune/profile/selection.h"

using namespace turbotune;
using namespace turbotune::test;

namespace {

std::vector<std::string> names(const std::vector<LoadedProfile>& profiles) {
    std::vector<std::string> result;
    for (const LoadedProfile& one : profiles) result.push_back(std::filesystem::path(one.path).filename().string());
    return result;
}

}  // namespace

TEST_CASE("The user's profile directory follows the environment", "[profile]") {
    const TempDirectory directory;
    write_text(directory / "file", "");
    const std::string temporary = "/tmp/turbotune-" + std::to_string(::geteuid()) + "/profiles";
    const ScopedVariable shipped("TURBOTUNE_SHIPPED_PROFILES", "/shipped");
    const ScopedVariable explicit_directory("TURBOTUNE_PROFILE_DIR", "/mine with space");
    REQUIRE(profile_directories() == std::vector<std::string>{"/mine with space", "/shipped"});
    {
        const ScopedVariable unset("TURBOTUNE_PROFILE_DIR", std::nullopt);
        const ScopedVariable cache("XDG_CACHE_HOME", directory / "cache");
        REQUIRE(user_profile_directory() == directory / "cache/turbotune/profiles");
        REQUIRE(profile_directories().front() == user_profile_directory());
    }
    {
        const ScopedVariable unset("TURBOTUNE_PROFILE_DIR", std::nullopt);
        const ScopedVariable relative("XDG_CACHE_HOME", "cache");
        const ScopedVariable home("HOME", directory / "home");
        REQUIRE(user_profile_directory() == directory / "home/.cache/turbotune/profiles");
    }
    {
        const ScopedVariable unset("TURBOTUNE_PROFILE_DIR", "");
        const ScopedVariable cache("XDG_CACHE_HOME", std::nullopt);
        const ScopedVariable home("HOME", "/");
        REQUIRE(user_profile_directory() == temporary);
    }
    {
        // Neither can hold a folder.
        const ScopedVariable unset("TURBOTUNE_PROFILE_DIR", std::nullopt);
        const ScopedVariable cache("XDG_CACHE_HOME", directory / "file");
        const ScopedVariable home("HOME", directory / "file/home");
        REQUIRE(user_profile_directory() == temporary);
    }
}

TEST_CASE("A folder in /tmp is trusted only when nobody else can fill it", "[profile]") {
    const TempDirectory directory;
    REQUIRE(why_untrusted(directory.path()).empty());
    REQUIRE(why_untrusted(directory / "missing").empty());
    ::chmod(directory.path().c_str(), 0777);
    REQUIRE_THAT(why_untrusted(directory.path()), ContainsSubstring("may be written by other users"));
    ::chmod(directory.path().c_str(), 0700);

    write_text(directory / "file", "");
    REQUIRE_THAT(why_untrusted(directory / "file"), ContainsSubstring("is not a directory"));
    std::filesystem::create_directory_symlink(directory.path(), directory / "link");
    REQUIRE_THAT(why_untrusted(directory / "link"), ContainsSubstring("is not a directory"));

    std::filesystem::create_directory(directory / "foreign");
    if (::geteuid() == 0 && ::chown((directory / "foreign").c_str(), 12345, 12345) == 0)
        REQUIRE_THAT(why_untrusted(directory / "foreign"), ContainsSubstring("belongs to user 12345"));
}

TEST_CASE("Explicit profiles come first, then the user's, then the shipped ones, each by name", "[profile]") {
    const TempDirectory directory;
    const ScopedVariable user("TURBOTUNE_PROFILE_DIR", directory / "user");
    const ScopedVariable shipped("TURBOTUNE_SHIPPED_PROFILES", directory / "shipped");
    for (const char* name : {"user/b.json", "user/a.json", "shipped/c.json", "shipped/a.json", "z.json"})
        save_profile(profile(), directory / name);
    write_text(directory / "user/notes.txt", "not a profile");
    write_text(directory / "user/.hidden.json", "not one either");

    ScopedLog log;
    REQUIRE(names(discover_profiles({directory / "z.json"})) ==
            std::vector<std::string>{"z.json", "a.json", "b.json", "a.json", "c.json"});
    REQUIRE(names(discover_profiles({directory / "z.json"}, false)) == std::vector<std::string>{"z.json"});
    // Named and found: loaded once, in the explicit place.
    REQUIRE(names(discover_profiles({directory / "user/../user/b.json"})) ==
            std::vector<std::string>{"b.json", "a.json", "a.json", "c.json"});
    REQUIRE(log.warnings().empty());
}

TEST_CASE("Broken profiles in a directory are skipped, each with one warning", "[profile]") {
    const TempDirectory directory;
    const ScopedVariable user("TURBOTUNE_PROFILE_DIR", directory.path());
    const ScopedVariable shipped("TURBOTUNE_SHIPPED_PROFILES", directory / "none");
    const std::string good = to_json_text(profile());
    save_profile(profile(), directory / "good.json");
    write_text(directory / "empty.json", "");
    write_text(directory / "torn.json", good.substr(0, good.size() / 2));
    write_text(directory / "newer.json", "{\"format\": 2}");
    std::filesystem::create_directory(directory / "folder.json");
    std::filesystem::create_symlink("/nowhere", directory / "dangling.json");

    ScopedLog log;
    REQUIRE(names(discover_profiles({})) == std::vector<std::string>{"good.json"});
    const auto warnings = log.warnings();
    REQUIRE(warnings.size() == 5);
    REQUIRE_THAT(warnings[0], ContainsSubstring("dangling.json") && ContainsSubstring("No such file"));
    REQUIRE_THAT(warnings[1], ContainsSubstring("empty.json"));
    REQUIRE_THAT(warnings[2], ContainsSubstring("folder.json") && ContainsSubstring("directory"));
    REQUIRE_THAT(warnings[3], ContainsSubstring("newer.json: /format: written by a newer version"));
    REQUIRE_THAT(warnings[4], ContainsSubstring("torn.json"));
}

TEST_CASE("A broken profile that was named is an error", "[profile]") {
    const TempDirectory directory;
    write_text(directory / "bad.json", "{}");
    REQUIRE_THROWS_AS(discover_profiles({directory / "bad.json"}, false), InvalidArgument);
    REQUIRE_THROWS_AS(discover_profiles({directory / "missing.json"}, false), InvalidArgument);
}

TEST_CASE("Directories that do not exist hold no profiles", "[profile]") {
    const ScopedVariable user("TURBOTUNE_PROFILE_DIR", "/nowhere/a");
    const ScopedVariable shipped("TURBOTUNE_SHIPPED_PROFILES", "/nowhere/b");
    ScopedLog log;
    REQUIRE(discover_profiles({}).empty());
    REQUIRE(log.warnings().empty());
}
