// The CUDA tiers without a GPU: what they offer, what they refuse, and that their kernels compile as predicted.
#include <algorithm>
#include <set>

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

std::vector<Workload> workloads_of(const char* pass, const char* precision) {
    return operation().workloads({Preset::exhaustive,
                                  {{"pass", {pass}},
                                   {"precision", {precision}},
                                   {"head_dim", {"32", "64", "128"}},
                                   {"relative", {"c2p_p2c", "c2p", "p2c", "none"}}}});
}

Workload one_workload(const char* head_dim = "64", const char* precision = "half", const char* pass = "inference") {
    return operation()
        .workloads({Preset::standard,
                    {{"pass", {pass}},
                     {"precision", {precision}},
                     {"layout", {"padded"}},
                     {"length", {"512"}},
                     {"head_dim", {head_dim}}}})
        .at(0);
}

void check_candidates(const Tier& tier, const char* pass, const char* precision, std::size_t fewest) {
    for (const DeviceInfo& device : gpus())
        for (const Workload& workload : workloads_of(pass, precision)) {
            INFO(device.device_class.arch << " " << workload.to_string());
            REQUIRE(tier.refuse(workload).empty());
            const std::vector<Config> configs = tier.candidates(workload, device);
            std::set<std::string> texts;
            std::size_t fitting = 0;
            for (const Config& config : configs) {
                texts.insert(config.to_string());
                CHECK(config.entries().front().first == "tier");
                const Resources resources = tier.resources(workload, config);
                CHECK(resources.shared_bytes > 0);
                CHECK(resources.registers <= 255);
                const Verdict verdict = operation().filter(workload, config, device);
                const bool fits = resources.shared_bytes <= device.device_class.shared_per_block &&
                                  resources.threads * resources.registers <= device.registers_per_sm;
                CHECK(verdict.fits == fits);
                CHECK(verdict.reason.empty() == fits);
                fitting += fits;
            }
            CHECK(fitting >= fewest);
            CHECK(operation().filter(workload, operation().heuristic(workload, device), device).fits);
            CHECK(texts.size() == configs.size());
        }
}

}  // namespace

TEST_CASE("every mma candidate of every workload fits, or the filter says what it needs", "[tiers][slow]") {
    // head_dim 128 in 99 KiB leaves one, and of fp32 none: the simt tier serves it.
    check_candidates(mma_tier(), "inference", "half", 1);
    for (const char* pass : {"inference", "training_forward", "backward_dq"})
        check_candidates(mma_tier(), pass, "fp32_fast", 0);
}

TEST_CASE("every simt candidate of every workload fits, or the filter says what it needs", "[tiers][slow]") {
    check_candidates(simt_tier(), "inference", "fp32_strict", 4);
    check_candidates(simt_tier(), "training_forward", "fp32_fast", 4);
    check_candidates(simt_tier(), "inference", "half", 4);
    // head_dim 128 in 99 KiB leaves one.
    for (const char* precision : {"half", "fp32_strict", "fp32_fast"})
        check_candidates(simt_tier(), "backward_dq", precision, 1);
}

TEST_CASE("what the CUDA tiers have no kernels for is refused by name", "[tiers]") {
    auto refusal = [](const Tier& tier, std::map<std::string, std::vector<std::string>> axes) {
        return tier.refuse(operation().workloads({Preset::exhaustive, std::move(axes)}).at(0));
    };
    for (const char* pass : {"inference", "backward_dq"})
        CHECK(refusal(mma_tier(), {{"precision", {"fp32_strict"}}, {"pass", {pass}}}).find("fp32_strict") !=
              std::string::npos);
    for (const Tier* tier : {&simt_tier(), &reference_tier()})
        for (const char* pass : {"inference", "training_forward", "backward_dq", "backward_dkdv"})
            for (const char* precision : {"half", "fp32_strict", "fp32_fast"})
                CHECK(refusal(*tier, {{"precision", {precision}}, {"pass", {pass}}}) == "");
    for (const char* precision : {"half", "fp32_fast"})
        for (const char* pass : {"inference", "training_forward", "backward_dq", "backward_dkdv"})
            CHECK(refusal(mma_tier(), {{"precision", {precision}}, {"pass", {pass}}}) == "");
}

TEST_CASE("a config of a CUDA tier is checked field by field", "[tiers]") {
    for (auto [tier, pass] : {std::pair{&mma_tier(), "inference"},
                              {&simt_tier(), "inference"},
                              {&simt_tier(), "backward_dkdv"},
                              {&reference_tier(), "backward_dkdv"}}) {
        INFO(tier->name() << " " << pass);
        const Workload workload = one_workload("64", "half", pass);
        const Config good = tier->candidates(workload, gpus()[1]).at(0);
        CHECK_NOTHROW(tier->resources(workload, good));
        auto fault = [&, tier = tier](const Config& config) -> std::string {
            try {
                tier->resources(workload, config);
            } catch (const InvalidArgument& error) {
                return error.argument();
            }
            return "accepted";
        };
        for (const auto& [name, value] : good.entries()) {
            Config without, wrong = good;
            for (const auto& [other, kept] : good.entries())
                if (other != name) without.set(other, kept);
            CHECK(fault(without) == name);
            wrong.set(name, name == "tier" ? FieldValue(std::string("host")) : FieldValue(std::int64_t{48}));
            CHECK(fault(wrong) == name);
        }
        CHECK(fault(Config(good).set("colour", 3)) == "colour");
    }
}

TEST_CASE("allowed values in a combination that was never a candidate are refused", "[tiers]") {
    Config config = mma_tier().candidates(one_workload(), gpus()[1]).at(0);
    config.set("block_m", 32).set("warps", 8);  // four rows to a warp
    REQUIRE_THROWS_AS(mma_tier().resources(one_workload(), config), InvalidArgument);
    config = simt_tier().candidates(one_workload(), gpus()[1]).at(0);
    config.set("block_m", 32).set("block_n", 64);
    REQUIRE_THROWS_AS(simt_tier().resources(one_workload(), config), InvalidArgument);
    const Workload backward = one_workload("64", "half", "backward_dq");
    config = simt_tier().candidates(backward, gpus()[1]).at(0);
    config.set("block", 64).set("blocks_per_sm", 6);
    REQUIRE_THROWS_AS(simt_tier().resources(backward, config), InvalidArgument);
    config = simt_tier().candidates(backward, gpus()[1]).at(0);
    REQUIRE_THROWS_AS(simt_tier().resources(one_workload("128", "half", "backward_dq"), config), InvalidArgument);
}

TEST_CASE("few heads and short sequences are given shorter blocks first", "[tiers]") {
    auto first = [](const char* batch_heads, const char* length) {
        const Workload workload = operation()
                                      .workloads({Preset::exhaustive,
                                                  {{"pass", {"inference"}},
                                                   {"precision", {"half"}},
                                                   {"layout", {"padded"}},
                                                   {"batch_heads", {batch_heads}},
                                                   {"length", {length}}}})
                                      .at(0);
        return mma_tier().candidates(workload, gpus()[1]).at(0).integer("block_m");
    };
    CHECK(first("8", "128") < first("32", "8192"));
    CHECK(first("8", "512") <= 64);
}

TEST_CASE("launches cover every query row, and pass rows that are not aligned to the slow path", "[tiers]") {
    const DeviceInfo device = gpus()[1];
    Problem problem;
    problem.batch = 3;
    problem.heads = 5;
    problem.length = 129;
    for (const Tier* tier : {&mma_tier(), &simt_tier()}) {
        const Workload workload = workload_of(problem);
        for (const Config& config : tier->candidates(workload, device)) {
            const auto block_m = static_cast<unsigned>(config.integer("block_m"));
            const KernelLaunch launch = tier->launches(problem, config, device).at(0);
            CHECK(launch.shape.grid[0] == (129 + block_m - 1) / block_m * 15);
            CHECK(launch.shape.block[0] == static_cast<unsigned>(tier->resources(workload, config).threads));
            CHECK(launch.shape.shared_bytes == tier->resources(workload, config).shared_bytes);
            CHECK(launch.spec.parameters.boolean("aligned"));
        }
        Problem odd = problem;
        odd.k = {321 * 129, 321, 64};
        const Config config = tier->candidates(workload, device).at(0);
        CHECK_FALSE(tier->launches(odd, config, device).at(0).spec.parameters.boolean("aligned"));
        odd.k = {328 * 129, 328, 64};
        CHECK(tier->launches(odd, config, device).at(0).spec.parameters.boolean("aligned"));
    }
    problem.batch = 1 << 20;
    problem.heads = 1 << 10;
    problem.length = 8192;
    const Config config = mma_tier().candidates(workload_of(problem), device).at(0);
    REQUIRE_THROWS_AS(mma_tier().launches(problem, config, device), Unsupported);
}

TEST_CASE("the backward pass gives dQ before dK and dV, and with position terms the tables last", "[tiers]") {
    const DeviceInfo device = gpus()[1];
    Problem problem;
    problem.pass = Pass::backward;
    problem.batch = 3;
    problem.heads = 5;
    problem.length = 129;
    problem.dropout = 0.1f;
    const Tier& tier = simt_tier();
    const Workload workload = workload_of(problem);
    for (const Config& config : tier.candidates(workload, device)) {
        INFO(config.to_string());
        const auto block = static_cast<unsigned>(config.integer("block")), tiles = (129 + block - 1) / block;
        const std::vector<KernelLaunch> launches = tier.launches(problem, config, device);
        REQUIRE(launches.size() == 4);
        for (unsigned i = 0; i < 2; ++i) {
            CHECK(launches[i].spec.parameters.boolean("own_keys") == (i == 1));
            CHECK(launches[i].shape.grid[0] == 15 * tiles);
            CHECK(launches[i].shape.shared_bytes == tier.resources(workload, config).shared_bytes);
        }
        CHECK(launches[2].shape.grid[0] % (5 * (2 * tiles - 1)) == 0);  // heads x diagonals
        CHECK(launches[3].shape.grid[0] == 2 * 5 * 512);
        BackwardParams params{};
        tier.fill(problem, config, params);
        CHECK(params.regions[5] == 2 * tiles - 1);
        for (int i = 1; i < 4; ++i) {
            CHECK(params.regions[i] % 256 == 0);
            CHECK(params.regions[i] > params.regions[i - 1]);
        }
        CHECK(tier.workspace_bytes(problem, config) > static_cast<std::size_t>(params.regions[3]));
    }
    problem.c2p = problem.p2c = false;
    const Config config = tier.candidates(workload, device).at(0);
    CHECK(tier.launches(problem, config, device).size() == 2);
    CHECK(tier.workspace_bytes(problem, config) >= 4u * 15 * 129);
}

TEST_CASE("the workspace of the backward pass grows with tokens, not with their square", "[tiers]") {
    Problem problem;
    problem.pass = Pass::backward;
    problem.batch = 4;
    problem.heads = 12;
    problem.length = 2048;
    const Config config = simt_tier().candidates(workload_of(problem), gpus()[1]).at(0);
    const std::size_t at_2048 = simt_tier().workspace_bytes(problem, config);
    problem.length = 8192;
    const std::size_t at_8192 = simt_tier().workspace_bytes(problem, config);
    CHECK(at_8192 < 4 * at_2048);
    CHECK(at_8192 < 100u << 20);
}

TEST_CASE("the reference has one template for GPUs and one for the CPU", "[tiers]") {
    Problem problem;
    problem.batch = 2;
    problem.heads = 3;
    problem.length = 33;
    const Config config = reference_tier().candidates(workload_of(problem), gpus()[0]).at(0);
    KernelLaunch launch = reference_tier().launches(problem, config, gpus()[0]).at(0);
    CHECK(launch.spec.template_path == "disentangled_attention/forward_reference.cu");
    CHECK(launch.shape.grid[0] == 2 * 3 * 33);
    DeviceInfo cpu;
    cpu.kind = DeviceKind::cpu;
    launch = reference_tier().launches(problem, config, cpu).at(0);
    CHECK(launch.spec.template_path == "disentangled_attention/forward_reference.cpp");
    CHECK(launch.shape.grid[0] == 2 * 3 * 3);
    problem.pass = Pass::backward;
    CHECK(reference_tier().launches(problem, config, gpus()[0]).size() == 3);
    for (const KernelLaunch& part : reference_tier().launches(problem, config, gpus()[0]))
        CHECK(part.spec.template_path == "disentangled_attention/backward_reference.cu");
}

// The templates check their shared memory against the launch themselves, by static_assert.
TEST_CASE("the first candidates compile for every GPU family within the predicted registers", "[tiers][nvrtc][slow]") {
    if (!have_nvrtc()) {
        WARN("no NVRTC here: nothing was compiled");
        return;
    }
    struct Kernels {
        const Tier* tier;
        Pass pass;
        DType dtype;
        int head_dim;
    };
    const Kernels kernels[] = {
        {&mma_tier(), Pass::inference, DType::bf16, 64},        {&mma_tier(), Pass::inference, DType::f16, 32},
        {&mma_tier(), Pass::inference, DType::bf16, 128},       {&simt_tier(), Pass::inference, DType::f32, 64},
        {&simt_tier(), Pass::training_forward, DType::f16, 32}, {&simt_tier(), Pass::backward, DType::f32, 64},
        {&simt_tier(), Pass::backward, DType::bf16, 128},       {&reference_tier(), Pass::inference, DType::f32, 128},
        {&reference_tier(), Pass::backward, DType::f32, 64},
    };
    // Hopper compiles all of them, A100 every second one, the newer GPUs the others.
    const std::vector<DeviceInfo> devices = gpus();
    for (std::size_t d = 0; d < devices.size(); ++d)
        for (std::size_t i = 0; i < std::size(kernels); ++i) {
            if (d != 1 && i % 2 != d / 2) continue;
            const DeviceInfo& device = devices[d];
            const Kernels& k = kernels[i];
            Problem problem;
            problem.length = 512;
            problem.batch = 4;
            problem.heads = 12;
            problem.pass = k.pass;
            problem.dtype = k.dtype;
            problem.head_dim = k.head_dim;
            problem.mask = k.head_dim != 64;
            problem.dropout = k.pass != Pass::inference && k.head_dim != 64 ? 0.1f : 0.0f;
            const Workload workload = workload_of(problem);
            const Config config = k.tier->candidates(workload, device).at(0);
            for (const KernelLaunch& launch : k.tier->launches(problem, config, device)) {
                INFO(launch.spec.to_string());
                const Image image = nvrtc_compiler().compile(
                    {render(launch.spec), launch.spec.kernel_name, launch.spec.target, "test"});
                CHECK(image.metadata.registers <= k.tier->resources(workload, config).registers);
                CHECK(image.metadata.static_shared_bytes <= 40960);
                CHECK(image.log.find("warning") == std::string::npos);
            }
        }
}
