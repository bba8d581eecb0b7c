// Each case in a process of its own: who runs and what the environment holds is what is tested.
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>

#include "catch.h"
#include "kernel_testing.h"
#include "turbotune/base/log.h"

using namespace turbotune;
using namespace turbotune::testing;
namespace fs = std::filesystem;

namespace {

Variables bare(const TempFolder& folder) {
    return {{"TURBOTUNE_CACHE_DIR", ""}, {"XDG_CACHE_HOME", ""},   {"HOME", ""},
            {"EXPECT_UID", ""},          {"EXPECT_DIRECTORY", ""}, {"EXPECT_REASON", ""},
            {"EXPECT_WARNINGS", "0"},    {"EXPECT_WRITTEN", "1"},  {"TMPDIR", folder.path()}};
}

void run(const Variables& variables) {
    Child child("child: uses the store of its environment", variables);
    const int code = child.wait();
    INFO(child.output());
    CHECK(code == 0);
}

}  // namespace

TEST_CASE("child: uses the store of its environment", "[.][child]") {
    if (!is_child()) return;
    if (const std::string uid = variable("EXPECT_UID"); !uid.empty()) {
        const auto id = static_cast<uid_t>(std::stoul(uid));
        REQUIRE(::setresgid(id, id, id) == 0);
        REQUIRE(::setresuid(id, id, id) == 0);
    }
    int warnings = 0;
    std::string said;
    set_log_sink([&](LogLevel level, const std::string& text) {
        warnings += level == LogLevel::warn ? 1 : 0;
        said += text + "\n";
    });
    for (int i = 0; i < 2; ++i) {  // two stores, still one warning
        Store store(Store::Options{});
        store.put(make_key(1), make_image(1, 100));
        const auto found = store.find(make_key(1));
        REQUIRE(found);
        CHECK(found->bytes == make_image(1, 100).bytes);
        INFO(store.directory() << " | " << store.reason() << " | " << said);
        CHECK(store.directory() == variable("EXPECT_DIRECTORY"));
        CHECK(store.reason().find(variable("EXPECT_REASON")) != std::string::npos);
        CHECK(store.statistics().writes == std::stoi(variable("EXPECT_WRITTEN")));
    }
    set_log_sink({});
    INFO(said);
    CHECK(warnings == std::stoi(variable("EXPECT_WARNINGS")));
}

TEST_CASE("The folders are tried in order", "[store][field-06]") {
    TempFolder folder;
    Variables variables = bare(folder);
    variables["HOME"] = folder / "home";
    variables["EXPECT_DIRECTORY"] = folder / "home/.cache/turbotune";
    run(variables);
    variables["XDG_CACHE_HOME"] = folder / "xdg";
    variables["EXPECT_DIRECTORY"] = folder / "xdg/turbotune";
    run(variables);
    variables["TURBOTUNE_CACHE_DIR"] = folder / "named";
    variables["EXPECT_DIRECTORY"] = folder / "named";
    run(variables);
}

TEST_CASE("A named folder that cannot be used falls to the next, with one warning and the reason",
          "[store][field-06]") {
    TempFolder folder;
    write_text(folder / "file", "in the way");
    fs::create_directories(folder / "open");
    ::chmod((folder / "open").c_str(), 0777);
    Variables variables = bare(folder);
    variables["HOME"] = folder / "home";
    variables["EXPECT_DIRECTORY"] = folder / "home/.cache/turbotune";
    variables["EXPECT_WARNINGS"] = "1";
    variables["TURBOTUNE_CACHE_DIR"] = folder / "file";
    variables["EXPECT_REASON"] = "is not a folder";
    run(variables);
    variables["TURBOTUNE_CACHE_DIR"] = folder / "file/below";
    variables["EXPECT_REASON"] = "Not a directory";
    run(variables);
    variables["TURBOTUNE_CACHE_DIR"] = folder / "open";
    variables["EXPECT_REASON"] = "written by others";
    run(variables);
    variables["TURBOTUNE_CACHE_DIR"] = "relative/path";
    variables["EXPECT_REASON"] = "not an absolute path";
    run(variables);
}

TEST_CASE("With no home, an unwritable home, and somebody else's folder below /tmp, everything runs",
          "[store][field-06]") {
    if (::geteuid() != 0) return;  // only root can become others
    TempFolder folder;
    ::chmod(fs::path(folder.path()).c_str(), 0755);
    const std::string uid = std::to_string(70000 + ::getpid() % 100000);
    const std::string temp = "/tmp/turbotune-" + uid;
    Variables variables = bare(folder);
    variables["EXPECT_UID"] = uid;
    variables["EXPECT_DIRECTORY"] = temp;
    variables["EXPECT_WARNINGS"] = "1";
    for (const std::string& home : {std::string(), std::string("/")}) {
        variables["HOME"] = home;
        variables["EXPECT_REASON"] = "no home directory";
        run(variables);
    }
    struct stat status {};
    REQUIRE(::stat(temp.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0700);
    variables["HOME"] = folder.path();  // root's
    variables["EXPECT_REASON"] = "Permission denied";
    run(variables);
    fs::remove_all(temp);
    fs::create_directory(temp);  // root's now
    variables["EXPECT_DIRECTORY"] = "";
    variables["EXPECT_WRITTEN"] = "0";
    variables["EXPECT_REASON"] = "belongs to somebody else";
    run(variables);
    fs::remove_all(temp);
}

TEST_CASE("child: reads a store that it cannot write", "[.][child]") {
    if (!is_child()) return;
    const auto id = static_cast<uid_t>(std::stoul(variable("EXPECT_UID")));
    REQUIRE(::setresgid(id, id, id) == 0);
    REQUIRE(::setresuid(id, id, id) == 0);
    Store store(options_at(variable("STORE")));
    CHECK(store.find(make_key(1)));
    store.put(make_key(2), make_image(2, 100));
    store.put(make_key(3), make_image(3, 100));
    CHECK(store.find(make_key(2)));
    CHECK(store.statistics().writes == 0);
    CHECK_FALSE(store.lock_for_compile(make_key(4)).held());
}

TEST_CASE("A read-only store of root serves hits and is never written", "[store][trust]") {
    if (::geteuid() != 0) return;
    TempFolder folder;
    ::chmod(folder.path().c_str(), 0755);
    Store(options_at(folder / "store")).put(make_key(1), make_image(1, 100));
    Child child("child: reads a store that it cannot write", {{"EXPECT_UID", "70001"}, {"STORE", folder / "store"}});
    const int code = child.wait();
    INFO(child.output());
    CHECK(code == 0);
    CHECK(files_below(folder / "store").size() == 1);
}

TEST_CASE("child: writes beyond its file size limit", "[.][child]") {
    if (!is_child()) return;
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, RLIM_INFINITY};
    int warnings = 0;
    set_log_sink([&](LogLevel level, const std::string&) { warnings += level == LogLevel::warn ? 1 : 0; });
    Store store(options_at(variable("STORE")));
    store.put(make_key(1), make_image(1, 100));
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
    for (unsigned i = 2; i < 5; ++i) {
        store.put(make_key(i), make_image(i, 10000));
        const auto found = store.find(make_key(i));
        REQUIRE(found);
        CHECK(found->bytes == make_image(i, 10000).bytes);
    }
    set_log_sink({});
    CHECK(warnings == 1);
    CHECK(store.statistics().writes == 1);
    CHECK(store.list(true).size() == 1);
}

TEST_CASE("A write that the disk refuses publishes nothing, and the image still serves", "[store][field-14]") {
    TempFolder folder;
    Child child("child: writes beyond its file size limit", {{"STORE", folder.path()}});
    const int code = child.wait();
    INFO(child.output());
    CHECK(code == 0);
    CHECK(files_below(folder.path()).size() == 1);  // no temporary either
}
