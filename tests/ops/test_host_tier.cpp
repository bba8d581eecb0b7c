// The host tier's configs: which workloads it serves, what its candidates need, what it refuses, what it launches.
#include <algorithm>
#include <set>

#include "attention_suite.h"
#include "cases.h"
#include "catch.h"
#include "tier.h"
#include "turbotune/base/error.h"
#include "turbotune/kernel/compiler.h"
#include "workload.h"

using namespace turbotune;
namespace da = turbotune::disentangled_attention;

namespace {

constexpr const char* kPasses[] = {"inference", "training_forward", "backward_dq", "backward_dkdv"};

Workload workload(const char* layout = "padded", int length = 512, int head_dim = 64,
                  const char* precision = "fp32_strict", const char* pass = "inference") {
    Workload made;
    made.operation = "disentangled_attention";
    made.fields.set("pass", pass);
    made.fields.set("layout", layout);
    made.fields.set("length", length);
    made.fields.set("batch_heads", 32);
    made.fields.set("head_dim", head_dim);
    made.fields.set("precision", precision);
    made.fields.set("relative", "c2p_p2c");
    made.fields.set("dropout", FieldValue(false));
    return made;
}

DeviceInfo cpu(const std::string& arch = "x86_64-avx512", std::int64_t l2_bytes = 1 << 20) {
    DeviceInfo device;
    device.kind = DeviceKind::cpu;
    device.device_class.arch = arch;
    device.device_class.sm_count = 2;
    device.device_class.shared_per_block = l2_bytes;
    return device;
}

Config good_config() {
    return da::host_tier().candidates(workload(), cpu()).front();
}

std::string argument_at_fault(const Config& config) {
    try {
        da::host_tier().resources(workload(), config);
    } catch (const InvalidArgument& error) {
        return error.argument();
    }
    return "accepted";
}

}  // namespace

TEST_CASE("the host tier serves every pass, layout and precision, and says why not otherwise", "[host][tier]") {
    const da::Tier& tier = da::host_tier();
    for (const char* pass : kPasses)
        for (const char* layout : {"padded", "padded_masked", "packed"})
            for (const char* precision : {"half", "fp32_strict", "fp32_fast"})
                for (int head_dim : {32, 64, 128}) {
                    Workload asked = workload(layout, 64, head_dim, precision, pass);
                    CHECK(tier.refuse(asked) == "");
                    asked.fields.set("dropout", FieldValue(true));
                    CHECK(tier.refuse(asked) == "");
                }
    CHECK(tier.refuse(workload("padded", 64, 48)).find("48") != std::string::npos);
    CHECK(tier.refuse(workload("ragged")).find("ragged") != std::string::npos);
    CHECK(tier.refuse(workload("padded", 64, 64, "half", "sideways")).find("sideways") != std::string::npos);
}

TEST_CASE("every host candidate is distinct, carries its tier first, and passes its own check", "[host][tier]") {
    const da::Tier& tier = da::host_tier();
    for (const char* arch : {"x86_64-avx512", "x86_64-avx2", "aarch64-neon", "riscv64"})
        for (const char* pass : kPasses)
            for (int length : {64, 128, 512, 8192})
                for (int head_dim : {32, 64, 128}) {
                    const Workload asked = workload("padded", length, head_dim, "fp32_strict", pass);
                    const std::vector<Config> configs = tier.candidates(asked, cpu(arch));
                    INFO(arch << " " << pass << " length " << length);
                    CHECK(configs.size() >= (length == 64 ? 3u : 6u));
                    CHECK(configs.size() <= 12u);
                    std::set<std::string> texts;
                    for (const Config& config : configs) {
                        texts.insert(config.to_string());
                        CHECK(config.entries().front().first == "tier");
                        CHECK(config.text("tier") == "host");
                        CHECK(config.integer("block_m") <= std::max(64, length));
                        const Resources resources = tier.resources(asked, config);
                        CHECK(resources.threads == 1);
                        CHECK(resources.registers == 0);
                        CHECK(resources.shared_bytes > 0);
                        CHECK(resources.shared_bytes % 64 == 0);
                    }
                    CHECK(texts.size() == configs.size());
                }
}

TEST_CASE("host candidates whose scratch overflows the L2 cache come last", "[host][tier]") {
    const da::Tier& tier = da::host_tier();
    const std::int64_t l2 = 512 << 10;
    const Workload asked = workload("padded", 2048, 128);
    bool overflowed = false, fitted = false;
    for (const Config& config : tier.candidates(asked, cpu("x86_64-avx512", l2))) {
        const bool fits = tier.resources(asked, config).shared_bytes <= l2;
        if (overflowed) CHECK_FALSE(fits);
        overflowed |= !fits;
        fitted |= fits;
    }
    CHECK(overflowed);
    CHECK(fitted);
}

TEST_CASE("sixteen vector registers get smaller register tiles", "[host][tier]") {
    for (const char* pass : kPasses)
        for (const Config& config :
             da::host_tier().candidates(workload("padded", 512, 64, "fp32_strict", pass), cpu("x86_64-avx2")))
            CHECK(config.integer("micro_rows") * config.integer("micro_vectors") <= 12);
}

TEST_CASE("a host config with a missing, foreign or impossible field is refused by its name", "[host][tier]") {
    CHECK(argument_at_fault(good_config()) == "accepted");
    for (const char* axis : {"block_m", "block_n", "micro_rows", "micro_vectors"})
        for (std::int64_t value : {0, -64, 1, 7, 100, 65536})
            CHECK(argument_at_fault(Config(good_config()).set(axis, FieldValue(value))) == axis);
    CHECK(argument_at_fault(Config(good_config()).set("stages", 2)) == "stages");
    CHECK(argument_at_fault(Config(good_config()).set("tier", "simt")) == "tier");
    const Config whole = good_config();
    for (const auto& [name, value] : whole.entries()) {
        Config partial;
        for (const auto& [other, kept] : whole.entries())
            if (other != name) partial.set(other, kept);
        CHECK_THROWS_AS(da::host_tier().resources(workload(), partial), InvalidArgument);
    }
    CHECK_THROWS_AS(da::host_tier().resources(workload(), Config(good_config()).set("block_m", "64")), InvalidArgument);
}

TEST_CASE("a backward config of the host tier is checked by its own fields", "[host][tier]") {
    const da::Tier& tier = da::host_tier();
    const Workload asked = workload("padded", 512, 64, "fp32_strict", "backward_dkdv");
    const Config good = tier.candidates(asked, cpu()).front();
    for (std::int64_t value : {0, 3, 8, 64})
        CHECK_THROWS_AS(tier.resources(asked, Config(good).set("key_parts", FieldValue(value))), InvalidArgument);
    CHECK_THROWS_AS(tier.resources(asked, good_config()), InvalidArgument);  // of the forward pass
    CHECK_THROWS_AS(tier.resources(workload(), good), InvalidArgument);
}

TEST_CASE("the parts of the host tier's first guess of a backward pass follow from the length alone", "[host][tier]") {
    const da::Tier& tier = da::host_tier();
    for (int length : {64, 512, 1024, 8192}) {
        std::set<std::int64_t> parts;
        for (int occupancy : {8, 32})
            for (const char* arch : {"x86_64-avx512", "x86_64-avx2"})
                for (int cores : {1, 2, 96}) {
                    Workload asked = workload("padded", length, 64, "fp32_strict", "backward_dkdv");
                    asked.fields.set("batch_heads", occupancy);
                    DeviceInfo device = cpu(arch);
                    device.device_class.sm_count = cores;
                    parts.insert(tier.candidates(asked, device).front().integer("key_parts"));
                }
        CHECK(parts.size() == 1);
    }
}

TEST_CASE("the workspace of the host tier's backward pass grows with the tokens, not with their square",
          "[host][tier]") {
    const da::Tier& tier = da::host_tier();
    da::Problem problem;
    problem.pass = da::Pass::backward;
    problem.heads = 12;
    auto bytes_per_token = [&](int batch, int length) {
        problem.batch = batch;
        problem.length = length;
        const Workload asked = da::workload_of(problem);
        const Config config = tier.candidates(asked, cpu()).front();
        // Less the tables of the units, whose number is bounded.
        const double tables = 8.0 * 2 * 2 * problem.span() * problem.heads * problem.head_dim * 4;
        return (double(tier.workspace_bytes(problem, config)) - tables) / (double(batch) * length);
    };
    for (int length : {64, 512, 2048, 8192})
        for (int batch : {8, 64}) {
            INFO(batch << " x " << length);
            CHECK(bytes_per_token(batch, length) <= 1.3 * 4 * 12 * (64 + 1) * 4);
        }
}

TEST_CASE("a host launch covers every row, head and sequence, with scratch as announced", "[host][tier]") {
    da::Problem problem;
    problem.dtype = DType::f32;
    problem.batch = 3;
    problem.heads = 5;
    problem.length = 257;
    problem.head_dim = 32;
    problem.mask = true;
    for (const Config& config : da::host_tier().candidates(workload("padded_masked", 384, 32), cpu())) {
        const std::vector<da::KernelLaunch> launches = da::host_tier().launches(problem, config, cpu());
        REQUIRE(launches.size() == 1);
        const LaunchShape& shape = launches[0].shape;
        CHECK(shape.grid[0] * config.integer("block_m") >= 257);
        CHECK((shape.grid[0] - 1) * config.integer("block_m") < 257);
        CHECK(shape.grid[1] == 5);
        CHECK(shape.grid[2] == 3);
        const Resources resources = da::host_tier().resources(workload("padded_masked", 384, 32), config);
        CHECK(shape.shared_bytes == static_cast<unsigned>(resources.shared_bytes));
        const KernelSpec& spec = launches[0].spec;
        CHECK(spec.is_host());
        CHECK(spec.target == cpu().target());
        CHECK_FALSE(spec.parameters.contains("tier"));
        CHECK(spec.parameters.boolean("mask"));
        CHECK_FALSE(spec.parameters.boolean("packed"));
        for (const char* axis : {"block_m", "block_n", "micro_rows", "micro_vectors"})
            CHECK(spec.parameters.integer(axis) == config.integer(axis));
        CHECK(render(spec).find(spec.kernel_name) != std::string::npos);
    }
}

// Far, near and diagonal tiles, rows and keys past the end, and a band that ends within a tile.
TEST_CASE("every host candidate agrees with float64", "[host][tier][slow]") {
    Runtime runtime(testing::private_options("cpu"));
    for (int length : {64, 700}) {
        da::Problem problem;
        problem.dtype = DType::f32;
        problem.batch = 2;
        problem.heads = 2;
        problem.length = length;
        problem.mask = true;
        problem.position_buckets = 64;
        problem.max_relative_positions = 128;
        const TestCase data = da::make_case(problem, da::MaskPattern::holes, {}, 5, true);
        const Workload asked = da::workload_of(problem);
        for (const Config& config : da::host_tier().candidates(asked, runtime.device().info())) {
            INFO(config.to_string() << " length " << length);
            const NamedTensors outputs = testing::run_case(runtime, da::operation(), data, &config);
            CHECK(testing::largest_error(outputs.at("out"), data.expected.at("out")) <= 1e-5);
        }
    }
}
