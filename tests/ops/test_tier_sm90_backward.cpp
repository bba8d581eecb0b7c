// The backward pass of the sm90 tier without a GPU: configs, checks, launches, and that its kernels compile as
// predicted.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>
#include <set>
#include <utility>

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

std::vector<Workload> backward(const std::string& head_dim) {
    return operation().workloads({Preset::exhaustive,
                                  {{"pass", {"backward_dq", "backward_dkdv"}},
                                   {"precision", {"half"}},
                                   {"head_dim", {head_dim}},
                                   {"relative", {"c2p_p2c", "c2p", "p2c", "none"}}}});
}

Problem sample(int length = 512, int head_dim = 64) {
    Problem problem;
    problem.pass = Pass::backward;
    problem.batch = 3;
    problem.heads = 5;
    problem.length = length;
    problem.head_dim = head_dim;
    return problem;
}

std::vector<Config> candidates(const Problem& problem) {
    return sm90_tier().candidates(workload_of(problem), hopper());
}

std::vector<std::string> kernels(const Problem& problem, const Config& config) {
    const std::string prefix = "disentangled_attention_backward_";
    std::vector<std::string> names;
    for (const KernelLaunch& launch : sm90_tier().launches(problem, config, hopper())) {
        REQUIRE(launch.spec.kernel_name.substr(0, prefix.size()) == prefix);
        names.push_back(launch.spec.kernel_name.substr(prefix.size()));
    }
    return names;
}

Config with_tiled(const Problem& problem, int tiled) {
    for (const Config& config : candidates(problem))
        if (config.integer("tiled") == tiled) return config;
    throw InvalidArgument("tiled", "no such candidate");
}

long long divide(long long a, long long b) {
    return (a + b - 1) / b;
}

// Bytes from the start of each region up to the last one that a kernel touches: a walk over all tiles, as
// backward_layout.cuh, backward_distances.cuh (squares of one tile) and sm90_backward.cuh number them.
std::array<long long, 6> touched(const Problem& problem, int tiled, const std::vector<int>& lengths) {
    const long long heads = problem.heads, batch = problem.batch, head_dim = problem.head_dim, operand = 128 * head_dim;
    const bool packed = problem.layout == Layout::packed, bias = problem.c2p || problem.p2c;
    const int band = bias ? make_slot_table(problem.position_buckets, problem.max_relative_positions).band : 0;
    const long long longest = divide(problem.length, 64), width = std::min<long long>((band + 62) / 64, longest - 1);
    const long long slots = std::min(2 * width + 1, longest);
    const bool far = bias && width < longest - 1, shifts = problem.p2c && far;
    const long long row_count = heads * (packed ? problem.tokens : batch * problem.length);
    const long long tile_count = packed ? heads * (problem.tokens / 64 + batch) : heads * batch * longest;
    const long long record = 3 * operand + 3 * 1024 + (shifts ? 2 * operand : 0) + (tiled == 2 ? 2 * operand : 0);
    std::array<long long, 6> bytes{};
    auto touch = [&](int region, long long end) { bytes[region] = std::max(bytes[region], end); };
    std::set<long long> numbers;
    long long first = 0;
    for (int b = 0; b < batch; first += lengths[b++])
        for (int head = 0; head < heads; ++head) {
            const long long pair = b * heads + head;
            const long long row = packed ? head * problem.tokens + first : pair * problem.length;
            const long long base = packed ? head * (problem.tokens / 64 + batch) + first / 64 + b : pair * longest;
            touch(0, 8 * ((problem.c2p && far ? 2 : 0) * row_count + row + lengths[b]));
            const long long tiles = divide(lengths[b], 64);
            for (long long tile = 0; tile < tiles; ++tile) {
                const long long number = base + tile;
                CHECK((number < tile_count && numbers.insert(number).second));
                for (long long x = std::max(tile - width, 0LL); bias && x < std::min(tile + width + 1, tiles); ++x)
                    touch(1, 8192 * (number * slots + x % slots + 1));
                if (far) touch(2, 4 * head_dim * 2 * ((problem.p2c ? tile_count : 0) + number + 1));
                if (tiled > 0) touch(5, record * (number + 1));
                if (tiled == 0 && shifts) touch(5, operand * (tile_count + number + 1));
            }
        }
    if (!bias) return bytes;
    long long items = 0;
    for (long long diagonal = -width; diagonal <= width; ++diagonal) items += batch * (longest - std::abs(diagonal));
    const long long parts = divide(items, divide(items, divide(264, heads)));
    touch(3, 4 * head_dim * 2 * 128 * heads * (parts + 2 * width));
    touch(4, heads * ((band + 63) / 64 + (band + 126) / 64 + 1) * 2 * operand);
    return bytes;
}

}  // namespace

TEST_CASE("every backward candidate of the sm90 tier fits a Hopper GPU", "[tiers]") {
    for (const char* head_dim : {"32", "64", "128"})
        for (const Workload& workload : backward(head_dim)) {
            INFO(workload.to_string());
            REQUIRE(sm90_tier().refuse(workload).empty());
            const std::vector<Config> configs = sm90_tier().candidates(workload, hopper());
            CHECK(configs.size() >= 2);
            std::set<std::string> texts;
            for (const Config& config : configs) {
                texts.insert(config.to_string());
                const Resources resources = sm90_tier().resources(workload, config);
                CHECK(resources.shared_bytes <= 227 * 1024);
                CHECK(resources.threads * resources.registers <= 65536);
            }
            CHECK(texts.size() == configs.size());
        }
}

TEST_CASE("the sm90 tier leaves the backward pass of fp32 to others", "[tiers]") {
    const Workload strict =
        operation().workloads({Preset::exhaustive, {{"precision", {"fp32_strict"}}, {"pass", {"backward_dq"}}}}).at(0);
    CHECK(sm90_tier().refuse(strict).find("fp32_strict") != std::string::npos);
}

TEST_CASE("a backward config of the sm90 tier is checked field by field", "[tiers]") {
    const Workload workload = workload_of(sample());
    const Config good = candidates(sample()).at(0);
    CHECK_NOTHROW(sm90_tier().resources(workload, good));
    REQUIRE_THROWS_AS(sm90_tier().resources(workload, Config(good).set("tiled", 7)), InvalidArgument);
    REQUIRE_THROWS_AS(sm90_tier().resources(workload, Config(good).set("colour", 3)), InvalidArgument);
}

TEST_CASE("rows are packed as tiles first where sequences are long", "[tiers]") {
    CHECK(candidates(sample(128)).at(0).integer("tiled") == 0);
    CHECK(candidates(sample(512)).at(0).integer("tiled") == 1);
    CHECK(candidates(sample(4096)).at(0).integer("tiled") == 2);
}

TEST_CASE("the sm90 backward pass launches what the problem needs", "[tiers]") {
    using Names = std::vector<std::string>;
    Problem problem = sample();
    const Config tiled = with_tiled(problem, 1), untiled = with_tiled(problem, 0);
    CHECK(kernels(problem, tiled) == Names{"sm90_prepare", "sm90_kv", "sm90_q", "sm90_position", "finish"});
    const unsigned chunks = 18, tiles = 3 * 5 * 8;  // of a band of 512
    for (const Config& config : {tiled, untiled}) {
        const std::vector<KernelLaunch> launches = sm90_tier().launches(problem, config, hopper());
        CHECK(launches[0].shape.grid[0] == 5 * chunks + tiles);
        CHECK(launches[1].shape.grid[0] == tiles);
        CHECK(launches[2].shape.grid[0] == tiles);
        CHECK(launches[1].shape.block[0] == 128);
    }
    problem.c2p = problem.p2c = false;
    CHECK(kernels(problem, untiled) == Names{"sm90_prepare", "sm90_kv", "sm90_q"});
    CHECK(sm90_tier().launches(problem, untiled, hopper())[0].shape.grid[0] == tiles);
    problem.head_dim = 128;
    CHECK(sm90_tier().launches(problem, tiled, hopper())[1].shape.block[0] == 256);
}

TEST_CASE("the sm90 backward pass refuses more blocks than a grid has", "[tiers]") {
    Problem problem = sample(64);
    problem.heads = 16;
    problem.batch = INT32_MAX / 16;  // the tiles fit, with the blocks of tables they do not
    REQUIRE_THROWS_AS(sm90_tier().launches(problem, candidates(problem).at(0), hopper()), Unsupported);
}

TEST_CASE("the mma kernels serve the sm90 tier's backward pass where rows are not aligned", "[tiers]") {
    Problem problem = sample();
    problem.position_key = {0, 321, 64};
    for (const Config& config : candidates(problem)) {
        const std::vector<std::string> names = kernels(problem, config);
        CHECK(std::find(names.begin(), names.end(), "mma_kv") != names.end());
        BackwardParams params{};
        sm90_tier().fill(problem, config, params);
        CHECK(params.regions[3] > 0);
    }
}

TEST_CASE("the regions of the sm90 tier's backward workspace follow each other", "[tiers]") {
    for (int length : {100, 512, 2000}) {
        const Problem problem = sample(length);
        for (const Config& config : candidates(problem)) {
            BackwardParams params{};
            sm90_tier().fill(problem, config, params);
            for (int i = 1; i < 6; ++i) CHECK(params.regions[i] > params.regions[i - 1]);
            for (int i = 4; i < 6; ++i) CHECK(params.regions[i] % 1024 == 0);
            CHECK(static_cast<long long>(sm90_tier().workspace_bytes(problem, config)) >= params.regions[5]);
        }
    }
}

TEST_CASE("what the sm90 backward kernels touch lies in their region of the workspace", "[tiers]") {
    const std::vector<int> mixed = {300, 0, 1, 64, 0, 63, 129};
    struct Band {
        int buckets, longest;
    };
    for (const int head_dim : {32, 64, 128})
        for (const int length : {1, 64, 300, 2048})
            for (const bool packed : {false, true})
                for (const auto& [c2p, p2c] : {std::pair{true, true}, {true, false}, {false, true}, {false, false}})
                    for (const Band& band : {Band{256, 512}, {32, 64}, {0, 1}, {0, 1000}}) {
                        Problem problem = sample(length, head_dim);
                        std::vector<int> lengths(static_cast<std::size_t>(problem.batch), length);
                        if (packed) {
                            problem.layout = Layout::packed;
                            lengths = mixed;
                            for (int& n : lengths) n = std::min(n, length);
                            lengths.push_back(length);
                            problem.batch = static_cast<int>(lengths.size());
                            problem.tokens = std::accumulate(lengths.begin(), lengths.end(), 0);
                        }
                        problem.c2p = c2p, problem.p2c = p2c;
                        problem.position_buckets = band.buckets, problem.max_relative_positions = band.longest;
                        for (const Config& config : candidates(problem)) {
                            BackwardParams params{};
                            sm90_tier().fill(problem, config, params);
                            INFO(config.to_string() << " head_dim " << head_dim << " length " << length);
                            long long end = static_cast<long long>(sm90_tier().workspace_bytes(problem, config));
                            const auto bytes = touched(problem, static_cast<int>(config.integer("tiled")), lengths);
                            for (int i = 5; i >= 0; end = params.regions[i--])
                                CHECK(params.regions[i] + bytes[i] <= end);
                        }
                    }
}

// ptxas makes every wgmma wait for the one before it when it cannot prove a pipeline sound, and only says so.
TEST_CASE("the sm90 backward kernels compile with their wgmma pipelines intact", "[tiers][nvrtc][slow]") {
    if (!have_nvrtc()) {
        WARN("no NVRTC here: nothing was compiled");
        return;
    }
    struct Case {
        DType dtype;
        int head_dim;
        Layout layout;
        bool mask, c2p, p2c;
    };
    std::set<std::string> seen;
    for (const Case& c : {Case{DType::bf16, 64, Layout::padded, false, true, true},
                          {DType::bf16, 64, Layout::padded, true, true, true},
                          {DType::f16, 32, Layout::packed, false, true, false},
                          {DType::f16, 64, Layout::packed, false, false, true},
                          {DType::bf16, 64, Layout::padded, false, false, false},
                          {DType::bf16, 128, Layout::padded, false, true, true},
                          {DType::f16, 128, Layout::packed, false, true, true}}) {
        Problem problem = sample(2048, c.head_dim);
        problem.dtype = c.dtype;
        problem.layout = c.layout;
        problem.tokens = c.layout == Layout::packed ? 5000 : 0;
        problem.mask = c.mask;
        problem.dropout = c.mask ? 0.1f : 0.0f;
        problem.c2p = c.c2p;
        problem.p2c = c.p2c;
        std::vector<Config> configs = candidates(problem);
        if (c.dtype == DType::f16) configs.resize(1);  // the kernels of bf16 but for their conversions
        for (const Config& config : configs)
            for (const KernelLaunch& launch : sm90_tier().launches(problem, config, hopper())) {
                if (launch.spec.kernel_name.find("sm90") == std::string::npos) continue;
                if (!seen.insert(launch.spec.to_string()).second) continue;
                INFO(launch.spec.to_string());
                const Image image = nvrtc_compiler().compile(
                    {render(launch.spec), launch.spec.kernel_name, launch.spec.target, "test"});
                CHECK(image.metadata.registers * launch.shape.block[0] <= 65536);
                CHECK(image.log.find("Potential Performance Loss") == std::string::npos);
            }
    }
}
