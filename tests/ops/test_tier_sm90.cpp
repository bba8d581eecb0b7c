// The sm90 tier without a GPU: configs, checks, launches, and that its kernels compile as predicted.
#include <algorithm>
#include <set>
#include <tuple>

#include "catch.h"
#include "fitting.h"
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

std::vector<Workload> forward() {
    return operation().workloads({Preset::exhaustive,
                                  {{"pass", {"inference", "training_forward"}},
                                   {"dropout", {"off", "on"}},
                                   {"precision", {"half"}},
                                   {"head_dim", {"32", "64", "128"}},
                                   {"relative", {"c2p_p2c", "c2p", "p2c", "none"}}}});
}

Problem sample(int length = 512, int head_dim = 64) {
    Problem problem;
    problem.batch = 3;
    problem.heads = 5;
    problem.length = length;
    problem.head_dim = head_dim;
    return problem;
}

Config first_config(const Problem& problem) {
    return sm90_tier().candidates(workload_of(problem), hopper()).at(0);
}

}  // namespace

TEST_CASE("every sm90 candidate of every workload fits a Hopper GPU", "[tiers]") {
    for (const Workload& workload : forward()) {
        INFO(workload.to_string());
        REQUIRE(sm90_tier().refuse(workload).empty());
        const std::vector<Config> configs = sm90_tier().candidates(workload, hopper());
        CHECK(configs.size() >= 3);
        CHECK(configs.size() <= 11);
        std::set<std::string> texts;
        for (const Config& config : configs) {
            texts.insert(config.to_string());
            CHECK(config.entries().front().first == "tier");
            const Resources resources = sm90_tier().resources(workload, config);
            CHECK(resources.shared_bytes <= 227 * 1024);
            CHECK(resources.threads * resources.registers <= 65536);
            CHECK(resources.threads == 128 * config.integer("warpgroups") + 128);
        }
        CHECK(texts.size() == configs.size());
    }
}

TEST_CASE("the sm90 tier refuses what it has no kernels for, by name", "[tiers]") {
    auto refusal = [](std::map<std::string, std::vector<std::string>> axes) {
        return sm90_tier().refuse(operation().workloads({Preset::exhaustive, std::move(axes)}).at(0));
    };
    for (const char* precision : {"fp32_strict", "fp32_fast"})
        CHECK(refusal({{"precision", {precision}}, {"pass", {"inference"}}}).find(precision) != std::string::npos);
    CHECK(refusal({{"precision", {"half"}}, {"pass", {"backward_dq"}}, {"head_dim", {"128"}}}).empty());
}

TEST_CASE("a config of the sm90 tier is checked field by field", "[tiers]") {
    const Workload workload = workload_of(sample());
    const Config good = first_config(sample());
    CHECK_NOTHROW(sm90_tier().resources(workload, good));
    auto fault = [&](const Config& config) -> std::string {
        try {
            sm90_tier().resources(workload, config);
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
        wrong.set(name, name == "tier" ? FieldValue(std::string("mma")) : FieldValue(std::int64_t{48}));
        CHECK(fault(wrong) == name);
    }
    CHECK(fault(Config(good).set("colour", 3)) == "colour");
    CHECK(fault(Config(good).set("stages", 4)) == "config");  // on its axis, never a candidate
}

TEST_CASE("resident distance chunks are offered for sequences of one tile only", "[tiers]") {
    Config resident;
    for (const Config& config : sm90_tier().candidates(workload_of(sample(128)), hopper()))
        if (config.integer("resident") == 1) resident = config;
    REQUIRE_FALSE(resident.empty());
    CHECK_NOTHROW(sm90_tier().launches(sample(100), resident, hopper()));
    REQUIRE_THROWS_AS(sm90_tier().launches(sample(129), resident, hopper()), InvalidArgument);
    for (const Config& config : sm90_tier().candidates(workload_of(sample(512)), hopper()))
        CHECK(config.integer("resident") == 0);
}

TEST_CASE("the sm90 tier launches the expansion first, and no more blocks than fit at once", "[tiers]") {
    Problem problem = sample(200);
    const Config config = first_config(problem);
    std::vector<KernelLaunch> launches = sm90_tier().launches(problem, config, hopper());
    REQUIRE(launches.size() == 2);
    const int band = make_slot_table(problem.position_buckets, problem.max_relative_positions).band;
    const unsigned chunks = static_cast<unsigned>((band + 63) / 64 + (band + 126) / 64 + 1);
    CHECK(launches[0].shape.grid[0] == 5 * chunks);
    CHECK(launches[0].spec.kernel_name == "disentangled_attention_expand_positions");
    CHECK(sm90_tier().workspace_bytes(problem, config) == std::size_t{5} * chunks * 64 * 64 * 2 * 2);
    CHECK(launches[1].shape.grid[0] == 2 * 3 * 5);
    CHECK(launches[1].shape.programmatic_launch);
    CHECK(launches[1].shape.shared_bytes == sm90_tier().resources(workload_of(problem), config).shared_bytes);
    CHECK(launches[1].spec.target == "sm_90a");

    problem.length = 8192;
    CHECK(sm90_tier().launches(problem, first_config(problem), hopper()).at(1).shape.grid[0] == 132);

    problem.c2p = problem.p2c = false;
    launches = sm90_tier().launches(problem, first_config(problem), hopper());
    REQUIRE(launches.size() == 1);
    CHECK_FALSE(launches[0].shape.programmatic_launch);
    CHECK(sm90_tier().workspace_bytes(problem, first_config(problem)) == 0);
}

TEST_CASE("the sm90 kernels get aligned rows only when every tensor has them", "[tiers]") {
    Problem problem = sample();
    CHECK(sm90_tier().launches(problem, first_config(problem), hopper()).at(1).spec.parameters.boolean("aligned"));
    problem.position_key = {0, 321, 64};
    for (const KernelLaunch& launch : sm90_tier().launches(problem, first_config(problem), hopper()))
        CHECK_FALSE(launch.spec.parameters.boolean("aligned"));
}

TEST_CASE("the sm90 kernel loads boxes of tensor maps where strides allow", "[tiers]") {
    auto boxes = [](const Problem& problem) {
        const std::vector<KernelLaunch> launches = sm90_tier().launches(problem, first_config(problem), hopper());
        CHECK_FALSE(launches[0].tensor_maps);  // the expansion
        CHECK(launches[1].tensor_maps == launches[1].spec.parameters.boolean("boxes"));
        return launches[1].tensor_maps;
    };
    Problem problem = sample();
    CHECK(boxes(problem));
    problem.k = {0, 320, 64};  // one sequence of keys for all: a map has no step of 0
    CHECK_FALSE(boxes(problem));
    problem.batch = 1;
    CHECK(boxes(problem));
    problem.k = {0, 321, 64};
    CHECK_FALSE(boxes(problem));
}

TEST_CASE("lengths that leave half of a block of 128 rows empty get small sm90 blocks, two for each multiprocessor",
          "[tiers]") {
    for (auto [length, small] : {std::pair{17, true},
                                 {64, true},
                                 {65, false},
                                 {128, false},
                                 {129, true},
                                 {192, true},
                                 {193, false},
                                 {256, false},
                                 {257, true},
                                 {320, true},
                                 {321, false},
                                 {8192, false}}) {
        INFO("length " << length);
        Problem problem = sample(length);
        problem.batch = 100;  // more blocks than the device takes at once
        const Config config = sm90_tier().fitted(problem, first_config(problem));
        const KernelLaunch forward = sm90_tier().launches(problem, config, hopper()).at(1);
        CHECK(forward.spec.parameters.boolean("paired") == small);
        CHECK(forward.shape.block[0] == (small ? 256 : 384));
        CHECK(forward.shape.grid[0] == (small ? 2u : 1u) * static_cast<unsigned>(hopper().device_class.sm_count));
    }
    const Problem wide = sample(129, 128);  // two such blocks do not fit
    CHECK(sm90_tier().fitted(wide, first_config(wide)) == first_config(wide));
    Problem packed = sample(129);
    packed.layout = Layout::packed;  // whose sequences have lengths of their own
    packed.tokens = 400;
    CHECK(sm90_tier().fitted(packed, first_config(packed)) == first_config(packed));
}

TEST_CASE("a winner whose measurement left multiprocessors empty does not serve a grid that fills them", "[tiers]") {
    const Config thin{{"tier", FieldValue(std::string("simt"))}};  // what fit() makes of a winner is all that counts
    auto served = [&](Problem problem, int batch, int matched_heads, const DeviceInfo& device) {
        problem.batch = batch;
        problem.heads = 12;
        problem.tokens = problem.layout == Layout::packed ? std::int64_t{batch} * problem.length : 0;
        Workload matched = workload_of(problem);
        matched.fields.set("batch_heads", matched_heads);
        return fit(problem, matched, thin, device);
    };
    for (const Layout layout : {Layout::padded, Layout::packed}) {
        Problem problem = sample(128);
        problem.layout = layout;
        for (const int batch : {1, 21}) CHECK(served(problem, batch, 32, hopper()).config == thin);
        const Fitted many = served(problem, 22, 32, hopper());  // 264 blocks of 128 rows
        CHECK(many.config == operation().heuristic(workload_of(problem), hopper()));
        CHECK_FALSE(many.why.empty());
        problem.length = 1024;  // 32 heads fill 132 multiprocessors, 8 do not
        CHECK(served(problem, 128, 32, hopper()).why.empty());
        CHECK_FALSE(served(problem, 128, 8, hopper()).why.empty());
    }
    DeviceInfo cpu = hopper();
    cpu.kind = DeviceKind::cpu;
    CHECK(served(sample(128), 128, 32, cpu).why.empty());
}

TEST_CASE("whoever warms a cache for Hopper hears of the problems that get another config than their workload",
          "[tiers]") {
    auto exceptions_of = [](const Workload& workload, const Config& config) {
        std::set<std::string> configs;
        for (const auto& [fields, other] : operation().exceptions(workload, config, hopper())) {
            const Problem problem = Problem::from_fields(fields);
            CHECK(length_family(problem.length) == workload.fields.integer("length"));
            CHECK(fit(problem, workload, config, hopper()).config == other);
            CHECK_FALSE(operation().kernels(fields, other, hopper()).empty());
            configs.insert(other.to_string());
        }
        return configs;
    };
    for (auto [family, tails] : {std::pair{64, false}, {128, false}, {384, true}, {512, false}, {8192, false}}) {
        INFO("family " << family);
        Workload workload = workload_of(sample(family));
        workload.fields.set("batch_heads", 32);
        const Config heuristic = operation().heuristic(workload, hopper());
        CHECK(exceptions_of(workload, heuristic).size() == (tails ? 1 : 0));  // small blocks
    }
}

TEST_CASE("kernels without far tiles serve exactly the problems that have none", "[tiers]") {
    // As key_tiles of sequence.cuh tells tiles apart.
    const auto has_far_tile = [](int length, int band, int rows, int keys) {
        for (int row0 = 0; row0 < length; row0 += rows)
            for (int key0 = 0; key0 < length; key0 += keys)
                if (row0 - (key0 + keys - 1) >= band || row0 + rows - 1 - key0 <= -band) return true;
        return false;
    };
    int without = 0, with = 0;
    for (const auto& [buckets, longest] : {std::pair{256, 512}, {32, 64}, {0, 40}, {16, 32}}) {
        const int band = make_slot_table(buckets, longest).band;
        for (int length = 1; length < 1300; length += 13) {
            Problem problem = sample(length);
            problem.position_buckets = buckets, problem.max_relative_positions = longest;
            for (const Config& config : sm90_tier().candidates(workload_of(problem), hopper())) {
                const int rows = 64 * static_cast<int>(config.integer("warpgroups")),
                          keys = static_cast<int>(config.integer("block_n"));
                for (const KernelLaunch& launch : sm90_tier().launches(problem, config, hopper())) {
                    if (launch.spec.kernel_name != "disentangled_attention_forward_sm90") continue;
                    const bool far = launch.spec.parameters.boolean("far");
                    INFO("length " << length << ", band " << band << ", " << config.to_string());
                    REQUIRE(far == has_far_tile(length, band, rows, keys));
                    ++(far ? with : without);
                }
            }
        }
    }
    CHECK(with > 100);
    CHECK(without > 100);
}

TEST_CASE("compile-ahead knows the kernels of every parity case, with far tiles and without", "[tiers]") {
    for (const char* length : {"128", "384", "512", "1024"})
        for (const Workload& workload : operation().workloads(
                 {Preset::exhaustive,
                  {{"pass", {"inference", "training_forward"}}, {"length", {length}}, {"precision", {"half"}}}})) {
            const Config config = operation().heuristic(workload, hopper());
            std::set<std::string> known;
            for (const Fields& problem : operation().problems(workload, hopper()))
                for (const KernelSpec& spec : operation().kernels(problem, config, hopper()))
                    known.insert(spec.to_string());
            std::vector<TestCase> cases = operation().parity_cases(workload, hopper(), 1);
            cases.push_back(operation().timing_case(workload, hopper(), 1));
            for (const TestCase& each : cases)
                for (const KernelSpec& spec : operation().kernels(each.problem, config, hopper())) {
                    INFO(workload.to_string() << ": " << spec.to_string());
                    CHECK(known.count(spec.to_string()) == 1);
                }
        }
}

// ptxas makes every wgmma wait for the one before it when it cannot prove a pipeline sound, and only says so.
TEST_CASE("the sm90 kernels compile with their wgmma pipelines intact", "[tiers][nvrtc][slow][long]") {
    if (!have_nvrtc()) {
        WARN("no NVRTC here: nothing was compiled");
        return;
    }
    std::set<std::string> seen;
    constexpr Pass inference = Pass::inference, training = Pass::training_forward;
    constexpr Layout padded = Layout::padded, packed = Layout::packed;
    for (auto [dtype, head_dim, length, layout, pass, dropout] :
         {std::tuple{DType::bf16, 64, 512, padded, inference, 0.0},
          {DType::f16, 32, 4096, packed, inference, 0.0},
          {DType::bf16, 128, 512, padded, inference, 0.0},
          {DType::bf16, 64, 128, padded, inference, 0.0},
          {DType::bf16, 64, 64, padded, inference, 0.0},
          {DType::bf16, 64, 300, padded, inference, 0.0},
          {DType::bf16, 64, 512, padded, training, 0.0},
          {DType::bf16, 64, 300, padded, training, 0.1},
          {DType::bf16, 64, 64, padded, training, 0.1},
          {DType::bf16, 64, 512, padded, training, 0.1},
          {DType::f16, 32, 512, packed, inference, 0.0},
          {DType::bf16, 64, 1024, padded, inference, 0.0},  // with far tiles, as those below and of 4096
          {DType::bf16, 64, 1024, padded, training, 0.0},
          {DType::bf16, 64, 1024, padded, training, 0.1},
          {DType::bf16, 64, 700, padded, inference, 0.0},
          {DType::bf16, 64, 700, padded, training, 0.1},
          {DType::bf16, 128, 1024, padded, inference, 0.0}})
        for (bool term : {true, false}) {
            Problem problem = sample(length, head_dim);
            problem.dtype = dtype;
            problem.layout = layout;
            problem.mask = head_dim == 128 || length == 300 || length == 700;
            problem.tokens = layout == Layout::packed ? 100 : 0;
            problem.c2p = term;
            problem.pass = pass;
            problem.dropout = dropout;
            std::vector<Config> configs = sm90_tier().candidates(workload_of(problem), hopper());
            // Every config of the commonest problems; what differs from them shows in the first of the others.
            const bool common = (length == 512 || length == 1024) && head_dim == 64 && pass == inference;
            if (!common || !term) configs.resize(head_dim == 128 && term ? 3 : 1);
            if (!term && length != 512) continue;
            for (const Config& config : configs)
                for (const KernelLaunch& launch : sm90_tier().launches(problem, config, hopper())) {
                    if (!seen.insert(launch.spec.to_string()).second) continue;
                    INFO(launch.spec.to_string());
                    const Image image = nvrtc_compiler().compile(
                        {render(launch.spec), launch.spec.kernel_name, launch.spec.target, "test"});
                    const bool paired = launch.spec.parameters.boolean("paired");  // two of a multiprocessor
                    CHECK(image.metadata.registers * launch.shape.block[0] <= (paired ? 32768 : 65536));
                    CHECK(image.log.find("Potential Performance Loss") == std::string::npos);
                    CHECK(image.log.find("warning") == std::string::npos);
                }
        }
}
