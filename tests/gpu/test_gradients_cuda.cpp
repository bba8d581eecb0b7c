#include "../ops/gradient_suite.h"
#include "catch.h"
#include "tier.h"

using namespace turbotune;
using namespace turbotune::testing;

namespace {

// Calls check for every tier of the device and every element type that it trains.
template <class Check>
void for_every_training_tier(int head_dim, Check check) {
    int served = 0;
    for (const std::string& name : open_device("0").info().tiers()) {
        AttentionSuite suite("0", name);
        for (DType dtype : {DType::bf16, DType::f16, DType::f32}) {
            const Workload workload =
                da::operation().workload_of(gradient_problem(64, head_dim, dtype, false).to_fields());
            if (name == "host" || !da::find_tier(name).refuse(workload).empty()) continue;
            INFO("tier " << name);
            check(suite, dtype);
            ++served;
        }
    }
    CHECK(served >= 5);  // simt all three, and at least one tensor-core tier both half types
}

}  // namespace

TEST_CASE("every tier's gradients agree with float64 at odd lengths", "[gpu][gradients]") {
    for (int head_dim : {32, 64, 128})
        for_every_training_tier(
            head_dim, [&](AttentionSuite& suite, DType dtype) { check_gradient_lengths(suite, head_dim, dtype); });
}

TEST_CASE("every tier's gradients agree with float64 under every mask", "[gpu][gradients][field-30]") {
    for (int head_dim : {32, 64, 128})
        for_every_training_tier(
            head_dim, [&](AttentionSuite& suite, DType dtype) { check_gradient_masks(suite, head_dim, dtype); });
}

TEST_CASE("every tier's gradients agree with float64 for every combination of position terms", "[gpu][gradients]") {
    for (int head_dim : {32, 64, 128})
        for_every_training_tier(
            head_dim, [&](AttentionSuite& suite, DType dtype) { check_gradient_terms(suite, head_dim, dtype); });
}

TEST_CASE("every tier's gradients serve packed batches with empty sequences", "[gpu][gradients][field-39]") {
    for (int head_dim : {32, 64, 128})
        for_every_training_tier(head_dim, [&](AttentionSuite& suite, DType dtype) {
            check_gradient_packed(suite, head_dim, dtype);
            if (head_dim == 64) check_gradient_mixed_lengths(suite, head_dim, dtype);
        });
}

TEST_CASE("every tier drops the weights that the float64 reference drops", "[gpu][gradients][dropout]") {
    for (int head_dim : {32, 64, 128})
        for_every_training_tier(head_dim,
                                [&](AttentionSuite& suite, DType dtype) { check_dropout(suite, head_dim, dtype); });
}

TEST_CASE("every tier gives the same gradients again, with a full mask, and for each part of a batch",
          "[gpu][gradients][field-31][field-40]") {
    for_every_training_tier(64, [&](AttentionSuite& suite, DType dtype) { check_gradient_bits(suite, 64, dtype); });
}

TEST_CASE("every tier's gradients go through strided views", "[gpu][gradients]") {
    for_every_training_tier(64, [&](AttentionSuite& suite, DType dtype) { check_gradient_views(suite, 64, dtype); });
}

TEST_CASE("every training candidate of a tier agrees with float64, not only the first", "[gpu][gradients]") {
    const DeviceInfo& device = open_device("0").info();
    for (const std::string& name : device.tiers()) {
        if (name == "host") continue;
        AttentionSuite suite("0", name);
        for (da::Pass pass : {da::Pass::training_forward, da::Pass::backward})
            for (DType dtype : {DType::bf16, DType::f32})
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
    for (int head_dim : {32, 64, 128})
        for (const std::string& name : open_device("0").info().tiers()) {
            if (name == "host") continue;
            AttentionSuite suite("0", name);
            const DType dtype = name == "simt" ? DType::f32 : DType::bf16;
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
            if (!da::find_tier(name).refuse(da::operation().workload_of(problem.to_fields())).empty()) continue;
            problem.position_buckets = 16;
            problem.max_relative_positions = 32;
            const std::vector<int> lengths = {40, 0, 70};
            check_case(suite, da::make_case(packed_problem(problem, lengths), da::MaskPattern::none, lengths, 8, true));
        }
}
