#include "catch.h"
#include "random_problems.h"

using namespace turbotune;
using namespace turbotune::testing;

TEST_CASE("the host tier agrees with float64 at odd lengths", "[attention][slow]") {
    AttentionSuite suite("cpu", "host");
    check_lengths(suite, 64, DType::f32);
    check_lengths(suite, 32, DType::bf16);
}

TEST_CASE("the host tier agrees with float64 under every mask", "[attention][slow]") {
    AttentionSuite suite("cpu", "host");
    check_masks(suite, 64, DType::f32);
    check_masks(suite, 128, DType::f16);
}

TEST_CASE("the host tier agrees with float64 for every combination of position terms", "[attention][slow]") {
    AttentionSuite suite("cpu", "host");
    check_terms(suite, 32, DType::f32);
}

TEST_CASE("the host tier serves packed batches with empty sequences", "[attention]") {
    AttentionSuite suite("cpu", "host");
    check_packed(suite, 64, DType::f32);
}

TEST_CASE("the host tier reads and writes strided views in place", "[attention]") {
    AttentionSuite suite("cpu", "host");
    check_strided_views(suite, 64, DType::bf16);
    check_unaligned_rows(suite, 32, DType::bf16);
}

TEST_CASE("the host tier gives the same bits again, with a full mask, and for each part of a batch",
          "[attention][field-31][field-40]") {
    AttentionSuite suite("cpu", "host");
    check_bitwise(suite, 64, DType::f32);
}

TEST_CASE("the host tier stays finite with large activations", "[attention][field-36]") {
    AttentionSuite suite("cpu", "host");
    check_large_activations(suite, DType::f16);
}

TEST_CASE("the host tier follows scores that grow along the keys", "[attention]") {
    AttentionSuite suite("cpu", "host");
    for (DType dtype : {DType::f32, DType::bf16}) check_growing_scores(suite, 64, dtype);
}

TEST_CASE("a plan refuses buffers that it cannot use, by name", "[attention]") {
    AttentionSuite suite("cpu", "host");
    const da::Problem problem = random_problem(8, 32, DType::f32, true);
    const da::AttentionPlan plan = suite.plan_of(problem);
    std::vector<float> data(2 * 2 * 8 * 32 * 4 + 512 * 64 + 64);
    std::vector<std::uint8_t> keep(16, 1);
    auto fault = [&](auto change) -> std::string {
        da::Buffers buffers;
        buffers.q = buffers.k = buffers.v = buffers.position_key = buffers.position_query = data.data();
        buffers.out = data.data() + 512 * 64;
        buffers.mask = keep.data();
        change(buffers);
        try {
            plan.execute(buffers);
        } catch (const InvalidArgument& error) {
            return error.argument();
        }
        return "accepted";
    };
    CHECK(fault([](da::Buffers&) {}) == "accepted");
    CHECK(fault([](da::Buffers& b) { b.q = nullptr; }) == "q");
    CHECK(fault([](da::Buffers& b) { b.k = nullptr; }) == "k");
    CHECK(fault([](da::Buffers& b) { b.v = nullptr; }) == "v");
    CHECK(fault([](da::Buffers& b) { b.out = nullptr; }) == "out");
    CHECK(fault([](da::Buffers& b) { b.mask = nullptr; }) == "mask");
    CHECK(fault([](da::Buffers& b) { b.position_key = nullptr; }) == "position_key");
    CHECK(fault([](da::Buffers& b) { b.position_query = nullptr; }) == "position_query");
    CHECK(fault([](da::Buffers& b) { b.q = static_cast<const char*>(b.q) + 1; }) == "q");
}

TEST_CASE("passes and problems without kernels are refused before anything is compiled", "[attention]") {
    Runtime runtime(private_options("cpu"));
    da::Problem problem = random_problem(8, 32, DType::f32, false);
    problem.dropout = 0.1f;
    REQUIRE_THROWS_AS(da::AttentionPlan::create(runtime, problem), InvalidArgument);
    problem = random_problem(8, 33, DType::f32, false);
    REQUIRE_THROWS_AS(da::AttentionPlan::create(runtime, problem), Unsupported);
    problem = random_problem(0, 32, DType::f32, false);
    REQUIRE_THROWS_AS(da::AttentionPlan::create(runtime, problem), InvalidArgument);
    CHECK(runtime.kernels().statistics().compiles == 0);
}

TEST_CASE("a config from elsewhere is refused when it is not one that could have been chosen", "[attention]") {
    Runtime runtime(private_options("cpu"));
    const da::Problem problem = random_problem(8, 32, DType::f32, false);
    Config config = config_of_tier(runtime, "host", problem.to_fields());
    config.set("tier", "mma");
    REQUIRE_THROWS_AS(da::AttentionPlan::create(runtime, problem, &config), Unsupported);
    config = config_of_tier(runtime, "host", problem.to_fields());
    config.set("block_m", -8);
    REQUIRE_THROWS_AS(da::AttentionPlan::create(runtime, problem, &config), InvalidArgument);
    config = config_of_tier(runtime, "host", problem.to_fields());
    config.set("colour", 3);
    REQUIRE_THROWS_AS(da::AttentionPlan::create(runtime, problem, &config), InvalidArgument);
}

TEST_CASE("sequence boundaries that lead outside of the tensors are refused on the CPU", "[attention]") {
    AttentionSuite suite("cpu", "host");
    da::Problem problem = random_problem(60, 32, DType::f32, false);
    problem.layout = da::Layout::packed;
    problem.batch = 3;
    problem.tokens = 100;
    const da::AttentionPlan plan = suite.plan_of(problem);
    std::vector<float> rows(100 * 64), out(100 * 64), table(512 * 64);
    da::Buffers buffers;
    buffers.q = buffers.k = buffers.v = rows.data();
    buffers.position_key = buffers.position_query = table.data();
    buffers.out = out.data();
    for (std::vector<std::int32_t> bounds :
         {std::vector{0, 50, 60, 1000}, {0, 50, 40, 100}, {-5, 0, 50, 100}, {0, 61, 80, 100}}) {
        buffers.cu_seqlens = bounds.data();
        REQUIRE_THROWS_AS(plan.execute(buffers), InvalidArgument);
    }
    const std::vector<std::int32_t> good = {0, 50, 60, 100};
    buffers.cu_seqlens = good.data();
    REQUIRE_NOTHROW(plan.execute(buffers));
}
