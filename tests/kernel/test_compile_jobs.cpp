#include <sched.h>

#include "catch.h"
#include "kernel_testing.h"
#include "turbotune/kernel/compile_jobs.h"
#include "turbotune/kernel/compiler.h"

using namespace turbotune;
using namespace turbotune::testing;

namespace {
constexpr std::int64_t kGiB = std::int64_t{1} << 30;
}

TEST_CASE("Compiles side by side are bounded by cores, memory and the cgroup", "[compiler][field-05]") {
    CHECK(compile_jobs({64, -1, 500 * kGiB, -1}) == 64);
    CHECK(compile_jobs({64, -1, 10 * kGiB, -1}) == 10);
    CHECK(compile_jobs({64, -1, 500 * kGiB, 3 * kGiB + kGiB / 2}) == 3);
    CHECK(compile_jobs({64, 2.5, 500 * kGiB, -1}) == 2);
    CHECK(compile_jobs({64, 0.5, 500 * kGiB, -1}) == 1);
    CHECK(compile_jobs({64, -1, kGiB / 4, 0}) == 1);
    CHECK(compile_jobs({1, -1, -1, -1}) == 1);
}

TEST_CASE("The limits are read from meminfo and both kinds of cgroup", "[compiler][field-05]") {
    TempFolder root;
    write_text(root / "proc/meminfo", "MemTotal: 100 kB\nMemFree: 7 kB\nMemAvailable:   8388608 kB\n");
    SECTION("unified: the tightest level above counts") {
        write_text(root / "proc/self/cgroup", "0::/job/step\n");
        write_text(root / "sys/fs/cgroup/job/memory.max", "5368709120\n");
        write_text(root / "sys/fs/cgroup/job/memory.current", "1073741824\n");
        write_text(root / "sys/fs/cgroup/job/step/memory.max", "max\n");
        write_text(root / "sys/fs/cgroup/job/step/cpu.max", "300000 100000\n");
        write_text(root / "sys/fs/cgroup/job/cpu.max", "max 100000\n");
        const JobLimits limits = read_job_limits(root.path());
        CHECK(limits.available_memory == 8 * kGiB);
        CHECK(limits.cgroup_memory == 4 * kGiB);
        CHECK(limits.cpu_quota == 3.0);
    }
    SECTION("a controller each") {
        write_text(root / "proc/self/cgroup", "4:memory:/job\n3:cpu,cpuacct:/job\n");
        write_text(root / "sys/fs/cgroup/memory/job/memory.limit_in_bytes", "3221225472\n");
        write_text(root / "sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1073741824\n");
        write_text(root / "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "150000\n");
        write_text(root / "sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
        const JobLimits limits = read_job_limits(root.path());
        CHECK(limits.cgroup_memory == 2 * kGiB);
        CHECK(limits.cpu_quota == 1.5);
    }
    SECTION("none") {
        const JobLimits limits = read_job_limits(root.path());
        CHECK(limits.cgroup_memory == -1);
        CHECK(limits.cpu_quota == -1);
    }
}

TEST_CASE("Jobs never exceed the cores of the affinity mask", "[compiler][field-05]") {
    cpu_set_t all, one;
    REQUIRE(::sched_getaffinity(0, sizeof all, &all) == 0);
    CHECK(compile_jobs() >= 1);
    CHECK(compile_jobs() <= CPU_COUNT(&all));
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (!CPU_ISSET(cpu, &all)) continue;
        CPU_SET(cpu, &one);
        break;
    }
    REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
    CHECK(compile_jobs() == 1);
    ::sched_setaffinity(0, sizeof all, &all);
}
