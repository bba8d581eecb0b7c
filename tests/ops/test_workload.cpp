#include <set>

#include "catch.h"
#include "model_gpus.h"
#include "turbotune/base/error.h"
#include "turbotune/ops/disentangled_attention/attention.h"

using namespace turbotune;
using turbotune::disentangled_attention::operation;

namespace {

std::vector<Workload> enumerate(Preset preset, std::map<std::string, std::vector<std::string>> axes = {}) {
    return operation().workloads({preset, std::move(axes)});
}

std::size_t distinct(const std::vector<Workload>& workloads) {
    std::set<std::string> texts;
    for (const Workload& workload : workloads) texts.insert(workload.to_string());
    return texts.size();
}

}  // namespace

TEST_CASE("the presets have exactly 12, 84 and 1134 distinct workloads", "[workload]") {
    for (auto [preset, count] : {std::pair{Preset::quick, 12}, {Preset::standard, 84}, {Preset::exhaustive, 1134}}) {
        const std::vector<Workload> workloads = enumerate(preset);
        CHECK(workloads.size() == static_cast<std::size_t>(count));
        CHECK(distinct(workloads) == workloads.size());
    }
}

TEST_CASE("the presets split into inference and training as designed", "[workload]") {
    auto count = [](Preset preset, const char* field, const char* value) {
        return enumerate(preset, {{field, {value}}}).size();
    };
    CHECK(count(Preset::quick, "pass", "inference") == 3);
    CHECK(count(Preset::quick, "pass", "training") == 9);
    CHECK(count(Preset::standard, "pass", "inference") == 12);
    CHECK(count(Preset::exhaustive, "pass", "inference") == 162);
    CHECK(count(Preset::exhaustive, "pass", "training") == 972);
}

TEST_CASE("an axis replaces the preset's values and lengths go to their family", "[workload]") {
    const auto workloads = enumerate(Preset::quick, {{"length", {"1000", "1024", "9000"}},
                                                     {"pass", {"inference"}},
                                                     {"layout", {"padded"}},
                                                     {"precision", {"fp16", "bf16"}}});
    REQUIRE(workloads.size() == 2);
    CHECK(workloads[0].fields.integer("length") == 1024);
    CHECK(workloads[1].fields.integer("length") == 8192);
    CHECK(workloads[0].fields.text("precision") == "half");
}

TEST_CASE("axis values that mean nothing are refused by the axis' name", "[workload]") {
    for (auto axes : std::vector<std::map<std::string, std::vector<std::string>>>{{{"length", {"0"}}},
                                                                                  {{"length", {"12x"}}},
                                                                                  {{"head_dim", {"48"}}},
                                                                                  {{"pass", {"forward"}}},
                                                                                  {{"colour", {"red"}}},
                                                                                  {{"layout", {}}},
                                                                                  {{"length", {"99999999999"}}}}) {
        try {
            enumerate(Preset::quick, axes);
            FAIL("accepted " << axes.begin()->first);
        } catch (const InvalidArgument& error) {
            CHECK(error.argument() == axes.begin()->first);
        }
    }
}

TEST_CASE("every problem falls into a workload of its own family", "[workload]") {
    disentangled_attention::Problem problem;
    for (auto [length, family] : {std::pair{1, 64}, {64, 64}, {65, 128}, {385, 512}, {8192, 8192}, {20000, 8192}}) {
        problem.length = length;
        CHECK(operation().workload_of(problem.to_fields()).fields.integer("length") == family);
    }
    problem.batch = 4;
    problem.heads = 12;
    problem.mask = true;
    const Workload workload = operation().workload_of(problem.to_fields());
    CHECK(workload.fields.integer("batch_heads") == 32);
    CHECK(workload.fields.text("layout") == "padded_masked");
}

TEST_CASE("workloads of problems are among those that the exhaustive preset tunes", "[workload]") {
    std::set<std::string> tuned;
    for (const Workload& workload : enumerate(Preset::exhaustive)) tuned.insert(workload.to_string());
    disentangled_attention::Problem problem;
    for (int length : {1, 100, 511, 3000, 8192})
        for (int heads : {1, 12, 64})
            for (DType dtype : {DType::f16, DType::bf16, DType::f32}) {
                problem.length = length;
                problem.heads = heads;
                problem.dtype = dtype;
                CHECK(tuned.count(operation().workload_of(problem.to_fields()).to_string()) == 1);
            }
}

TEST_CASE("neighbours begin with the nearest length and never leave the precision", "[workload]") {
    const Workload workload =
        enumerate(Preset::quick, {{"length", {"1024"}}, {"layout", {"padded"}}, {"pass", {"inference"}}})[0];
    const std::vector<Workload> neighbours = operation().neighbours(workload);
    REQUIRE(neighbours.size() == 2 * 9 * 2 - 1);
    CHECK(neighbours[0].fields.integer("batch_heads") == 8);
    CHECK(neighbours[0].fields.integer("length") == 1024);
    CHECK(neighbours[1].fields.integer("length") == 2048);
    CHECK(neighbours[3].fields.integer("length") == 768);
    for (const Workload& neighbour : neighbours) {
        CHECK(neighbour.fields.text("precision") == "half");
        CHECK_FALSE(neighbour == workload);
    }
}

TEST_CASE("the producers of a workload name the kernels that its test cases' inputs are made by", "[workload]") {
    const DeviceInfo gpu = turbotune::testing::hopper();
    auto kernels = [&](const Fields& problem) {
        std::set<std::string> names;
        for (const KernelSpec& spec :
             operation().kernels(problem, operation().heuristic(operation().workload_of(problem), gpu), gpu))
            names.insert(spec.to_string());
        return names;
    };
    for (const Workload& workload :
         enumerate(Preset::quick, {{"dropout", {"off", "on"}}, {"batch_heads", {"8", "32"}}})) {
        INFO(workload.to_string());
        std::set<std::string> named, used;
        for (const Fields& producer : operation().producers(workload, gpu)) named.merge(kernels(producer));
        for (const TestCase& data : operation().parity_cases(workload, gpu, 1))
            if (!data.producer.empty()) used.merge(kernels(data.producer));
        CHECK(named == used);
        CHECK(used.empty() == (workload.fields.text("pass").rfind("backward", 0) != 0));
    }
}
