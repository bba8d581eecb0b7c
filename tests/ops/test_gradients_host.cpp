// Training on the CPU device: dropout and every gradient.
#include <cstdio>
#include <set>

#include "catch.h"
#include "device/run_self.h"
#include "gradient_suite.h"
#include "tier.h"
#include "turbotune/base/sha256.h"
#include "turbotune/device/thread_pool.h"
#include "turbotune/ops/disentangled_attention/dropout.h"

using namespace turbotune;
using namespace turbotune::testing;

TEST_CASE("the host tier's gradients agree with float64 at odd lengths", "[gradients][slow]") {
    AttentionSuite suite("cpu", "host");
    check_gradient_lengths(suite, 64, DType::f32);
    check_gradient_lengths(suite, 32, DType::bf16);
    check_gradient_lengths(suite, 128, DType::f16);
}

TEST_CASE("the host tier's gradients agree with float64 under every mask", "[gradients][slow]") {
    AttentionSuite suite("cpu", "host");
    check_gradient_masks(suite, 64, DType::f32);
    check_gradient_masks(suite, 32, DType::bf16);
}

TEST_CASE("the host tier's gradients agree with float64 for every combination of position terms", "[gradients][slow]") {
    AttentionSuite suite("cpu", "host");
    check_gradient_terms(suite, 32, DType::f32);
}

TEST_CASE("the host tier's gradients serve packed batches with empty sequences", "[gradients][slow][field-39]") {
    AttentionSuite suite("cpu", "host");
    check_gradient_packed(suite, 64, DType::f32);
    check_gradient_mixed_lengths(suite, 64, DType::f32);
}

TEST_CASE("the host tier drops the weights that the float64 reference drops", "[gradients][slow][dropout]") {
    AttentionSuite suite("cpu", "host");
    check_dropout(suite, 64, DType::f32);
    check_dropout(suite, 32, DType::bf16);
}

TEST_CASE("the host tier gives the same gradients again, with a full mask, and for each part of a batch",
          "[gradients][slow][field-31][field-40]") {
    AttentionSuite suite("cpu", "host");
    check_gradient_bits(suite, 64, DType::f32);
    check_gradient_bits(suite, 32, DType::bf16);
}

TEST_CASE("the host tier's gradients go through strided views", "[gradients][slow]") {
    AttentionSuite suite("cpu", "host");
    check_gradient_views(suite, 64, DType::bf16);
}

// Far, near and diagonal tiles, queries and keys past the end, and a band that ends within a tile.
TEST_CASE("every training candidate of the host tier agrees with float64", "[gradients][slow]") {
    AttentionSuite suite("cpu", "host");
    for (int length : {64, 129, 700}) {
        da::Problem problem = gradient_problem(length, 64, DType::f32, length != 129, length == 64 ? 0.1f : 0);
        problem.position_buckets = 64;
        problem.max_relative_positions = 128;
        const TestCase data =
            da::make_case(problem, problem.mask ? da::MaskPattern::holes : da::MaskPattern::none, {}, 5, true);
        for (const Config& config :
             da::host_tier().candidates(da::operation().workload_of(data.problem), suite.runtime().device().info())) {
            INFO(config.to_string());
            check_case(suite, data, &config);
        }
    }
}

TEST_CASE("the plain kernels of the CPU device agree with float64 in every pass", "[gradients][slow]") {
    AttentionSuite suite("cpu", "host");
    const Config plain = da::operation().reference_config(suite.runtime().device().info());
    for (da::Pass pass : {da::Pass::training_forward, da::Pass::backward})
        for (bool terms : {true, false}) {
            da::Problem problem = training_problem(pass, 70, 32, DType::f32, terms, 0.25f);
            problem.position_buckets = 16;
            problem.max_relative_positions = 32;
            problem.c2p = problem.p2c = terms;
            check_case(suite,
                       da::make_case(problem, terms ? da::MaskPattern::holes : da::MaskPattern::none, {}, 8, true),
                       &plain);
            const std::vector<int> lengths = {20, 0, 45, 1};
            problem.mask = false;
            check_case(suite, da::make_case(packed_problem(problem, lengths), da::MaskPattern::none, lengths, 9, true),
                       &plain);
        }
}

TEST_CASE("the host tier's gradients serve a long sequence among two hundred short ones", "[gradients][slow]") {
    AttentionSuite suite("cpu", "host");
    std::vector<int> lengths(201, 16);
    lengths[77] = 2048;
    for (float dropout : {0.0f, 0.1f}) {
        const da::Problem problem = packed_problem(gradient_problem(1, 32, DType::f32, false, dropout), lengths);
        check_case(suite, da::make_case(problem, da::MaskPattern::none, lengths, 34, true));
    }
}

TEST_CASE("hidden queries and keys take part in dropout on the host tier", "[gradients][slow][dropout][field-30]") {
    AttentionSuite suite("cpu", "host");
    using enum da::MaskPattern;
    for (da::Pass pass : {da::Pass::training_forward, da::Pass::backward})
        for (da::MaskPattern pattern : {right, left, last_only, all_hidden})
            for (int length : {40, 300})
                check_case(suite, da::make_case(training_problem(pass, length, 32, DType::f32, true, 0.2f), pattern, {},
                                                77, true));
}

TEST_CASE("fast fp32 is computed like strict on the host tier", "[gradients][slow]") {
    AttentionSuite suite("cpu", "host");
    const TestCase strict =
        da::make_case(gradient_problem(140, 32, DType::f32, false), da::MaskPattern::none, {}, 5, true);
    TestCase fast = strict;
    da::Problem problem = da::Problem::from_fields(strict.problem);
    problem.math = da::Math::fast;
    fast.problem = problem.to_fields();
    const NamedTensors want = suite.outputs_of(strict);
    for (const auto& [name, tensor] : suite.outputs_of(fast)) {
        INFO(name);
        CHECK(same_bits(tensor, want.at(name)));
    }
}

// Equal scores and values that are unit vectors: output (i, j) is the weight of key j for query i.
TEST_CASE("the host tier drops exactly the weights of dropout_keep_mask", "[gradients][slow][dropout]") {
    AttentionSuite suite("cpu", "host");
    da::Problem problem = training_problem(da::Pass::training_forward, 117, 128, DType::f32, true, 0.3f);
    TestCase data = da::make_case(problem, da::MaskPattern::holes, {}, 1, false);
    for (auto& [name, tensor] : data.inputs)
        if (name != "mask") std::fill(tensor.data.begin(), tensor.data.end(), std::byte{0});
    const std::int64_t width = std::int64_t{problem.heads} * problem.head_dim;
    for (std::int64_t row = 0; row < std::int64_t{problem.batch} * problem.length; ++row)
        for (int h = 0; h < problem.heads; ++h)
            data.inputs.at("v").set(row * width + h * problem.head_dim + row % problem.length, 1);
    const HostTensor out = suite.outputs_of(data).at("out");
    const HostTensor& mask = data.inputs.at("mask");
    const auto keep = da::dropout_keep_mask(problem, da::kCaseDropoutSeed, da::kCaseDropoutOffset);
    std::size_t at = 0, wrong = 0, dropped = 0;
    for (int b = 0; b < problem.batch; ++b)
        for (int h = 0; h < problem.heads; ++h)
            for (int i = 0; i < problem.length; ++i)
                for (int j = 0; j < problem.length; ++j, ++at) {
                    const std::int64_t row = std::int64_t{b} * problem.length + i;
                    // A hidden query attends every key, a kept one those that are kept.
                    const bool attends = mask.at(row) == 0 || mask.at(std::int64_t{b} * problem.length + j) != 0;
                    const bool weighs = out.at(row * width + h * problem.head_dim + j) != 0;
                    wrong += weighs != (attends && keep[at]);
                    dropped += attends && !keep[at];
                }
    CHECK(wrong == 0);
    CHECK(dropped > 0);
}

TEST_CASE("Child: digest of training", "[.child]") {
    if (!test::is_child()) return;
    AttentionSuite suite("cpu", "host");
    Sha256 digest;
    for (da::Pass pass : {da::Pass::training_forward, da::Pass::backward})
        for (int length : {200, 600}) {
            da::Problem problem = training_problem(pass, length, 32, DType::f32, true, 0.1f);
            problem.batch = 3;
            const TestCase data = da::make_case(problem, da::MaskPattern::holes, {}, 14, true);
            for (const auto& [name, tensor] : suite.outputs_of(data))
                digest.update(tensor.data.data(), tensor.data.size());
        }
    CHECK(ThreadPool::shared().threads() > 0);
    std::printf("digest=%s\n", to_hex(digest.finish()).c_str());
}

TEST_CASE("training on the CPU gives the same bits whatever the number of threads", "[gradients][slow][field-31]") {
    std::set<std::string> digests;
    for (const char* threads : {"1", "2", "7"}) {
        const test::Finished finished =
            test::run_self("Child: digest of training", {{"TURBOTUNE_CPU_THREADS", threads}});
        INFO(finished.output);
        REQUIRE(finished.passed());
        const std::size_t at = finished.output.find("digest=");
        REQUIRE(at != std::string::npos);
        digests.insert(finished.output.substr(at, 7 + 64));
    }
    CHECK(digests.size() == 1);
}
