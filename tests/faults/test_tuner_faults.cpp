// Every file call of the journal and of a profile's save fails in turn: what was kept before stays, what was said to be
// kept is.
#include <cerrno>
#include <cstring>

#include "../kernel/kernel_testing.h"
#include "catch.h"
#include "file_calls.h"
#include "turbotune/base/error.h"
#include "turbotune/profile/profile.h"
#include "turbotune/tuner/journal.h"

using namespace turbotune;
using turbotune::test::FileCalls;
using turbotune::testing::ScopedVariable;
using turbotune::testing::TempFolder;

namespace {

const int kErrors[] = {EROFS, EACCES, ENOSPC, EINTR, EIO, EDQUOT};

JournalHeader header() {
    return {"0.1.0", "x86_64-2sm", "cc-1", {{"toy", "d1"}}};
}

CandidateOutcome outcome(int block) {
    CandidateOutcome result;
    result.workload = {"toy", Fields().set("length", 64)};
    result.config.set("tier", "host").set("block", block);
    result.reason = "fault";
    result.detail = "number " + std::to_string(block);
    return result;
}

bool holds(const Journal& journal, int block) {
    const CandidateOutcome wanted = outcome(block);
    const CandidateOutcome* found = journal.find(wanted.workload, wanted.config);
    return found != nullptr && found->detail == wanted.detail;
}

Profile profile(double median) {
    Profile result;
    result.device_class = {"sm_90", 132, 60 << 20, 227 << 10, 6016};
    result.compiler = "nvrtc-13";
    ProfileEntry entry;
    entry.workload = {"toy", Fields().set("length", 64)};
    entry.config.set("tier", "mma");
    entry.latency = {median, median, median, median, 20};
    result.put(entry);
    return result;
}

struct InMemory {
    ScopedVariable temp{"TMPDIR", directory_exists("/dev/shm") ? "/dev/shm" : "/tmp"};
};

}  // namespace

TEST_CASE("Any file call may fail under a journal: what it holds stays, and what it took without an error is there",
          "[faults][field-22]") {
    const InMemory in_memory;
    for (const int error : kErrors)
        for (const bool for_good : {false, true})
            for (int at = 1;; ++at) {
                const TempFolder folder;
                const std::string path = folder / "p.json.journal";
                {
                    Journal before(path, header());
                    before.append(outcome(1));
                    before.append(outcome(2));
                }
                bool taken = false, reached = false;
                std::string failed;
                {
                    const FileCalls calls({folder.path(), at, error, for_good});
                    try {
                        Journal journal(path, header());
                        journal.append(outcome(3));
                        taken = true;
                    } catch (const StoreError& refused) {
                        CHECK(std::string(refused.what()).find(path) != std::string::npos);
                    }
                    failed = calls.failed();
                    reached = calls.count() >= at;
                }
                INFO(std::strerror(error) << (for_good ? " from" : " at") << " call " << at << ": " << failed);
                const Journal after(path, header());
                CHECK(holds(after, 1));
                CHECK(holds(after, 2));
                if (taken) CHECK(holds(after, 3));
                if (error == EINTR) CHECK(taken);
                if (!reached) break;
            }
}

TEST_CASE("Any file call may fail while a profile is saved: the old one or the new one is there, whole",
          "[faults][field-22]") {
    const InMemory in_memory;
    for (const int error : kErrors)
        for (const bool for_good : {false, true})
            for (int at = 1;; ++at) {
                const TempFolder folder;
                const std::string path = folder / "p.json";
                save_profile(profile(1), path);
                bool saved = false, reached = false;
                std::string failed;
                {
                    const FileCalls calls({folder.path(), at, error, for_good});
                    try {
                        save_profile(profile(2), path);
                        saved = true;
                    } catch (const Error& refused) {
                        CHECK(std::string(refused.what()).find(path) != std::string::npos);
                    }
                    failed = calls.failed();
                    reached = calls.count() >= at;
                }
                INFO(std::strerror(error) << (for_good ? " from" : " at") << " call " << at << ": " << failed);
                const double median = load_profile(path).entries.at(0).latency.median;
                CHECK((median == 2 || (!saved && median == 1)));
                if (error == EINTR) CHECK(saved);
                if (!reached) break;
            }
}
