#include "turbotune/ops/runtime.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "catch.h"
#include "fake_operation.h"
#include "profile/fixtures.h"
#include "turbotune/kernel/kernel_spec.h"

using namespace turbotune;
using namespace turbotune::test;

namespace {

constexpr std::int64_t kSize = 1024;

std::string host_compiler_identity() {
    try {
        return host_compiler().identity();
    } catch (const CompileError&) {
        return {};
    }
}

// A profile of this machine's CPU device that is exact for the fake operation.
Profile profile_here(std::int64_t block, std::int64_t size = kSize) {
    Profile result;
    result.device_class = open_device("cpu").info().device_class;
    result.compiler = host_compiler_identity();
    result.templates["fake_operation"] = to_hex(template_digest("fake_operation"));
    ProfileEntry entry;
    entry.workload = FakeOperation::workload_for(size);
    entry.config = FakeOperation::config_of(block);
    entry.latency = {1, 1, 1, 1, 5};
    result.entries = {entry};
    return result;
}

class Setup {
  public:
    Setup() {
        options.device = "cpu";
        options.discover_profiles = false;
        options.store.memory_only = true;
    }
    void add(const Profile& profile) {
        const std::string path = directory / ("p" + std::to_string(options.profiles.size()) + ".json");
        save_profile(profile, path);
        options.profiles.push_back(path);
    }
    Selection select(const FakeOperation& operation, std::int64_t size = kSize) {
        Runtime runtime(options);
        return runtime.select(operation, FakeOperation::workload_for(size), FakeOperation::problem_of(size));
    }

    TempDirectory directory;
    RuntimeOptions options;

  private:
    ScopedVariable no_policy_{"TURBOTUNE_POLICY", std::nullopt};
};

int count_containing(const std::vector<std::string>& lines, const std::string& text) {
    return static_cast<int>(
        std::count_if(lines.begin(), lines.end(), [&](auto& line) { return line.find(text) != std::string::npos; }));
}

}  // namespace

TEST_CASE("Constructing a runtime opens no device and reads no profile", "[runtime]") {
    Setup setup;
    setup.options.device = "no such device";
    setup.options.profiles = {setup.directory / "missing.json"};
    setup.options.store.memory_only = false;
    setup.options.store.directory = setup.directory / "store";
    Runtime runtime(setup.options);
    REQUIRE_FALSE(std::filesystem::exists(setup.directory / "store"));
    REQUIRE_THROWS_AS(runtime.device(), Error);
    REQUIRE_THROWS_AS(runtime.profiles(), InvalidArgument);
    REQUIRE_THROWS_AS(runtime.profiles(), InvalidArgument);  // and again
    REQUIRE_FALSE(std::filesystem::exists(setup.directory / "store"));
}

TEST_CASE("Without profiles the heuristic serves, and says why", "[runtime]") {
    Setup setup;
    const FakeOperation operation;
    const Selection selection = setup.select(operation);
    REQUIRE(selection.origin == "heuristic");
    REQUIRE(selection.config == FakeOperation::config_of(8));
    REQUIRE(selection.matched == FakeOperation::workload_for(kSize));
    REQUIRE(selection.note == "no profile was found");
}

TEST_CASE("A profile of this device, compiler and templates is exact", "[runtime]") {
    if (host_compiler_identity().empty()) return;
    Setup setup;
    setup.add(profile_here(16));
    const FakeOperation operation;
    const Selection selection = setup.select(operation);
    REQUIRE(selection.origin == "profile");
    REQUIRE(selection.grade == Grade::exact);
    REQUIRE(selection.config == FakeOperation::config_of(16));
    REQUIRE(selection.profile_path == setup.options.profiles[0]);
    REQUIRE(selection.note.empty());
}

TEST_CASE("Another compiler or other templates make a profile same-class, another device useless", "[runtime]") {
    Setup setup;
    Profile profile = profile_here(16);
    const FakeOperation operation;
    SECTION("compiler") {
        profile.compiler = "g++-1.0";
        setup.add(profile);
        const Selection selection = setup.select(operation);
        REQUIRE(selection.grade == Grade::same_class);
        REQUIRE(selection.config == FakeOperation::config_of(16));
        REQUIRE_THAT(selection.note, ContainsSubstring("compiler: profile g++-1.0, here "));
    }
    SECTION("templates") {
        profile.templates["fake_operation"] = std::string(64, '0');
        setup.add(profile);
        REQUIRE(setup.select(operation).grade == Grade::same_class);
    }
    SECTION("an exact profile after a same-class one wins") {
        if (host_compiler_identity().empty()) return;
        profile.compiler = "g++-1.0";
        setup.add(profile);
        setup.add(profile_here(32));
        REQUIRE(setup.select(operation).config == FakeOperation::config_of(32));
    }
    SECTION("device") {
        profile.device_class.sm_count += 1;
        setup.add(profile);
        const Selection selection = setup.select(operation);
        REQUIRE(selection.origin == "heuristic");
        REQUIRE_THAT(selection.note, ContainsSubstring("incompatible: sm_count: profile "));
    }
}

TEST_CASE("A config that the operation's filter turns down falls back loudly", "[runtime]") {
    Setup setup;
    setup.add(profile_here(128));
    const FakeOperation operation;
    ScopedLog log;
    Selection selection = setup.select(operation);
    REQUIRE(selection.origin == "heuristic");
    REQUIRE_THAT(selection.note, ContainsSubstring("block 128 is more than 64"));
    REQUIRE(count_containing(log.warnings(), "block 128 is more than 64") == 1);

    Profile foreign = profile_here(16);
    foreign.entries[0].config = Fields().set("tier", "host").set("tile", 3);
    setup.options.profiles.clear();
    save_profile(foreign, setup.directory / "foreign.json");
    setup.options.profiles = {setup.directory / "foreign.json"};
    selection = setup.select(operation);
    REQUIRE(selection.origin == "heuristic");
    REQUIRE_THAT(selection.note, ContainsSubstring("block"));
}

TEST_CASE("A neighbour's winner serves when the workload itself was not tuned", "[runtime]") {
    Setup setup;
    setup.add(profile_here(16, 2 * kSize));
    const FakeOperation operation;
    const Selection selection = setup.select(operation);
    REQUIRE(selection.origin == "profile");
    REQUIRE(selection.matched == FakeOperation::workload_for(2 * kSize));
    REQUIRE_THAT(selection.note, ContainsSubstring("tuned for fake_operation size=2048"));
}

TEST_CASE("Policy heuristic reads no profile", "[runtime]") {
    Setup setup;
    setup.options.policy = Policy::heuristic;
    setup.options.profiles = {setup.directory / "missing.json"};
    const FakeOperation operation;
    REQUIRE(setup.select(operation).origin == "heuristic");
}

TEST_CASE("A profile that was named and is broken is an error", "[runtime]") {
    Setup setup;
    write_text(setup.directory / "broken.json", "{");
    setup.options.profiles = {setup.directory / "broken.json"};
    const FakeOperation operation;
    REQUIRE_THROWS_AS(setup.select(operation), InvalidArgument);
}

TEST_CASE("Policy fixed takes the config given, or says what is wrong with it", "[runtime]") {
    Setup setup;
    setup.options.policy = Policy::fixed;
    const FakeOperation operation;
    REQUIRE_THROWS_AS(setup.select(operation), InvalidArgument);
    setup.options.fixed_config = FakeOperation::config_of(64);
    const Selection selection = setup.select(operation);
    REQUIRE(selection.origin == "fixed");
    REQUIRE(selection.config == FakeOperation::config_of(64));
    setup.options.fixed_config = FakeOperation::config_of(65);
    REQUIRE_THROWS_AS(setup.select(operation), Unsupported);
    REQUIRE_THROWS_WITH(setup.select(operation), ContainsSubstring("block 65 is more than 64"));
    setup.options.fixed_config = Fields().set("tier", "host");
    REQUIRE_THROWS_AS(setup.select(operation), InvalidArgument);
}

TEST_CASE("Policy profile_only takes exact entries and nothing else", "[runtime]") {
    if (host_compiler_identity().empty()) return;
    Setup setup;
    setup.options.policy = Policy::profile_only;
    const FakeOperation operation;
    REQUIRE_THROWS_AS(setup.select(operation), ProfileMiss);
    Profile same_class = profile_here(16);
    same_class.compiler = "g++-1.0";
    setup.add(same_class);
    setup.add(profile_here(32, 2 * kSize));
    REQUIRE_THROWS_AS(setup.select(operation), ProfileMiss);
    REQUIRE_THROWS_WITH(setup.select(operation),
                        ContainsSubstring(setup.options.profiles[0] + ": same-class: compiler: profile g++-1.0") &&
                            ContainsSubstring(setup.options.profiles[1] + ": no entry for fake_operation size=1024"));
    REQUIRE(setup.select(operation, 2 * kSize).config == FakeOperation::config_of(32));
}

TEST_CASE("TURBOTUNE_POLICY counts when the program left the policy open", "[runtime]") {
    Setup setup;
    const FakeOperation operation;
    const ScopedVariable variable("TURBOTUNE_POLICY", "profile_only");
    REQUIRE_THROWS_AS(setup.select(operation), ProfileMiss);
    REQUIRE(Runtime(setup.options).options().policy == Policy::profile_only);
    setup.options.policy = Policy::heuristic;
    REQUIRE(setup.select(operation).origin == "heuristic");
    setup.options.policy = Policy::automatic;
    const ScopedVariable wrong("TURBOTUNE_POLICY", "best");
    REQUIRE_THROWS_AS(Runtime(setup.options), InvalidArgument);
    REQUIRE_THROWS_WITH(Runtime(setup.options), ContainsSubstring("TURBOTUNE_POLICY: 'best'"));
}

TEST_CASE("Autotune finds the fastest candidate once and remembers it", "[runtime]") {
    Setup setup;
    setup.options.policy = Policy::autotune;
    setup.options.autotune_budget_ms = 60000;
    FakeOperation operation;
    operation.blocks = {8, 16, 32, 64};
    operation.behaviours = {{8, {6}}, {16, {4}}, {32, {0.5}}, {64, {5}}};
    Runtime runtime(setup.options);
    const auto plan = operation.plan(runtime, FakeOperation::problem_of(kSize), nullptr, nullptr);
    REQUIRE(plan->selection().origin == "autotune");
    REQUIRE(plan->config() == FakeOperation::config_of(32));
    REQUIRE_THAT(plan->selection().note, ContainsSubstring("best of 4 measured"));
    for (const std::int64_t block : operation.blocks) REQUIRE(operation.executions(block) > 3);

    const int executions = operation.executions(32), timing_cases = operation.timing_cases;
    const Selection again =
        runtime.select(operation, FakeOperation::workload_for(kSize), FakeOperation::problem_of(kSize));
    REQUIRE(again.origin == "autotune");
    REQUIRE(again.config == FakeOperation::config_of(32));
    REQUIRE(operation.executions(32) == executions);
    REQUIRE(operation.timing_cases == timing_cases);
}

TEST_CASE("Autotune skips candidates that are wrong, broken or do not fit", "[runtime]") {
    Setup setup;
    setup.options.policy = Policy::autotune;
    setup.options.autotune_candidates = 10;
    setup.options.autotune_budget_ms = 60000;
    FakeOperation operation;
    operation.blocks = {8, 1, 2, 3, 4, 100, 5};
    operation.behaviours = {{8, {6}},
                            {1, {0, Fault::compile_error}},
                            {2, {0, Fault::device_error}},
                            {3, {0, Fault::not_finite}},
                            {4, {0, Fault::unwritten}},
                            {100, {0}},
                            {5, {1}}};
    ScopedLog log;
    REQUIRE(setup.select(operation).config == FakeOperation::config_of(5));
    const auto warnings = log.warnings();
    REQUIRE(warnings.size() == 4);
    REQUIRE_THAT(warnings[0], ContainsSubstring("block=1 is skipped: this candidate does not compile"));
    REQUIRE_THAT(warnings[1], ContainsSubstring("block=2 is skipped: launch failed"));
    REQUIRE_THAT(warnings[2], ContainsSubstring("block=3 is skipped: out is not finite"));
    REQUIRE_THAT(warnings[3], ContainsSubstring("block=4 is skipped: out is not finite or not fully written"));
    REQUIRE(operation.executions(100) == 0);
}

TEST_CASE("Autotune stays within its number of candidates and its budget", "[runtime]") {
    Setup setup;
    setup.options.policy = Policy::autotune;
    FakeOperation operation;
    operation.blocks = {1, 2, 3, 8, 4, 5};
    operation.behaviours = {{8, {3}}, {1, {2}}, {2, {2}}, {3, {0}}, {4, {0}}, {5, {0}}};
    SECTION("candidates") {
        setup.options.autotune_candidates = 3;
        setup.options.autotune_budget_ms = 60000;
        setup.select(operation);
        REQUIRE(operation.executions(8) > 0);
        REQUIRE(operation.executions(1) > 0);
        REQUIRE(operation.executions(2) > 0);
        REQUIRE(operation.executions(3) + operation.executions(4) + operation.executions(5) == 0);
    }
    SECTION("a budget that is over after the first leaves the heuristic") {
        setup.options.autotune_budget_ms = 1;
        const Selection selection = setup.select(operation);
        REQUIRE(selection.config == FakeOperation::config_of(8));
        REQUIRE(operation.executions(8) == 1);
        REQUIRE(operation.executions(1) == 0);
    }
    SECTION("one candidate needs no measuring") {
        setup.options.autotune_candidates = 1;
        REQUIRE(setup.select(operation).origin == "heuristic");
        REQUIRE(operation.timing_cases == 0);
    }
}

TEST_CASE("Autotune falls back to the heuristic when its buffers do not fit", "[runtime]") {
    Setup setup;
    setup.options.policy = Policy::autotune;
    FakeOperation operation;
    operation.blocks = {8, 16};
    operation.output_elements = std::int64_t{1} << 46;
    ScopedLog log;
    const Selection selection = setup.select(operation);
    REQUIRE(selection.origin == "heuristic");
    REQUIRE(selection.config == FakeOperation::config_of(8));
    REQUIRE_THAT(selection.note, ContainsSubstring("out of memory"));
    REQUIRE(count_containing(log.warnings(), "the heuristic is used") == 1);
}

TEST_CASE("Autotune uses the heuristic when no candidate runs", "[runtime]") {
    Setup setup;
    setup.options.policy = Policy::autotune;
    FakeOperation operation;
    operation.blocks = {8, 16};
    operation.behaviours = {{8, {0, Fault::compile_error}}, {16, {0, Fault::device_error}}};
    ScopedLog log;
    const Selection selection = setup.select(operation);
    REQUIRE(selection.origin == "heuristic");
    REQUIRE(selection.note == "autotune: no candidate ran");
}

TEST_CASE("Autotune takes a profile's entry without measuring, but not a neighbour's", "[runtime]") {
    Setup setup;
    setup.options.policy = Policy::autotune;
    setup.add(profile_here(16));
    FakeOperation operation;
    operation.blocks = {8, 32};
    operation.behaviours = {{8, {3}}, {32, {0.1}}};
    REQUIRE(setup.select(operation).origin == "profile");
    REQUIRE(operation.timing_cases == 0);
    REQUIRE(setup.select(operation, kSize / 2).origin == "autotune");
}

TEST_CASE("Threads that ask at once tune once and agree", "[runtime]") {
    Setup setup;
    setup.options.policy = Policy::autotune;
    FakeOperation operation;
    operation.blocks = {8, 16, 32};
    operation.behaviours = {{8, {0.2}}, {16, {0.2}}, {32, {0.2}}};
    Runtime runtime(setup.options);
    std::vector<Selection> selections(8);
    std::vector<std::thread> threads;
    for (Selection& selection : selections)
        threads.emplace_back([&] {
            selection = runtime.select(operation, FakeOperation::workload_for(kSize), FakeOperation::problem_of(kSize));
        });
    for (std::thread& thread : threads) thread.join();
    REQUIRE(operation.timing_cases == 1);
    for (const Selection& selection : selections) REQUIRE(selection.config == selections[0].config);
    REQUIRE(runtime.statistics().selections.size() == 1);
}

TEST_CASE("Statistics hold one selection for each workload, in order", "[runtime]") {
    Setup setup;
    setup.add(profile_here(16));
    const FakeOperation operation;
    Runtime runtime(setup.options);
    for (const std::int64_t size : {8192, 1024, 8192, 1024, 64})
        operation.plan(runtime, FakeOperation::problem_of(size), nullptr, nullptr);
    const auto selections = runtime.statistics().selections;
    REQUIRE(selections.size() == 3);
    REQUIRE(selections[0].origin == "heuristic");
    REQUIRE(selections[1].origin == "profile");
    REQUIRE(selections[1].config == FakeOperation::config_of(16));
    REQUIRE(selections[2].matched == FakeOperation::workload_for(64));
}

TEST_CASE("Constants are kept once for each content", "[runtime]") {
    Setup setup;
    Runtime runtime(setup.options);
    const std::vector<int> a = {1, 2, 3}, b = {1, 2, 4};
    const DevicePointer first = runtime.constant(a.data(), 12), second = runtime.constant(b.data(), 12);
    const DevicePointer prefix = runtime.constant(a.data(), 8);
    REQUIRE(std::set<DevicePointer>{first, second, prefix}.size() == 3);
    const std::vector<int> copy = a;
    REQUIRE(runtime.constant(copy.data(), 12) == first);
    REQUIRE(std::memcmp(first, a.data(), 12) == 0);
    REQUIRE(std::memcmp(second, b.data(), 12) == 0);
    REQUIRE_THROWS_AS(runtime.constant(nullptr, 4), InvalidArgument);
    REQUIRE_THROWS_AS(runtime.constant(a.data(), 0), InvalidArgument);

    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int t = 0; t < 8; ++t)
        threads.emplace_back([&] {
            for (int i = 0; i < 200; ++i) {
                const int content[2] = {i, -i};
                const auto* pointer = static_cast<const int*>(runtime.constant(content, sizeof content));
                if (pointer != runtime.constant(content, sizeof content) || pointer[0] != i || pointer[1] != -i)
                    ++wrong;
            }
        });
    for (std::thread& thread : threads) thread.join();
    REQUIRE(wrong == 0);
}
