#include <optional>

#include "../../runtime/device/cgroup.h"
#include "base/temp_directory.h"
#include "catch.h"
#include "turbotune/base/files.h"

using namespace turbotune;
using turbotune::test::TempDirectory;

namespace {

void put(const TempDirectory& root, const std::string& folder, const std::string& name, const std::string& text) {
    REQUIRE(make_directories(root.file(folder)) == 0);
    REQUIRE(write_file_atomic(root.file(folder + "/" + name), text) == 0);
}

}  // namespace

TEST_CASE("A version 2 quota is the least of the group and those above it", "[cgroup]") {
    TempDirectory root;
    put(root, "a/b", "cpu.max", "max 100000\n");
    CHECK_FALSE(cgroup_cpu_quota("0::/a/b\n", root.path()));
    put(root, "a", "cpu.max", "250000 100000\n");
    CHECK(cgroup_cpu_quota("0::/a/b\n", root.path()) == 2.5);
    put(root, "a/b", "cpu.max", "50000 100000\n");
    CHECK(cgroup_cpu_quota("0::/a/b\n", root.path()) == 0.5);
    put(root, "", "cpu.max", "30000 100000\n");
    CHECK(cgroup_cpu_quota("0::/a/b\n", root.path()) == 0.3);
    CHECK(cgroup_cpu_quota("0::/\n", root.path()) == 0.3);
}

TEST_CASE("In a container the group's own folder may be missing", "[cgroup]") {
    TempDirectory root;
    put(root, "", "cpu.max", "400000 100000\n");
    CHECK(cgroup_cpu_quota("0::/docker/0123abcd\n", root.path()) == 4.0);
}

TEST_CASE("A version 1 quota is read from either name of the hierarchy", "[cgroup]") {
    for (const char* mount : {"cpu", "cpu,cpuacct"}) {
        TempDirectory root;
        const std::string group = std::string(mount) + "/job";
        put(root, group, "cpu.cfs_quota_us", "-1\n");
        put(root, group, "cpu.cfs_period_us", "100000\n");
        const std::string memberships = "9:memory:/job\n4:cpu,cpuacct:/job\n0::/\n";
        CHECK_FALSE(cgroup_cpu_quota(memberships, root.path()));
        put(root, group, "cpu.cfs_quota_us", "150000\n");
        CHECK(cgroup_cpu_quota(memberships, root.path()) == 1.5);
        CHECK_FALSE(cgroup_cpu_quota("9:memory:/job\n4:cpuset:/job\n", root.path()));
    }
}

TEST_CASE("Text that is no quota limits nothing", "[cgroup]") {
    TempDirectory root;
    for (const char* text : {"", "max", "abc def", "100000", "0 100000", "-5 100000", "100 0"}) {
        put(root, "", "cpu.max", text);
        INFO(text);
        CHECK_FALSE(cgroup_cpu_quota("0::/\n", root.path()));
    }
    CHECK_FALSE(cgroup_cpu_quota("", root.path()));
    CHECK_FALSE(cgroup_cpu_quota("nonsense\n:\n::\n", root.path()));
}

TEST_CASE("A memory limit is the one that leaves least", "[cgroup]") {
    TempDirectory root;
    put(root, "a", "memory.max", "max\n");
    CHECK_FALSE(cgroup_memory_limit("0::/a\n", root.path()));
    put(root, "a", "memory.max", "1000000\n");
    put(root, "a", "memory.current", "400000\n");
    const std::optional<MemoryLimit> limit = cgroup_memory_limit("0::/a\n", root.path());
    REQUIRE(limit);
    CHECK(limit->limit == 1'000'000);
    CHECK(limit->used == 400'000);
    TempDirectory old;
    put(old, "memory/a", "memory.limit_in_bytes", "9223372036854771712\n");
    CHECK_FALSE(cgroup_memory_limit("4:memory:/a\n", old.path()));
    put(old, "memory/a", "memory.limit_in_bytes", "5000\n");
    put(old, "memory/a", "memory.usage_in_bytes", "3000\n");
    CHECK(cgroup_memory_limit("4:memory:/a\n", old.path())->limit == 5000);
}
