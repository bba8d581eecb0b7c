#include "../ops/random_problems.h"
#include "catch.h"

using namespace turbotune;
using namespace turbotune::testing;

namespace {

struct TierTypes {
    const char* tier;
    std::vector<DType> dtypes;
};

const std::vector<TierTypes> kTiers = {{"mma", {DType::bf16, DType::f16}},
                                       {"simt", {DType::f32, DType::f16, DType::bf16}}};

template <class Check>
void for_every_tier(Check check) {
    for (const TierTypes& tier : kTiers) {
        AttentionSuite suite("0", tier.tier);
        for (DType dtype : tier.dtypes) {
            INFO("tier " << tier.tier);
            check(suite, dtype);
        }
    }
}

}  // namespace

TEST_CASE("every tier agrees with float64 at odd lengths", "[gpu][attention]") {
    for (int head_dim : {32, 64, 128})
        for_every_tier([&](AttentionSuite& suite, DType dtype) { check_lengths(suite, head_dim, dtype); });
}

TEST_CASE("every tier agrees with float64 under every mask", "[gpu][attention][field-30]") {
    for (int head_dim : {32, 64, 128})
        for_every_tier([&](AttentionSuite& suite, DType dtype) { check_masks(suite, head_dim, dtype); });
}

TEST_CASE("every tier agrees with float64 for every combination of position terms", "[gpu][attention]") {
    for (int head_dim : {32, 64, 128})
        for_every_tier([&](AttentionSuite& suite, DType dtype) { check_terms(suite, head_dim, dtype); });
}

TEST_CASE("every tier serves packed batches with empty sequences", "[gpu][attention]") {
    for (int head_dim : {32, 64, 128})
        for_every_tier([&](AttentionSuite& suite, DType dtype) { check_packed(suite, head_dim, dtype); });
}

TEST_CASE("every tier reads and writes strided views in place", "[gpu][attention]") {
    for_every_tier([](AttentionSuite& suite, DType dtype) {
        check_strided_views(suite, 64, dtype);
        check_unaligned_rows(suite, 64, dtype);
    });
}

TEST_CASE("every tier gives the same bits again, with a full mask, and for each part of a batch",
          "[gpu][attention][field-31][field-40]") {
    for_every_tier([](AttentionSuite& suite, DType dtype) { check_bitwise(suite, 64, dtype); });
}

TEST_CASE("large activations stay finite in every tier", "[gpu][attention][field-36]") {
    for_every_tier([](AttentionSuite& suite, DType dtype) { check_large_activations(suite, dtype); });
}

TEST_CASE("every candidate of a tier agrees with float64, not only the first", "[gpu][attention]") {
    Runtime runtime(private_options("0"));
    const Operation& operation = da::operation();
    const DeviceInfo& device = runtime.device().info();
    for (DType dtype : {DType::bf16, DType::f32})
        for (int length : {300, 1100}) {
            da::Problem problem = random_problem(length, 64, dtype, true);
            problem.position_buckets = 32;
            problem.max_relative_positions = 64;
            const TestCase data = da::make_case(problem, da::MaskPattern::holes, {}, 21, true);
            const Workload workload = operation.workload_of(data.problem);
            for (const Config& config : operation.candidates(workload, device)) {
                if (!operation.filter(workload, config, device).fits) continue;
                INFO(data.label << " " << config.to_string());
                const NamedTensors outputs = run_case(runtime, operation, data, &config);
                CHECK(largest_error(outputs.at("out"), data.expected.at("out")) <= data.tolerance);
            }
        }
}
