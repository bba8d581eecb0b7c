#include "../ops/gradient_suite.h"
#include "catch.h"
#include "tier.h"

using namespace turbotune;
using namespace turbotune::testing;

namespace {

constexpr const char* kTiers[] = {"sm90", "mma", "simt"};

// Calls check for every element type that the tier trains; of head dims other than 64 f16 is left out, whose kernels
// are those of bf16.
template <class Check>
void for_every_dtype(const std::string& tier, int head_dim, Check check) {
    const std::vector<std::string> names = open_device("0").info().tiers();
    if (std::find(names.begin(), names.end(), tier) == names.end()) return;
    AttentionSuite suite("0", tier);
    int served = 0;
    for (ElementType dtype : {ElementType(DType::bf16), ElementType(DType::f16), ElementType(DType::f32), kTf32}) {
        if (tier == "simt" && dtype.math == da::Math::fast) continue;  // the kernels of strict f32
        if (dtype == DType::f16 && head_dim != 64) continue;
        const Workload workload = da::operation().workload_of(gradient_problem(64, head_dim, dtype, false).to_fields());
        if (!da::find_tier(tier).refuse(workload).empty()) continue;
        INFO("tier " << tier);
        check(suite, dtype);
        ++served;
    }
    CHECK(served > 0);
}

}  // namespace

// A test of its own for every head_dim and tier: most of its time goes into compiling, which then uses all cores.
#define EVERY_HEAD_DIM_AND_TIER (32, 0), (32, 1), (32, 2), (64, 0), (64, 1), (64, 2), (128, 0), (128, 1), (128, 2)

TEMPLATE_TEST_CASE_SIG("gradients agree with float64 at odd lengths", "[gpu][gradients]",
                       ((int head_dim, int tier), head_dim, tier), EVERY_HEAD_DIM_AND_TIER) {
    for_every_dtype(kTiers[tier], head_dim,
                    [](AttentionSuite& suite, ElementType dtype) { check_gradient_lengths(suite, head_dim, dtype); });
}

TEMPLATE_TEST_CASE_SIG("gradients agree with float64 under every mask", "[gpu][gradients][field-30]",
                       ((int head_dim, int tier), head_dim, tier), EVERY_HEAD_DIM_AND_TIER) {
    for_every_dtype(kTiers[tier], head_dim,
                    [](AttentionSuite& suite, ElementType dtype) { check_gradient_masks(suite, head_dim, dtype); });
}

TEMPLATE_TEST_CASE_SIG("gradients agree with float64 for every combination of position terms", "[gpu][gradients]",
                       ((int head_dim, int tier), head_dim, tier), EVERY_HEAD_DIM_AND_TIER) {
    for_every_dtype(kTiers[tier], head_dim, [](AttentionSuite& suite, ElementType dtype) {
        if (dtype != DType::f16 && !(tier == 2 && dtype == DType::bf16)) check_gradient_terms(suite, head_dim, dtype);
    });
}

TEMPLATE_TEST_CASE_SIG("gradients serve packed batches with empty sequences", "[gpu][gradients][field-39]",
                       ((int head_dim, int tier), head_dim, tier), EVERY_HEAD_DIM_AND_TIER) {
    for_every_dtype(kTiers[tier], head_dim, [](AttentionSuite& suite, ElementType dtype) {
        check_gradient_packed(suite, head_dim, dtype);
        if (head_dim == 64) check_gradient_mixed_lengths(suite, head_dim, dtype);
    });
}

TEMPLATE_TEST_CASE_SIG("the weights are dropped that the float64 reference drops", "[gpu][gradients][dropout]",
                       ((int head_dim, int tier), head_dim, tier), EVERY_HEAD_DIM_AND_TIER) {
    for_every_dtype(kTiers[tier], head_dim,
                    [](AttentionSuite& suite, ElementType dtype) { check_dropout(suite, head_dim, dtype); });
}

TEMPLATE_TEST_CASE_SIG("gradients are the same again, with a full mask, and for each part of a batch",
                       "[gpu][gradients][field-31][field-40]", ((int head_dim, int tier), head_dim, tier), (64, 0),
                       (64, 1), (64, 2)) {
    for_every_dtype(kTiers[tier], head_dim,
                    [](AttentionSuite& suite, ElementType dtype) { check_gradient_bits(suite, head_dim, dtype); });
}

TEMPLATE_TEST_CASE_SIG("gradients go through strided views", "[gpu][gradients]",
                       ((int head_dim, int tier), head_dim, tier), (64, 0), (64, 1), (64, 2)) {
    for_every_dtype(kTiers[tier], head_dim,
                    [](AttentionSuite& suite, ElementType dtype) { check_gradient_views(suite, head_dim, dtype); });
}

TEST_CASE("every training candidate of a tier agrees with float64, not only the first", "[gpu][gradients][long]") {
    const DeviceInfo& device = open_device("0").info();
    for (const std::string& name : device.tiers()) {
        if (name == "host") continue;
        AttentionSuite suite("0", name);
        for (da::Pass pass : {da::Pass::training_forward, da::Pass::backward})
            for (ElementType dtype : {ElementType(DType::bf16), ElementType(DType::f32), kTf32})
                for (int length : {300, 700}) {
                    da::Problem problem = training_problem(pass, length, 64, dtype, true, 0.1f);
                    problem.position_buckets = 32;
                    problem.max_relative_positions = 64;
                    const TestCase data = da::make_case(problem, da::MaskPattern::holes, {}, 22, true);
                    const Workload workload = da::operation().workload_of(data.problem);
                    const da::Tier& tier = da::find_tier(name);
                    if (!tier.refuse(workload).empty()) continue;
                    for (const Config& config : tier.candidates(workload, device)) {
                        if (!da::operation().filter(workload, config, device).fits) continue;
                        INFO(config.to_string());
                        check_case(suite, data, &config);
                    }
                }
    }
}

// Few and small, so that compute-sanitizer gets through.
TEST_CASE("small training problems touch only what they should", "[gpu][gradients][small]") {
    auto check = [](const std::string& name, int head_dim, ElementType dtype) {
        AttentionSuite suite("0", name);
        for (da::Pass pass : {da::Pass::training_forward, da::Pass::backward})
            for (int length : {1, 33, 150}) {
                da::Problem problem = training_problem(pass, length, head_dim, dtype, true, 0.1f);
                problem.batch = 1;
                problem.position_buckets = 16;
                problem.max_relative_positions = 32;
                const Workload workload = da::operation().workload_of(problem.to_fields());
                if (!da::find_tier(name).refuse(workload).empty()) continue;
                check_case(suite, da::make_case(problem, da::MaskPattern::holes, {}, 41, true));
            }
        da::Problem problem = gradient_problem(1, head_dim, dtype, false);
        if (!da::find_tier(name).refuse(da::operation().workload_of(problem.to_fields())).empty()) return;
        problem.position_buckets = 16;
        problem.max_relative_positions = 32;
        const std::vector<int> lengths = {40, 0, 70};
        check_case(suite, da::make_case(packed_problem(problem, lengths), da::MaskPattern::none, lengths, 8, true));
    };
    for (int head_dim : {32, 64, 128})
        for (const std::string& name : open_device("0").info().tiers()) {
            if (name == "host") continue;
            check(name, head_dim, name == "simt" ? DType::f32 : DType::bf16);
            if (name == "mma") check(name, head_dim, kTf32);
        }
}
