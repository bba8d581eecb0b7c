// The profile that sweeps write to: what several processes save at once, and how often.
#include "../../tuner/profile_file.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../tuner/provenance.h"
#include "catch.h"
#include "scratch.h"
#include "turbotune/base/error.h"
#include "turbotune/tuner/journal.h"

using namespace turbotune;

namespace {

Profile fresh(const std::string& compiler = "cc-1") {
    Profile profile;
    profile.device_class = {"x86_64-avx2", 2, 1 << 20, 1 << 20, 0};
    profile.device_name = "a CPU";
    profile.compiler = compiler;
    profile.templates["toy"] = std::string(64, 'a');
    return profile;
}

ProfileEntry entry(int length, double median = 0.5, int rejected = 0) {
    ProfileEntry result;
    result.workload = {"toy", Fields().set("length", length)};
    result.config.set("tier", "host").set("block", length);
    result.latency = {median, median, median, median, 20};
    for (int i = 0; i < rejected; ++i)
        result.rejected.push_back({Fields().set("tier", "host").set("block", i), "compile_error", "some words"});
    return result;
}

// Runs `body(0)`, `body(1)`, ... in processes of their own, all at once.
template <typename Body>
void in_processes(int count, Body&& body) {
    std::vector<pid_t> children;
    int gate[2];
    REQUIRE(::pipe(gate) == 0);
    for (int c = 0; c < count; ++c) {
        const pid_t child = ::fork();
        if (child == 0) {
            ::close(gate[1]);
            char byte = 0;
            [[maybe_unused]] const ssize_t got = ::read(gate[0], &byte, 1);  // until the parent lets go of its end
            int code = 0;
            try {
                body(c);
            } catch (const std::exception& error) {
                std::fprintf(stderr, "%s\n", error.what());
                code = 1;
            }
            ::_exit(code);
        }
        children.push_back(child);
    }
    ::close(gate[0]);
    ::close(gate[1]);
    for (const pid_t child : children) {
        int status = 0;
        ::waitpid(child, &status, 0);
        CHECK(status == 0);
    }
}

std::size_t files_named(const Scratch& scratch, const std::string& part) {
    std::size_t count = 0;
    for (const auto& each : std::filesystem::directory_iterator(scratch.path()))
        count += each.path().filename().string().find(part) != std::string::npos;
    return count;
}

ino_t inode_of(const std::string& path) {
    struct stat info {};
    REQUIRE(::stat(path.c_str(), &info) == 0);
    return info.st_ino;
}

}  // namespace

TEST_CASE("an extended profile still says where its older entries come from", "[profile_file]") {
    const Scratch scratch;
    const std::string path = scratch.file("p.json");
    Profile old = fresh();
    old.entries = {entry(8)};
    old.provenance = {{"date", "2026-01-01"},
                      {"command", "turbotune --preset quick"},
                      {"retargeted_from", "other.json"},
                      {"measured_compiler", "cc-0"},
                      {"rotation", "at least 30 bytes rotated against 20 bytes of L2"}};
    save_profile(old, path);
    Profile next = fresh();
    next.provenance = {{"date", "2026-01-02"}, {"command", "turbotune --preset standard"}};
    {
        ProfileFile file(path, next);
        join_provenance(file.provenance(), {{"rotation", describe_rotation(80, 20)}});
        file.put(entry(16));
    }
    const Provenance joined = {{"date", "2026-01-02"},
                               {"command", "turbotune --preset quick | turbotune --preset standard"},
                               {"retargeted_from", "other.json"},
                               {"measured_compiler", "cc-0"},
                               {"rotation", "at least 30 bytes rotated against 20 bytes of L2"}};
    CHECK(load_profile(path).provenance == joined);
    {
        ProfileFile file(path, next);
        join_provenance(file.provenance(), {{"rotation", describe_rotation(10, 20)}});
        file.put(entry(16, 0.4));
    }
    CHECK(load_profile(path).provenance.at("rotation") == "at least 10 bytes rotated against 20 bytes of L2");
    CHECK(load_profile(path).provenance.at("command") == joined.at("command"));
}

TEST_CASE("the name of a folder is refused before anything is made there", "[profile_file]") {
    const Scratch scratch;
    for (const char* name : {"results/", "results/.", "results/.."}) {
        CHECK_THROWS_AS(ProfileFile(scratch.file(name), fresh()), InvalidArgument);
        CHECK_FALSE(std::filesystem::exists(scratch.file("results")));
    }
}

TEST_CASE("four processes save into one profile and lose nothing", "[profile_file][field-22]") {
    const Scratch scratch;
    const std::string path = scratch.file("p.json");
    in_processes(4, [&](int process) {
        ProfileFile file(path, fresh());
        for (int i = 0; i < 15; ++i) file.put(entry(1000 * (process + 1) + i));
    });
    const Profile profile = load_profile(path);
    CHECK(profile.entries.size() == 60);
    for (int process = 0; process < 4; ++process)
        for (int i = 0; i < 15; ++i) CHECK(profile.find(entry(1000 * (process + 1) + i).workload) != nullptr);
    CHECK(files_named(scratch, ".tmp-") == 0);
}

TEST_CASE("processes that find another compiler's profile set it aside once, and keep what each of them measures",
          "[profile_file][field-22]") {
    for (int trial = 0; trial < 10; ++trial) {
        const Scratch scratch;
        const std::string path = scratch.file("p.json");
        ProfileFile(path, fresh("cc-0")).put(entry(7));
        const std::string old = slurp(path);
        in_processes(3, [&](int process) { ProfileFile(path, fresh()).put(entry(10 + process)); });
        CHECK(load_profile(path).entries.size() == 3);
        CHECK(slurp(path + ".previous") == old);
        CHECK(files_named(scratch, ".previous") == 1);
    }
}

TEST_CASE("processes that find another compiler's journal set it aside once, and keep what each of them measures",
          "[journal][field-22]") {
    const auto header = [](const char* compiler) {
        return JournalHeader{"0.1.0", "x86_64-2sm", compiler, {{"toy", "d1"}}};
    };
    const auto outcome = [](int block) {
        CandidateOutcome result;
        result.workload = {"toy", Fields().set("length", 64)};
        result.config.set("tier", "host").set("block", block);
        result.reason = "fault";
        return result;
    };
    for (int trial = 0; trial < 10; ++trial) {
        const Scratch scratch;
        const std::string path = scratch.file("j");
        Journal(path, header("cc-0")).append(outcome(7));
        const std::string old = slurp(path);
        in_processes(3, [&](int process) { Journal(path, header("cc-1")).append(outcome(10 + process)); });
        const Journal journal(path, header("cc-1"));
        CHECK(journal.entries() == 3);
        CHECK(journal.damaged_lines() == 0);
        CHECK(slurp(path + ".previous") == old);
        CHECK(files_named(scratch, ".previous") == 1);
    }
}

TEST_CASE("a process killed while it saves leaves a profile that reads", "[profile_file][field-22]") {
    const Scratch scratch;
    const std::string path = scratch.file("p.json");
    std::size_t held = 0;
    for (int trial = 0; trial < 10; ++trial) {
        const pid_t child = ::fork();
        if (child == 0) {
            ProfileFile file(path, fresh());
            for (int i = 0;; ++i) file.put(entry(100 * trial + i % 100 + 1, 0.5, 20));
        }
        ::usleep(useconds_t(4000 + 2500 * trial));
        ::kill(child, SIGKILL);
        ::waitpid(child, nullptr, 0);
        if (!std::filesystem::exists(path)) continue;
        const std::size_t now = load_profile(path).entries.size();
        CHECK(now >= held);
        held = now;
    }
    ProfileFile(path, fresh()).put(entry(9999));
    CHECK(load_profile(path).find(entry(9999).workload) != nullptr);
    CHECK(held > 0);
}

TEST_CASE("a small profile is saved at once, a large one now and then and at the end", "[profile_file]") {
    const Scratch scratch;
    const std::string path = scratch.file("p.json");
    {
        ProfileFile file(path, fresh());
        CHECK(file.put(entry(1)));
        CHECK(file.put(entry(2)));
        CHECK(load_profile(path).entries.size() == 2);
        CHECK(file.put(entry(3, 0.5, 12000)));  // its size is known from now on
        REQUIRE(std::filesystem::file_size(path) > (1 << 20));
        const ino_t saved = inode_of(path);
        CHECK_FALSE(file.put(entry(4)));
        CHECK_FALSE(file.put(entry(5)));
        CHECK(inode_of(path) == saved);
        CHECK(file.find(entry(5).workload) != nullptr);
        file.flush();
        CHECK(load_profile(path).entries.size() == 5);
        const ino_t flushed = inode_of(path);
        file.flush();
        CHECK(inode_of(path) == flushed);  // nothing to save
        CHECK_FALSE(file.put(entry(6)));
    }
    CHECK(load_profile(path).entries.size() == 6);
}

TEST_CASE("what was not saved yet comes before what others saved meanwhile", "[profile_file]") {
    const Scratch scratch;
    const std::string path = scratch.file("p.json");
    ProfileFile file(path, fresh());
    file.put(entry(3, 0.5, 12000));
    CHECK_FALSE(file.put(entry(4, 0.25)));
    ProfileFile(path, fresh()).put(entry(4, 0.75));
    ProfileFile(path, fresh()).put(entry(8));
    file.flush();
    const Profile profile = load_profile(path);
    CHECK(profile.entries.size() == 3);
    CHECK(profile.find(entry(4).workload)->latency.median == 0.25);
    CHECK(profile.find(entry(8).workload) != nullptr);
}
