#include "../ops/random_problems.h"
#include "catch.h"
#include "tier.h"
#include "workload.h"

using namespace turbotune;
using namespace turbotune::testing;

namespace {

struct TierTypes {
    const char* tier;
    std::vector<ElementType> dtypes;
};

// The tiers that this device can run, each with the element types it serves.
std::vector<TierTypes> tiers() {
    const std::vector<std::string> names = open_device("0").info().tiers();
    std::vector<TierTypes> all = {{"sm90", {DType::bf16, DType::f16}},
                                  {"mma", {DType::bf16, DType::f16, kTf32}},
                                  {"simt", {DType::f32, DType::f16, DType::bf16}}};
    std::erase_if(all,
                  [&](const TierTypes& t) { return std::find(names.begin(), names.end(), t.tier) == names.end(); });
    REQUIRE_FALSE(all.empty());
    return all;
}

// Operation::candidates names all of the best tier only.
std::vector<Config> every_candidate(const Workload& workload, const DeviceInfo& device) {
    std::vector<Config> all;
    for (const TierTypes& types : tiers()) {
        const std::string name = types.tier;
        const da::Tier& tier = da::find_tier(name);
        if (!tier.refuse(workload).empty()) continue;
        for (const Config& config : tier.candidates(workload, device)) all.push_back(config);
    }
    return all;
}

template <class Check>
void for_every_tier(Check check) {
    for (const TierTypes& tier : tiers()) {
        AttentionSuite suite("0", tier.tier);
        for (ElementType dtype : tier.dtypes) {
            INFO("tier " << tier.tier);
            check(suite, dtype);
        }
    }
}

}  // namespace

TEST_CASE("every tier agrees with float64 at odd lengths, head_dim 32", "[gpu][attention]") {
    for_every_tier([](AttentionSuite& suite, ElementType dtype) { check_lengths(suite, 32, dtype); });
}
TEST_CASE("every tier agrees with float64 at odd lengths, head_dim 64", "[gpu][attention]") {
    for_every_tier([](AttentionSuite& suite, ElementType dtype) { check_lengths(suite, 64, dtype); });
}
TEST_CASE("every tier agrees with float64 at odd lengths, head_dim 128", "[gpu][attention]") {
    for_every_tier([](AttentionSuite& suite, ElementType dtype) { check_lengths(suite, 128, dtype); });
}

TEST_CASE("every tier agrees with float64 under every mask, head_dim 32", "[gpu][attention][field-30]") {
    for_every_tier([](AttentionSuite& suite, ElementType dtype) { check_masks(suite, 32, dtype); });
}
TEST_CASE("every tier agrees with float64 under every mask, head_dim 64", "[gpu][attention][field-30]") {
    for_every_tier([](AttentionSuite& suite, ElementType dtype) { check_masks(suite, 64, dtype); });
}
TEST_CASE("every tier agrees with float64 under every mask, head_dim 128", "[gpu][attention][field-30]") {
    for_every_tier([](AttentionSuite& suite, ElementType dtype) { check_masks(suite, 128, dtype); });
}

TEST_CASE("every tier agrees with float64 for every combination of position terms, head_dim 32", "[gpu][attention]") {
    for_every_tier([](AttentionSuite& suite, ElementType dtype) { check_terms(suite, 32, dtype); });
}
TEST_CASE("every tier agrees with float64 for every combination of position terms, head_dim 64", "[gpu][attention]") {
    for_every_tier([](AttentionSuite& suite, ElementType dtype) { check_terms(suite, 64, dtype); });
}
TEST_CASE("every tier agrees with float64 for every combination of position terms, head_dim 128", "[gpu][attention]") {
    for_every_tier([](AttentionSuite& suite, ElementType dtype) { check_terms(suite, 128, dtype); });
}

TEST_CASE("every tier serves packed batches with empty sequences, head_dim 32", "[gpu][attention]") {
    for_every_tier([](AttentionSuite& suite, ElementType dtype) { check_packed(suite, 32, dtype); });
}
TEST_CASE("every tier serves packed batches with empty sequences, head_dim 64", "[gpu][attention]") {
    for_every_tier([](AttentionSuite& suite, ElementType dtype) { check_packed(suite, 64, dtype); });
}
TEST_CASE("every tier serves packed batches with empty sequences, head_dim 128", "[gpu][attention]") {
    for_every_tier([](AttentionSuite& suite, ElementType dtype) { check_packed(suite, 128, dtype); });
}

TEST_CASE("every tier reads and writes strided views in place", "[gpu][attention]") {
    for_every_tier([](AttentionSuite& suite, ElementType dtype) {
        check_strided_views(suite, 64, dtype);
        check_unaligned_rows(suite, 64, dtype);
    });
}

TEST_CASE("every tier gives the same bits again, with a full mask, and for each part of a batch",
          "[gpu][attention][field-31][field-40]") {
    for_every_tier([](AttentionSuite& suite, ElementType dtype) { check_bitwise(suite, 64, dtype); });
}

TEST_CASE("large activations stay finite in every tier", "[gpu][attention][field-36]") {
    for_every_tier([](AttentionSuite& suite, ElementType dtype) { check_large_activations(suite, dtype); });
}

TEST_CASE("every tier follows scores that grow along the keys, head_dim 32", "[gpu][attention]") {
    for_every_tier([](AttentionSuite& suite, ElementType dtype) { check_growing_scores(suite, 32, dtype); });
}
TEST_CASE("every tier follows scores that grow along the keys, head_dim 64", "[gpu][attention]") {
    for_every_tier([](AttentionSuite& suite, ElementType dtype) { check_growing_scores(suite, 64, dtype); });
}
TEST_CASE("every tier follows scores that grow along the keys, head_dim 128", "[gpu][attention]") {
    for_every_tier([](AttentionSuite& suite, ElementType dtype) { check_growing_scores(suite, 128, dtype); });
}

TEST_CASE("a query that is not a number spoils its own row alone in every tier", "[gpu][attention]") {
    for_every_tier([](AttentionSuite& suite, ElementType dtype) { check_lone_nan(suite, 64, dtype); });
}

TEST_CASE("an exact length changes an automatic choice, but no config that was given", "[gpu][attention]") {
    if (std::string(tiers().front().tier) != "sm90") return;
    const da::Problem problem = random_problem(150, 64, DType::bf16, false);
    Runtime automatic(private_options("0"));
    const da::AttentionPlan chosen = da::AttentionPlan::create(automatic, problem);
    CHECK(chosen.selection().config.integer("warpgroups") == 1);
    CHECK_FALSE(chosen.selection().note.empty());

    RuntimeOptions options = private_options("0");
    options.policy = Policy::fixed;
    options.fixed_config = config_of_tier(automatic, "sm90", problem.to_fields());
    REQUIRE(options.fixed_config.integer("warpgroups") == 2);
    Runtime fixed(options);
    CHECK(da::AttentionPlan::create(fixed, problem).selection().config == options.fixed_config);
}

TEST_CASE("every sm90 candidate gets past hidden sequences whose keys are loaded row by row", "[gpu][attention]") {
    for (const TierTypes& tier : tiers()) {
        if (std::string(tier.tier) != "sm90") continue;
        AttentionSuite suite("0", "sm90");
        const da::Problem problem = random_problem(64, 64, DType::bf16, true);
        const DeviceInfo& device = suite.runtime().device().info();
        for (const Config& config : da::find_tier("sm90").candidates(da::workload_of(problem), device)) {
            INFO(config.to_string());
            check_hidden_batches(suite, 64, DType::bf16, config);
        }
    }
}

TEST_CASE("every candidate of a tier agrees with float64, not only the first", "[gpu][attention][long]") {
    Runtime runtime(private_options("0"));
    const Operation& operation = da::operation();
    const DeviceInfo& device = runtime.device().info();
    for (ElementType dtype : {ElementType(DType::bf16), ElementType(DType::f32), kTf32})
        for (int length : {300, 1100}) {
            da::Problem problem = random_problem(length, 64, dtype, true);
            problem.position_buckets = 32;
            problem.max_relative_positions = 64;
            const TestCase data = da::make_case(problem, da::MaskPattern::holes, {}, 21, true);
            const Workload workload = operation.workload_of(data.problem);
            for (const Config& config : every_candidate(workload, device)) {
                if (!operation.filter(workload, config, device).fits) continue;
                INFO(data.label << " " << config.to_string());
                const NamedTensors outputs = run_case(runtime, operation, data, &config);
                CHECK(largest_error(outputs.at("out"), data.expected.at("out")) <= data.tolerance);
            }
        }
}

// Few and small, so that compute-sanitizer gets through: every tier and head_dim, far and near tiles, holes in the
// mask, an unaligned view, packed with an empty sequence; of the mma tier elements of 16 and of 32 bits.
TEST_CASE("small problems touch only what they should", "[gpu][attention][small]") {
    auto check = [](AttentionSuite& suite, int head_dim, ElementType dtype) {
        for (int length : {1, 33, 150}) {
            da::Problem problem = random_problem(length, head_dim, dtype, true);
            problem.batch = 1;
            problem.position_buckets = 16;
            problem.max_relative_positions = 32;
            const TestCase data = da::make_case(problem, da::MaskPattern::holes, {}, 40 + length, true);
            INFO(data.label);
            CHECK(suite.error_of(problem, data) <= data.tolerance);
        }
        da::Problem problem = random_problem(1, head_dim, dtype, false);
        const std::vector<int> lengths = {40, 0, 70};
        pack(problem, lengths);
        problem.position_buckets = 16;
        problem.max_relative_positions = 32;
        const TestCase data = da::make_case(problem, da::MaskPattern::none, lengths, 8, true);
        INFO(data.label);
        CHECK(suite.error_of(problem, data) <= data.tolerance);
        if (head_dim == 64) check_unaligned_rows(suite, head_dim, dtype);
    };
    for (int head_dim : {32, 64, 128})
        for (const TierTypes& tier : tiers()) {
            INFO(tier.tier);
            AttentionSuite suite("0", tier.tier);
            check(suite, head_dim, tier.dtypes.front());
            if (std::string(tier.tier) == "mma") check(suite, head_dim, kTf32);
        }
}
