#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <thread>

#include "catch.h"
#include "scratch.h"
#include "turbotune/base/error.h"
#include "turbotune/base/sha256.h"
#include "turbotune/tuner/journal.h"

using namespace turbotune;

namespace {

JournalHeader header(const std::string& compiler = "cc-1", const std::string& digest = "d1") {
    return {"0.1.0", "x86_64-2sm", compiler, {{"toy", digest}}};
}

Workload workload(int length) {
    Workload w;
    w.operation = "toy";
    w.fields.set("length", length).set("pass", "inference");
    return w;
}

CandidateOutcome measured(int length, int block, double ms) {
    CandidateOutcome outcome;
    outcome.workload = workload(length);
    outcome.config.set("tier", "host").set("block", block);
    outcome.latency = {ms, ms * 1.01, ms * 1.02, ms * 1.1, 8};
    outcome.parity.outputs.push_back({"out", 1e-5, 2e-4});
    outcome.parity.patterns = {"L=3 mask=none"};
    outcome.registers = 40;
    return outcome;
}

CandidateOutcome rejected(int length, int block) {
    CandidateOutcome outcome;
    outcome.workload = workload(length);
    outcome.config.set("tier", "host").set("block", block);
    outcome.reason = "fault";
    outcome.detail = "killed by signal 11 (\"Segmentation fault\")\nand \xff no UTF-8";
    return outcome;
}

Config config(int block) {
    Config c;
    c.set("block", block).set("tier", "host");  // another order than above: equal all the same
    return c;
}

}  // namespace

TEST_CASE("a journal gives back what was appended, by equal fields in any order", "[journal]") {
    Scratch scratch;
    std::string path = scratch.file("p.json.journal");
    {
        Journal journal(path, header());
        CHECK_FALSE(std::filesystem::exists(path));
        journal.append(measured(64, 16, 0.5));
        journal.append(rejected(64, 32));
        journal.append(measured(128, 16, 0.9));
        CHECK(journal.find(workload(64), config(16)) != nullptr);
    }
    Journal journal(path, header());
    REQUIRE(journal.entries() == 3);
    const CandidateOutcome* one = journal.find(workload(64), config(16));
    REQUIRE(one != nullptr);
    CHECK(one->measured());
    CHECK(one->latency.median == 0.51);
    CHECK(one->latency.samples == 8);
    CHECK(one->parity.outputs.at(0).tolerance == 2e-4);
    CHECK(one->parity.patterns == std::vector<std::string>{"L=3 mask=none"});
    CHECK(one->registers == 40);
    CHECK(one->local_bytes == -1);
    const CandidateOutcome* other = journal.find(workload(64), config(32));
    REQUIRE(other != nullptr);
    CHECK(other->reason == "fault");
    CHECK(other->detail.find("signal 11") != std::string::npos);
    CHECK(journal.find(workload(64), config(64)) == nullptr);
    CHECK(journal.find(workload(96), config(16)) == nullptr);
}

TEST_CASE("a later outcome of the same candidate replaces the earlier", "[journal]") {
    Scratch scratch;
    std::string path = scratch.file("j");
    Journal(path, header()).append(measured(64, 16, 0.5));
    Journal(path, header()).append(rejected(64, 16));
    Journal journal(path, header());
    CHECK(journal.entries() == 1);
    CHECK_FALSE(journal.find(workload(64), config(16))->measured());
}

TEST_CASE("each line of a journal is one JSON object", "[journal]") {
    Scratch scratch;
    std::string path = scratch.file("j");
    Journal(path, header()).append(rejected(64, 16));
    std::istringstream lines(slurp(path));
    int count = 0;
    for (std::string line; std::getline(lines, line); ++count) {
        CHECK(line.rfind("{\"sum\":\"", 0) == 0);
        CHECK(line.back() == '}');
    }
    CHECK(count == 2);  // header and outcome
}

TEST_CASE("a torn last line is dropped, and what is appended after it is read", "[journal]") {
    Scratch scratch;
    std::string path = scratch.file("j");
    {
        Journal journal(path, header());
        journal.append(measured(64, 16, 0.5));
        journal.append(measured(64, 32, 0.6));
    }
    std::string whole = slurp(path);
    spit(path, whole.substr(0, whole.size() - 40));
    {
        Journal journal(path, header());
        CHECK(journal.entries() == 1);
        CHECK(journal.damaged_lines() == 1);
        journal.append(measured(64, 48, 0.7));
    }
    Journal journal(path, header());
    CHECK(journal.entries() == 2);
    CHECK(journal.find(workload(64), config(16)) != nullptr);
    CHECK(journal.find(workload(64), config(32)) == nullptr);
    CHECK(journal.find(workload(64), config(48)) != nullptr);
}

TEST_CASE("a journal set aside never replaces an older one", "[journal]") {
    Scratch scratch;
    std::string path = scratch.file("j");
    std::vector<std::string> kept;
    for (int turn = 1; turn <= 3; ++turn) {
        Journal journal(path, header("cc-" + std::to_string(turn)));
        journal.append(measured(64 + turn, 16, 0.5));
        kept.push_back(slurp(path));
    }
    CHECK(Journal(path, header("cc-4")).previous() == path + ".previous-3");
    CHECK(slurp(path + ".previous") == kept[0]);
    CHECK(slurp(path + ".previous-2") == kept[1]);
    CHECK(slurp(path + ".previous-3") == kept[2]);
}

TEST_CASE("a journal of another compiler, device or digest is kept aside and begun anew", "[journal]") {
    JournalHeader other_device = header();
    other_device.device_class = "sm_90";
    for (const JournalHeader& other : {header("cc-2"), header("cc-1", "d2"), other_device}) {
        Scratch scratch;
        std::string path = scratch.file("j");
        Journal(path, header()).append(measured(64, 16, 0.5));
        std::string old = slurp(path);
        Journal journal(path, other);
        CHECK(journal.entries() == 0);
        CHECK(journal.previous() == path + ".previous");
        CHECK(slurp(path + ".previous") == old);
        journal.append(measured(64, 32, 0.5));
        CHECK(Journal(path, other).entries() == 1);
    }
}

TEST_CASE("who finds another header's journal in the place of his own adds nothing to it", "[journal]") {
    Scratch scratch;
    const std::string path = scratch.file("j");
    JournalHeader other = header();
    other.compiler = "nvrtc-99";
    Journal first(path, header());
    first.append(measured(64, 16, 0.5));
    Journal second(path, other);
    CHECK(second.previous() == path + ".previous");
    second.append(measured(64, 32, 0.6));
    const std::string before = slurp(path);
    CHECK_THROWS_AS(first.append(measured(64, 48, 0.7)), StoreError);
    CHECK(slurp(path) == before);
    CHECK(first.find(workload(64), config(16)) != nullptr);
    CHECK(Journal(path, other).entries() == 1);

    // Before its first record, too.
    const std::string late = scratch.file("late");
    Journal waiting(late, header());
    Journal(late, other).append(measured(64, 32, 0.6));
    CHECK_THROWS_AS(waiting.append(measured(64, 16, 0.5)), StoreError);
}

TEST_CASE("who finds his journal replaced by one of the same header goes on there", "[journal]") {
    Scratch scratch;
    const std::string path = scratch.file("j");
    Journal first(path, header());
    first.append(measured(64, 16, 0.5));
    const CandidateOutcome* known = first.find(workload(64), config(16));
    std::filesystem::rename(path, path + ".moved");
    Journal(path, header()).append(measured(64, 32, 0.6));
    first.append(measured(64, 48, 0.7));
    CHECK(first.find(workload(64), config(16)) == known);
    CHECK(first.find(workload(64), config(32)) != nullptr);
    CHECK(Journal(path, header()).entries() == 2);

    std::filesystem::remove(path);
    first.append(measured(64, 64, 0.8));
    CHECK(Journal(path, header()).entries() == 1);
}

TEST_CASE("a journal of a newer format is kept aside whole, and begun anew", "[journal][field-23]") {
    Scratch scratch;
    const std::string path = scratch.file("j");
    Journal(path, header()).append(measured(64, 16, 0.5));
    std::string text = slurp(path);
    const std::string format = "{\"journal\":1", newer = "{\"journal\":2";
    const std::size_t begin = text.find(format), end = text.find("}\n");
    REQUIRE(begin != std::string::npos);
    text.replace(begin, format.size(), newer);
    const std::string sum = to_hex(sha256(text.data() + begin, end - begin)).substr(0, 16);
    text.replace(text.find("\"sum\":\"") + 7, 16, sum);  // intact, as the newer version left it
    spit(path, text);
    Journal journal(path, header());
    CHECK(journal.entries() == 0);
    CHECK(journal.damaged_lines() == 0);
    CHECK(journal.previous() == path + ".previous");
    CHECK(slurp(path + ".previous") == text);
    journal.append(measured(64, 32, 0.5));
    CHECK(Journal(path, header()).entries() == 1);
}

TEST_CASE("another version, and operations that came later, keep a journal", "[journal]") {
    Scratch scratch;
    std::string path = scratch.file("j");
    Journal(path, header()).append(measured(64, 16, 0.5));
    JournalHeader later = header();
    later.version = "9.9.9";
    later.templates = {{"second", "e1"}};
    Journal(path, later).append(rejected(64, 32));
    CHECK(Journal(path, header()).entries() == 2);
    later.templates = {{"second", "e2"}};
    CHECK(Journal(path, later).entries() == 0);
}

TEST_CASE("a thousand truncations and flips of a journal never crash and never change an outcome", "[journal]") {
    Scratch scratch;
    std::string path = scratch.file("j");
    constexpr int kEntries = 12;
    {
        Journal journal(path, header());
        for (int i = 0; i < kEntries; ++i)
            i % 3 == 2 ? journal.append(rejected(64 + i, 16)) : journal.append(measured(64 + i, 16, 0.5 + 0.01 * i));
    }
    const std::string whole = slurp(path);
    std::mt19937 random(12345);
    int lost = 0, intact = 0;
    for (int trial = 0; trial < 1000; ++trial) {
        std::string bytes = whole;
        switch (trial % 4) {
            case 0:
                bytes.resize(random() % bytes.size());
                break;
            case 1:
                bytes[random() % bytes.size()] ^= char(1 << (random() % 8));
                break;
            case 2:
                for (int i = 0; i < 5; ++i) bytes[random() % bytes.size()] = char(random());
                break;
            case 3:
                bytes.erase(random() % bytes.size(), 1 + random() % 200);
                break;
        }
        spit(path, bytes);
        std::filesystem::remove(path + ".previous");
        Journal journal(path, header());
        REQUIRE(journal.entries() <= kEntries);
        int found = 0;
        for (int i = 0; i < kEntries; ++i) {
            const CandidateOutcome* outcome = journal.find(workload(64 + i), config(16));
            if (!outcome) continue;
            ++found;
            REQUIRE(outcome->measured() == (i % 3 != 2));
            if (outcome->measured()) REQUIRE(outcome->latency.min == 0.5 + 0.01 * i);
        }
        REQUIRE(found == journal.entries());
        (found < kEntries ? lost : intact) += 1;
        // Nothing is destroyed: what could not be used is still there.
        if (!journal.previous().empty()) REQUIRE(slurp(journal.previous()) == bytes);
        journal.append(measured(500, 16, 0.1));
        REQUIRE(Journal(path, header()).find(workload(500), config(16)) != nullptr);
    }
    CHECK(lost > 900);  // the damage did hit
}

TEST_CASE("four writers append to one journal and lose nothing", "[journal]") {
    Scratch scratch;
    std::string path = scratch.file("j");
    constexpr int kWriters = 4, kEach = 40;
    std::vector<pid_t> children;
    for (int w = 0; w < kWriters; ++w) {
        pid_t child = ::fork();
        if (child == 0) {
            Journal journal(path, header());
            for (int i = 0; i < kEach; ++i) journal.append(measured(1000 * (w + 1) + i, 16, 0.5));
            ::_exit(0);
        }
        children.push_back(child);
    }
    for (pid_t child : children) {
        int status = 0;
        ::waitpid(child, &status, 0);
        CHECK(status == 0);
    }
    Journal journal(path, header());
    CHECK(journal.damaged_lines() == 0);
    CHECK(journal.entries() == kWriters * kEach);
}

TEST_CASE("a writer killed at any moment leaves a journal that reads", "[journal]") {
    Scratch scratch;
    std::string path = scratch.file("j");
    for (int trial = 0; trial < 10; ++trial) {
        pid_t child = ::fork();
        if (child == 0) {
            Journal journal(path, header());
            for (int i = 0;; ++i) journal.append(measured(i + 1, trial + 1, 0.5));
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(5 + 3 * trial));
        ::kill(child, SIGKILL);
        ::waitpid(child, nullptr, 0);
        Journal journal(path, header());
        CHECK(journal.previous().empty());
        CHECK(journal.damaged_lines() <= trial + 1);
    }
    CHECK(Journal(path, header()).entries() > 10);
}

TEST_CASE("a full disk is an error with path and cause, and the journal stays whole", "[journal]") {
    Scratch scratch;
    std::string path = scratch.file("j");
    Journal(path, header()).append(measured(64, 16, 0.5));
    std::string before = slurp(path);
    pid_t child = ::fork();
    if (child == 0) {
        // The nearest thing to a full disk that needs no privilege: a file may not grow beyond this size.
        ::signal(SIGXFSZ, SIG_IGN);
        rlimit limit{before.size() + 100, before.size() + 100};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        try {
            Journal(path, header()).append(measured(64, 32, 0.5));
        } catch (const StoreError& error) {
            bool named = std::string(error.what()).find(path) != std::string::npos;
            ::_exit(named ? 7 : 8);
        }
        ::_exit(9);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(WEXITSTATUS(status) == 7);
    CHECK(slurp(path) == before);
    CHECK(Journal(path, header()).entries() == 1);
}

TEST_CASE("a journal that cannot be read is an error naming it", "[journal]") {
    Scratch scratch;
    std::filesystem::create_directory(scratch.file("j"));
    REQUIRE_THROWS_AS(Journal(scratch.file("j"), header()), StoreError);
}
