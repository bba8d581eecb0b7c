// The backward pass of the mma tier without a GPU: configs, checks, workspace, launches, and that its kernels compile
// as predicted.
#include <algorithm>
#include <set>

#include "backward_kernels.h"
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

Problem backward_problem(int length = 700, int head_dim = 64) {
    Problem problem;
    problem.pass = Pass::backward;
    problem.batch = 3;
    problem.heads = 5;
    problem.length = length;
    problem.head_dim = head_dim;
    return problem;
}

Config first_config(const Problem& problem) {
    return mma_tier().candidates(workload_of(problem), gpus()[1]).at(0);
}

}  // namespace

TEST_CASE("every backward workload of the mma tier has a candidate that fits", "[tiers][slow]") {
    for (const DeviceInfo& device : gpus())
        for (const Workload& workload : operation().workloads({Preset::exhaustive,
                                                               {{"pass", {"backward_dq", "backward_dkdv"}},
                                                                {"precision", {"half"}},
                                                                {"head_dim", {"32", "64", "128"}},
                                                                {"relative", {"c2p_p2c", "c2p", "p2c", "none"}}}})) {
            INFO(device.device_class.arch << " " << workload.to_string());
            REQUIRE(mma_tier().refuse(workload) == "");
            std::set<std::string> texts;
            int fitting = 0;
            const std::vector<Config> configs = mma_tier().candidates(workload, device);
            for (const Config& config : configs) {
                texts.insert(config.to_string());
                const Resources resources = mma_tier().resources(workload, config);
                CHECK(resources.threads * resources.registers <= device.registers_per_sm);
                CHECK(operation().filter(workload, config, device).fits ==
                      (resources.shared_bytes <= device.device_class.shared_per_block));
                fitting += resources.shared_bytes <= device.device_class.shared_per_block;
            }
            CHECK(fitting >= 1);
            CHECK(texts.size() == configs.size());
        }
}

TEST_CASE("the first backward candidate depends on the length, not on what fits", "[tiers]") {
    auto first = [](int length, const DeviceInfo& device) {
        return operation().heuristic(workload_of(backward_problem(length)), device);
    };
    for (const DeviceInfo& device : {gpus()[0], gpus().back()}) {  // those without the sm90 tier
        CHECK(first(512, device).text("tier") == "mma");
        CHECK(first(512, device).integer("kv_groups") == 2);
        CHECK(first(8192, device).integer("kv_groups") == 4);
    }
    CHECK(first(512, gpus()[0]).integer("position_tiles") == 2);
    CHECK(first(512, gpus().back()).integer("position_tiles") == 1);  // of 99 KiB
}

TEST_CASE("a backward config of the mma tier is checked field by field", "[tiers]") {
    const Problem problem = backward_problem();
    const Workload workload = workload_of(problem);
    const Config good = first_config(problem);
    auto fault = [&](const Config& config) -> std::string {
        try {
            mma_tier().resources(workload, config);
        } catch (const InvalidArgument& error) {
            return error.argument();
        }
        return "accepted";
    };
    CHECK(fault(good) == "accepted");
    for (const auto& [name, value] : good.entries()) {
        Config without, wrong = good;
        for (const auto& [other, kept] : good.entries())
            if (other != name) without.set(other, kept);
        CHECK(fault(without) == name);
        wrong.set(name, name == "tier" ? FieldValue(std::string("host")) : FieldValue(std::int64_t{48}));
        CHECK(fault(wrong) == name);
    }
    CHECK(fault(Config(good).set("block_m", 64)) == "block_m");  // a field of the forward configs
    CHECK(fault(Config(good).set("block_k", 32)) == "config");   // allowed values that were never a candidate
    Problem forward = problem;
    forward.pass = Pass::inference;
    CHECK(fault(mma_tier().candidates(workload_of(forward), gpus()[1]).at(0)) == "block_q");
}

TEST_CASE("the backward workspace grows with the number of tokens and not with the square of the length", "[tiers]") {
    Problem problem = backward_problem(8192);
    problem.batch = 2;
    problem.heads = 12;
    const Config config = first_config(problem);
    const double bytes = double(mma_tier().workspace_bytes(problem, config));
    const double tensors = 8.0 * 2 * 8192 * 12 * 64 * 2;  // q, k, v, out, dout, dq, dk, dv
    CHECK(bytes + tensors <= 0.9 * (1 << 30));
    for (int length : {4096, 2048, 1024}) {
        problem.length = length;
        problem.batch = 2 * 8192 / length;
        CHECK(double(mma_tier().workspace_bytes(problem, config)) <= 1.02 * bytes);
    }
}

TEST_CASE("regions of the backward workspace are aligned, in order, and inside of it", "[tiers]") {
    for (int length : {1, 64, 65, 700, 3000})
        for (bool packed : {false, true})
            for (auto [c2p, p2c] : {std::pair{true, true}, {true, false}, {false, false}}) {
                Problem problem = backward_problem(length);
                problem.c2p = c2p;
                problem.p2c = p2c;
                if (packed) {
                    problem.layout = Layout::packed;
                    problem.tokens = 2 * length + 1;
                }
                const Config config = first_config(problem);
                BackwardParams params{};
                mma_tier().fill(problem, config, params);
                const auto bytes = static_cast<long long>(mma_tier().workspace_bytes(problem, config));
                CHECK(params.regions[0] == 0);
                for (int i = 0; i < 4; ++i) {
                    CHECK(params.regions[i] % 256 == 0);
                    CHECK(params.regions[i] <= bytes);
                    if (i > 0) CHECK(params.regions[i] >= params.regions[i - 1]);
                }
                // Row statistics: three planes of two floats.
                const std::int64_t rows = problem.heads * (packed ? problem.tokens : 3 * std::int64_t{length});
                CHECK(params.regions[1] >= 24 * rows);
                CHECK((params.regions[2] > params.regions[1]) == (c2p || p2c));
            }
}

TEST_CASE("the backward pass is five launches, three without position terms", "[tiers]") {
    Problem problem = backward_problem(129);
    const Config config = first_config(problem);
    const std::vector<KernelLaunch> launches = mma_tier().launches(problem, config, gpus()[1]);
    REQUIRE(launches.size() == 5);
    CHECK(launches[0].shape.grid[0] == 15 * 5);  // 32 rows each
    for (int i : {1, 2}) {
        CHECK(launches[i].shape.grid[0] == 15 * 3);  // 64 rows each
        CHECK(launches[i].shape.block[0] == 128);
        CHECK(launches[i].spec.parameters.boolean("aligned"));
    }
    CHECK(launches[3].shape.grid[0] % 5 == 0);
    CHECK(launches[4].shape.grid[0] == 2 * 5 * (2 + 512 / 8));
    problem.c2p = problem.p2c = false;
    CHECK(mma_tier().launches(problem, config, gpus()[1]).size() == 3);
    problem.dk = {321 * 129, 321, 64};
    for (const KernelLaunch& launch : mma_tier().launches(problem, config, gpus()[1]))
        CHECK_FALSE(launch.spec.parameters.boolean("aligned"));
    problem.batch = 1 << 20;
    problem.heads = 1 << 10;
    problem.length = 8192;
    REQUIRE_THROWS_AS(mma_tier().launches(problem, config, gpus()[1]), Unsupported);
}

// The templates check their shared memory against the launch themselves, by static_assert.
TEST_CASE("the first backward candidates compile for every GPU family within the predicted registers",
          "[tiers][nvrtc][slow]") {
    if (!have_nvrtc()) {
        WARN("no NVRTC here: nothing was compiled");
        return;
    }
    const std::vector<DeviceInfo> devices = gpus();
    for (std::size_t d = 0; d < devices.size(); ++d)
        for (auto [dtype, head_dim, mask, dropout] : {std::tuple{DType::bf16, 64, false, 0.0f},
                                                      {DType::f16, 32, true, 0.1f},
                                                      {DType::bf16, 128, false, 0.1f}}) {
            const int only[] = {64, 0, 32, 128};  // Hopper compiles all of them
            if (only[d] != 0 && only[d] != head_dim) continue;
            const DeviceInfo& device = devices[d];
            Problem problem = backward_problem(700, head_dim);
            problem.dtype = dtype;
            problem.mask = mask;
            problem.dropout = dropout;
            const Workload workload = workload_of(problem);
            const Config config = operation().heuristic(workload, device);
            for (const KernelLaunch& launch : find_tier("mma").launches(
                     problem, config.text("tier") == "mma" ? config : first_config(problem), device)) {
                INFO(launch.spec.to_string());
                const Image image = nvrtc_compiler().compile(
                    {render(launch.spec), launch.spec.kernel_name, launch.spec.target, "test"});
                CHECK(image.metadata.registers <= 255);
                CHECK(image.log.find("warning") == std::string::npos);
            }
        }
}
