// Candidates that break the worker, and sweeps that are stopped.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "catch.h"
#include "sweep_bench.h"
#include "turbotune/base/error.h"

using namespace turbotune;
using Kind = SweepEvent::Kind;

namespace {

// Gone, or waiting for somebody to collect it.
bool ended(int pid) {
    std::string stat = slurp("/proc/" + std::to_string(pid) + "/stat");
    std::size_t state = stat.rfind(") ");
    return state == std::string::npos || stat[state + 2] == 'Z' || stat[state + 2] == 'X';
}

bool all_end(const std::vector<int>& pids) {
    for (int i = 0; i < 100; ++i) {
        if (std::all_of(pids.begin(), pids.end(), ended)) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
}

}  // namespace

TEST_CASE("candidates that crash, hang, leave or fail are recorded and the best of the rest wins",
          "[sweep][field-18]") {
    // The shortest patience that a busy machine's process start fits into.
    ScopedVariable patience("TURBOTUNE_WATCHDOG_S", "4");
    SweepBench bench({toy_config("segv", 1), toy_config("good", 200), toy_config("abort", 1), toy_config("hang", 1),
                      toy_config("good", 100), toy_config("exit", 1), toy_config("out_of_memory", 1),
                      toy_config("bad_alloc", 1), toy_config("launch_error", 1), toy_config("sticky", 1),
                      toy_config("compile_error", 1), toy_config("wrong", 1), toy_config("partial", 1),
                      toy_config("unwritten", 1), toy_config("accumulate", 1), toy_config("overrun", 1),
                      toy_config("unrepeatable", 1), toy_config("filtered", 1), toy_config("chatter", 300)});
    SweepReport report = bench.run();
    CHECK(report.measured == 1);
    ProfileEntry entry = bench.entry();
    CHECK(entry.config == toy_config("good", 100));
    // What prints to standard output is not a fault: it does not reach the answers.
    CHECK(entry.measured.size() == 2);
    CHECK(report.candidates_measured == 3);
    CHECK(report.candidates_rejected == 15);
    for (auto [kind, reason] :
         std::initializer_list<std::pair<const char*, const char*>>{{"segv", "fault"},
                                                                    {"abort", "fault"},
                                                                    {"hang", "timeout"},
                                                                    {"exit", "fault"},
                                                                    {"out_of_memory", "out_of_memory"},
                                                                    {"bad_alloc", "out_of_memory"},
                                                                    {"launch_error", "launch_error"},
                                                                    {"sticky", "fault"},
                                                                    {"compile_error", "compile_error"},
                                                                    {"wrong", "mismatch"},
                                                                    {"partial", "unwritten"},
                                                                    {"unwritten", "unwritten"},
                                                                    {"accumulate", "input_changed"},
                                                                    {"overrun", "overrun"},
                                                                    {"unrepeatable", "not_repeatable"},
                                                                    {"filtered", "filtered"}}) {
        INFO(kind);
        CHECK(reason_of(entry, kind) == reason);
    }
    CHECK(report.worker_restarts == 5);  // segv, abort, hang, exit, sticky
    for (const RejectedCandidate& candidate : entry.rejected)
        if (candidate.config.text("kind") == "segv") CHECK(candidate.detail.find("signal 11") != std::string::npos);
    CHECK(all_end(bench.worker_pids()));

    SweepReport again = bench.run();
    CHECK(again.candidates_rejected == 2);  // memory may be free by now: out_of_memory and bad_alloc
    CHECK(again.candidates_measured == 0);
    CHECK(again.worker_restarts == 0);
    CHECK(bench.entry().config == toy_config("good", 100));
    CHECK(bench.entry().measured.size() == 2);
}

TEST_CASE("a candidate that crashes only after parity, in a later round, is out and the other wins", "[sweep]") {
    SweepBench bench({toy_config("late_segv", 300), toy_config("good", 310)});
    SweepReport report = bench.run();
    CHECK(report.measured == 1);
    CHECK(bench.entry().config == toy_config("good", 310));
    CHECK(reason_of(bench.entry(), "late_segv") == "fault");
    CHECK(report.worker_restarts >= 1);
    CHECK(bench.run().resumed == 1);
}

TEST_CASE("a kernel that does not compile is rejected ahead of the worker, with the compiler's words",
          "[sweep][field-18]") {
    SweepBench bench({toy_config("good", 50), toy_config("compile_error", 1)});
    std::filesystem::create_directories(bench.scratch.file("templates/toy"));
    std::filesystem::create_directories(bench.scratch.file("templates/common"));
    spit(bench.scratch.file("templates/toy/broken.cpp"), "this is no C++\n");
    ScopedVariable templates("TURBOTUNE_TEMPLATE_DIR", bench.scratch.file("templates"));
    bench.options.store.memory_only = false;
    bench.options.store.directory = bench.scratch.file("store");
    SweepReport report = bench.run();
    CHECK(report.measured == 1);
    CHECK(report.candidates_rejected == 1);
    CHECK(reason_of(bench.entry(), "compile_error") == "compile_error");
    auto first = [&](Kind kind) {
        return std::find_if(bench.events.begin(), bench.events.end(),
                            [&](const SweepEvent& e) { return e.kind == kind; });
    };
    CHECK(first(Kind::rejected) < first(Kind::measured));
    CHECK(first(Kind::rejected)->text.find("this") != std::string::npos);
}

TEST_CASE("a compiler that could not work is no fault of the candidate: the same command tries again", "[sweep]") {
    SweepBench bench({toy_config("good", 50), toy_config("compile_error", 1)});
    std::filesystem::create_directories(bench.scratch.file("templates/toy"));
    std::filesystem::create_directories(bench.scratch.file("templates/common"));
    spit(bench.scratch.file("templates/toy/broken.cpp"), "this is no C++\n");
    ScopedVariable templates("TURBOTUNE_TEMPLATE_DIR", bench.scratch.file("templates"));
    bench.options.store.memory_only = false;
    bench.options.store.directory = bench.scratch.file("store");
    for (bool from_profile : {false, true}) {
        INFO((from_profile ? "from the profile" : "from the journal"));
        for (const char* suffix : {"", ".journal"}) std::filesystem::remove(bench.options.output + suffix);
        {
            ScopedVariable folder("TMPDIR", bench.scratch.file("absent"));
            CHECK(bench.run().measured == 1);
        }
        REQUIRE(reason_of(bench.entry(), "compile_error") == "compiler_failed");
        std::filesystem::remove(bench.options.output + (from_profile ? ".journal" : ""));
        SweepReport again = bench.run();
        CHECK(again.candidates_rejected == 1);
        CHECK(again.candidates_measured == 0);
        CHECK(reason_of(bench.entry(), "compile_error") == "compile_error");
        CHECK(bench.run().resumed == 1);
    }
}

TEST_CASE("a compiler that was killed or had no space left is no fault of the candidate either", "[sweep]") {
    for (const char* words : {"Killed signal terminated program cc1plus", "No space left on device"}) {
        INFO(words);
        SweepBench bench({toy_config("good", 50), toy_config("compile_error", 1)});
        std::filesystem::create_directories(bench.scratch.file("templates/toy"));
        std::filesystem::create_directories(bench.scratch.file("templates/common"));
        spit(bench.scratch.file("templates/toy/broken.cpp"), std::string("#error ") + words + '\n');
        ScopedVariable templates("TURBOTUNE_TEMPLATE_DIR", bench.scratch.file("templates"));
        bench.options.store.memory_only = false;
        bench.options.store.directory = bench.scratch.file("store");
        CHECK(bench.run().measured == 1);
        CHECK(reason_of(bench.entry(), "compile_error") == "compiler_failed");
        const SweepReport again = bench.run();
        CHECK(again.candidates_rejected == 1);
        CHECK(again.candidates_measured == 0);
    }
}

TEST_CASE("a worker that was killed from outside says nothing of the candidate: the same command tries again",
          "[sweep]") {
    SweepBench bench({toy_config("good", 200), toy_config("killed", 1)});
    for (int run = 0; run < 2; ++run) {
        const SweepReport report = bench.run();
        CHECK(report.measured == 1);
        CHECK(report.candidates_rejected == 1);
        CHECK(bench.entry().config.text("kind") == "good");
        CHECK(reason_of(bench.entry(), "killed") == "killed");
    }
    CHECK(bench.run().candidates_measured == 0);
}

TEST_CASE("Ctrl-C once finishes the measurement, saves and says so, and the next run repeats nothing",
          "[sweep][field-24]") {
    SweepBench bench(
        {toy_config("good", 50, 1), toy_config("good", 60, 2), toy_config("good", 70, 3), toy_config("good", 80, 4)});
    bench.options.query.axes["length"] = {"64", "96"};
    int seen = 0;
    bench.on_event = [&](const SweepEvent& event) {
        if (event.kind == Kind::measured && ++seen == 6) bench.interrupts = 1;  // the second workload's second
    };
    SweepReport report = bench.run();
    CHECK(report.interrupted);
    CHECK(report.measured == 1);
    CHECK(report.candidates_measured == 6);
    CHECK(bench.profile().entries.size() == 1);
    CHECK(all_end(bench.worker_pids()));

    bench.interrupts = 0;
    bench.on_event = nullptr;
    SweepReport rest = bench.run();
    CHECK_FALSE(rest.interrupted);
    CHECK(rest.resumed == 1);
    CHECK(rest.measured == 1);
    CHECK(rest.candidates_measured == 2);
    CHECK(bench.profile().entries.size() == 2);
}

TEST_CASE("Ctrl-C twice ends a sweep at once, in the middle of a candidate, and loses nothing finished",
          "[sweep][field-24]") {
    SweepBench bench({toy_config("good", 50), toy_config("hang", 1), toy_config("good", 60)});
    std::thread impatient;
    bench.on_event = [&](const SweepEvent& event) {
        if (event.kind != Kind::measured || impatient.joinable()) return;
        impatient = std::thread([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(300));
            bench.interrupts = 2;
        });
    };
    SweepReport report = bench.run();
    impatient.join();
    CHECK(report.interrupted);
    CHECK(report.measured == 0);
    CHECK(report.seconds < 20);  // the hang would have taken 30
    CHECK(all_end(bench.worker_pids()));

    bench.interrupts = 0;
    bench.on_event = nullptr;
    bench.toy.set_configs({toy_config("good", 50), toy_config("good", 60)});
    CHECK(bench.run().candidates_measured == 1);
    CHECK(bench.entry().config == toy_config("good", 50));
}

TEST_CASE("kill -9 in the middle of a sweep loses one candidate at most, and leaves no worker behind", "[sweep]") {
    SweepBench bench(
        {toy_config("good", 50, 1), toy_config("wrong", 1), toy_config("good", 70, 3), toy_config("good", 80, 4)});
    bench.options.query.axes["length"] = {"64", "96"};
    pid_t child = ::fork();
    if (child == 0) {
        int settled = 0;
        bench.on_event = [&](const SweepEvent& event) {
            if ((event.kind == Kind::measured || event.kind == Kind::rejected) && ++settled == 7) ::raise(SIGKILL);
        };
        bench.run();
        ::_exit(1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    REQUIRE(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == SIGKILL);
    REQUIRE_FALSE(bench.worker_pids().empty());
    CHECK(all_end(bench.worker_pids()));

    SweepReport report = bench.run();
    CHECK(report.resumed == 1);
    CHECK(report.measured == 1);
    CHECK(report.candidates_measured == 1);
    CHECK(report.candidates_rejected == 0);
    CHECK(bench.profile().entries.size() == 2);
    CHECK(bench.run().resumed == 2);
}

TEST_CASE("a parent that is killed takes a hanging worker with it", "[sweep]") {
    SweepBench bench({toy_config("hang", 1)});
    pid_t child = ::fork();
    if (child == 0) {
        bench.run();
        ::_exit(1);
    }
    for (int i = 0; i < 200 && bench.worker_pids().empty(); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    REQUIRE_FALSE(bench.worker_pids().empty());
    CHECK(all_end(bench.worker_pids()));
}
