// The mma tier's kernels of fp32 tensors with tf32 products, without a GPU.
#include "catch.h"
#include "disentangled_attention/params.h"
#include "model_gpus.h"
#include "tier.h"
#include "turbotune/base/error.h"
#include "turbotune/kernel/compiler.h"
#include "turbotune/ops/disentangled_attention/attention.h"
#include "workload.h"

using namespace turbotune;
using namespace turbotune::disentangled_attention;
using namespace turbotune::testing;

namespace {

Problem fast_problem(Pass pass, int head_dim) {
    Problem problem;
    problem.pass = pass;
    problem.dtype = DType::f32;
    problem.math = Math::fast;
    problem.batch = 3;
    problem.heads = 5;
    problem.length = 700;
    problem.head_dim = head_dim;
    return problem;
}

}  // namespace

TEST_CASE("fp32 fast goes to the mma tier first, and to the simt tier where that does not fit", "[tiers]") {
    for (Pass pass : {Pass::inference, Pass::training_forward, Pass::backward}) {
        const Workload workload = workload_of(fast_problem(pass, 64));
        for (const DeviceInfo& device : gpus()) {
            CHECK(operation().heuristic(workload, device).text("tier") == "mma");
            CHECK(operation().candidates(workload, device).back().text("tier") == "simt");
        }
        CHECK(operation().heuristic(workload_of(fast_problem(pass, 128)), gpus()[3]).text("tier") == "simt");
    }
}

TEST_CASE("tf32 configs are checked field by field, and are not those of 16-bit elements", "[tiers]") {
    for (Pass pass : {Pass::inference, Pass::backward}) {
        const Problem problem = fast_problem(pass, 64);
        const Workload workload = workload_of(problem);
        const Config good = mma_tier().candidates(workload, hopper()).at(0);
        CHECK_NOTHROW(mma_tier().resources(workload, good));
        for (const auto& [name, value] : good.entries()) {
            Config wrong = good;
            wrong.set(name, name == "tier" ? FieldValue(std::string("host")) : FieldValue(std::int64_t{48}));
            REQUIRE_THROWS_AS(mma_tier().resources(workload, wrong), InvalidArgument);
        }
        Problem half = problem;
        half.dtype = DType::bf16;
        const Config other = mma_tier().candidates(workload_of(half), hopper()).at(0);
        REQUIRE_THROWS_AS(mma_tier().launches(problem, other, hopper()), InvalidArgument);
    }
}

TEST_CASE("the tf32 backward pass gives dQ before dK and dV, and with position terms the tables last", "[tiers]") {
    for (int head_dim : {32, 64, 128}) {
        Problem problem = fast_problem(Pass::backward, head_dim);
        const Workload workload = workload_of(problem);
        for (const Config& config : mma_tier().candidates(workload, hopper())) {
            INFO(config.to_string());
            const std::vector<KernelLaunch> launches = mma_tier().launches(problem, config, hopper());
            REQUIRE(launches.size() == 4);
            const Resources resources = mma_tier().resources(workload, config);
            for (const KernelLaunch& launch : launches) CHECK(launch.shape.shared_bytes <= resources.shared_bytes);
            for (unsigned i = 0; i < 2; ++i) {
                CHECK(launches[i].spec.parameters.boolean("own_keys") == (i == 1));
                CHECK(launches[i].shape.grid[0] == 15 * 11);  // 64 rows each
            }
            CHECK(launches[2].shape.grid[0] % (5 * 17) == 0);  // heads x diagonals
            BackwardParams params{};
            mma_tier().fill(problem, config, params);
            CHECK(params.regions[5] == 17);  // 505 distances to either side
            CHECK(mma_tier().workspace_bytes(problem, config) > static_cast<std::size_t>(params.regions[3]));
        }
        problem.c2p = problem.p2c = false;
        const Config config = mma_tier().candidates(workload_of(problem), hopper()).at(0);
        CHECK(mma_tier().launches(problem, config, hopper()).size() == 2);
    }
}

// The templates check their shared memory against the launch themselves, by static_assert.
TEST_CASE("the first tf32 candidates compile for every GPU family within the predicted registers",
          "[tiers][nvrtc][slow]") {
    if (!have_nvrtc()) {
        WARN("no NVRTC here: nothing was compiled");
        return;
    }
    auto check = [](Pass pass, int head_dim, const DeviceInfo& device) {
        Problem problem = fast_problem(pass, head_dim);
        problem.mask = head_dim != 64;
        problem.dropout = pass != Pass::inference ? 0.1f : 0.0f;
        const Workload workload = workload_of(problem);
        const Config config = operation().heuristic(workload, device);
        for (const KernelLaunch& launch : find_tier(config.text("tier")).launches(problem, config, device)) {
            INFO(launch.spec.to_string());
            const Image image =
                nvrtc_compiler().compile({render(launch.spec), launch.spec.kernel_name, launch.spec.target, "test"});
            CHECK(image.metadata.registers <= mma_tier().resources(workload, config).registers);
            CHECK(image.log.find("warning") == std::string::npos);
        }
    };
    for (const DeviceInfo& device : gpus()) check(Pass::inference, 64, device);
    for (const DeviceInfo& device : {gpus()[1], gpus()[3]}) check(Pass::backward, 64, device);  // most and least shared
    for (int head_dim : {32, 128})
        for (Pass pass : {Pass::training_forward, Pass::backward}) check(pass, head_dim, hopper());
}
