// Disentangled attention through the C interface on the CPU device, beside the float64 references.
#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "attention_testing.h"
#include "capi_testing.h"
#include "reference.h"

using namespace turbotune;
using namespace turbotune::testing;
namespace da = turbotune::disentangled_attention;

namespace {

using CProblem = turbotune_disentangled_attention_problem;
using CBuffers = turbotune_disentangled_attention_buffers;

da::Problem as_cpp(const CProblem& given) {
    da::Problem problem;
    problem.pass = static_cast<da::Pass>(given.pass);
    problem.dtype = DType::f32;
    problem.batch = given.batch, problem.heads = given.heads, problem.length = given.length;
    problem.head_dim = given.head_dim, problem.dropout = given.dropout, problem.mask = given.mask != 0;
    problem.position_buckets = given.position_buckets;
    problem.max_relative_positions = given.max_relative_positions;
    return problem;
}

HostTensor random_tensor(std::vector<std::int64_t> shape, unsigned seed) {
    HostTensor tensor(DType::f32, std::move(shape));
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, normal(random));
    return tensor;
}

// fp32 tensors of a problem, where the layer has them: q, k and v as views of one [B, L, 3*H*D] projection.
struct Layer {
    CProblem problem;
    std::int64_t width, rows;
    std::vector<float> qkv, dqkv;
    HostTensor position_key, position_query, dout, out, lse, d_position_key, d_position_query;
    std::vector<std::uint8_t> mask;
    std::vector<std::byte> workspace;

    explicit Layer(CProblem given)
        : problem(given),
          width(std::int64_t{given.heads} * given.head_dim),
          rows(std::int64_t{given.batch} * given.length) {
        const std::int64_t span = problem.position_buckets, length = problem.length;
        const HostTensor fused = random_tensor({problem.batch, length, 3 * width}, 1);
        qkv.resize(std::size_t(fused.size()));
        std::memcpy(qkv.data(), fused.data.data(), fused.data.size());
        dqkv.assign(qkv.size(), NAN);
        position_key = random_tensor({2 * span, width}, 2);
        position_query = random_tensor({2 * span, width}, 3);
        dout = random_tensor({problem.batch, length, width}, 4);
        out = HostTensor(DType::f32, {problem.batch, length, width});
        lse = HostTensor(DType::f32, {problem.batch, problem.heads, length});
        d_position_key = d_position_query = HostTensor(DType::f32, {2 * span, width});
        mask.assign(std::size_t(rows), 1);
        for (std::int64_t i = 0; i < rows; i += 5) mask[std::size_t(i)] = 0;
        const turbotune_strides view = {length * 3 * width, 3 * width, problem.head_dim};
        problem.q = problem.k = problem.v = view;
        problem.dq = problem.dk = problem.dv = view;
    }

    CBuffers buffers(const turbotune_plan* plan) {
        CBuffers to;
        turbotune_disentangled_attention_buffers_init(&to, sizeof to);
        to.q = qkv.data(), to.k = qkv.data() + width, to.v = qkv.data() + 2 * width;
        to.dq = dqkv.data(), to.dk = dqkv.data() + width, to.dv = dqkv.data() + 2 * width;
        to.position_key = position_key.data.data(), to.position_query = position_query.data.data();
        to.d_position_key = d_position_key.data.data(), to.d_position_query = d_position_query.data.data();
        to.mask = mask.data(), to.dout = dout.data.data(), to.out = out.data.data();
        to.lse = reinterpret_cast<float*>(lse.data.data());
        to.dropout_seed = 42, to.dropout_offset = 3;
        workspace.resize(turbotune_plan_workspace_bytes(plan) + 256);
        auto at = reinterpret_cast<std::uintptr_t>(workspace.data());
        to.workspace = reinterpret_cast<void*>((at + 255) / 256 * 256);
        return to;
    }

    // Columns [part * width, (part + 1) * width) of a fused buffer.
    HostTensor part_of(const std::vector<float>& fused, std::int64_t part) const {
        HostTensor tensor(DType::f32, {problem.batch, problem.length, width});
        for (std::int64_t row = 0; row < rows; ++row)
            std::memcpy(tensor.data.data() + row * width * 4, fused.data() + (3 * row + part) * width,
                        std::size_t(width) * 4);
        return tensor;
    }

    NamedTensors inputs() const {
        NamedTensors named;
        named["q"] = part_of(qkv, 0), named["k"] = part_of(qkv, 1), named["v"] = part_of(qkv, 2);
        named["position_key"] = position_key, named["position_query"] = position_query, named["dout"] = dout;
        if (problem.mask) {
            named["mask"] = HostTensor(DType::u8, {problem.batch, problem.length});
            std::memcpy(named["mask"].data.data(), mask.data(), mask.size());
        }
        return named;
    }
};

class CPlan {
  public:
    CPlan(turbotune_runtime* runtime, const CProblem& problem, const char* config = nullptr) {
        status_ = turbotune_disentangled_attention_plan_create(runtime, &problem, config, nullptr, &plan_);
        if (status_ != TURBOTUNE_OK) why_ = last_error();
    }
    ~CPlan() { turbotune_plan_destroy(plan_); }
    CPlan(const CPlan&) = delete;
    CPlan& operator=(const CPlan&) = delete;
    operator turbotune_plan*() const { return plan_; }
    turbotune_status status() const { return status_; }
    const std::string& why() const { return why_; }

  private:
    turbotune_plan* plan_ = nullptr;
    turbotune_status status_;
    std::string why_;
};

}  // namespace

TEST_CASE("Inference on views of a fused projection agrees with float64", "[capi][attention]") {
    const CpuRuntime runtime;
    CProblem problem = small_problem();
    problem.mask = 1;
    Layer layer(problem);
    const CPlan plan(runtime, layer.problem);
    INFO(plan.why());
    REQUIRE(plan.status() == TURBOTUNE_OK);
    const CBuffers buffers = layer.buffers(plan);
    REQUIRE(turbotune_disentangled_attention_execute(plan, &buffers, nullptr) == TURBOTUNE_OK);
    const NamedTensors want = da::forward_reference(as_cpp(problem), layer.inputs(), 0, 0);
    CHECK(largest_error(layer.out, want.at("out")) < 1e-5);
}

TEST_CASE("A training step with dropout and a mask agrees with float64", "[capi][attention]") {
    const CpuRuntime runtime;
    CProblem problem = small_problem(TURBOTUNE_TRAINING_FORWARD);
    problem.mask = 1;
    problem.dropout = 0.25f;
    Layer layer(problem);
    const CPlan forward(runtime, layer.problem);
    INFO(forward.why());
    REQUIRE(forward.status() == TURBOTUNE_OK);
    CBuffers buffers = layer.buffers(forward);
    REQUIRE(turbotune_disentangled_attention_execute(forward, &buffers, nullptr) == TURBOTUNE_OK);
    const NamedTensors forward_want = da::forward_reference(as_cpp(problem), layer.inputs(), 42, 3);
    CHECK(largest_error(layer.out, forward_want.at("out")) < 1e-5);
    CHECK(largest_error(layer.lse, forward_want.at("lse")) < 1e-5);

    layer.problem.pass = TURBOTUNE_BACKWARD;
    const CPlan backward(runtime, layer.problem);
    INFO(backward.why());
    REQUIRE(backward.status() == TURBOTUNE_OK);
    buffers = layer.buffers(backward);
    REQUIRE(turbotune_disentangled_attention_execute(backward, &buffers, nullptr) == TURBOTUNE_OK);
    const NamedTensors want = da::backward_reference(as_cpp(layer.problem), layer.inputs(), 42, 3);
    CHECK(largest_error(layer.part_of(layer.dqkv, 0), want.at("dq")) < 2e-5);
    CHECK(largest_error(layer.part_of(layer.dqkv, 1), want.at("dk")) < 2e-5);
    CHECK(largest_error(layer.part_of(layer.dqkv, 2), want.at("dv")) < 2e-5);
    CHECK(largest_error(layer.d_position_key, want.at("d_position_key")) < 2e-5);
    CHECK(largest_error(layer.d_position_query, want.at("d_position_query")) < 2e-5);
}

TEST_CASE("A plan tells its config, where it came from, and its kernels", "[capi][attention]") {
    const CpuRuntime runtime;
    const CPlan plan(runtime, small_problem());
    REQUIRE(plan.status() == TURBOTUNE_OK);
    CHECK(std::string(turbotune_plan_config(plan)).rfind("tier=host ", 0) == 0);
    CHECK(std::string(turbotune_plan_origin(plan)) == "heuristic");
    REQUIRE(turbotune_plan_kernel_count(plan) >= 1);
    turbotune_kernel_info kernel;
    turbotune_kernel_info_init(&kernel, sizeof kernel);
    REQUIRE(turbotune_plan_kernel(plan, 0, &kernel) == TURBOTUNE_OK);
    CHECK(std::string(kernel.name).find("forward") != std::string::npos);
    CHECK(kernel.compile_ms > 0);
    CHECK(turbotune_plan_kernel(plan, 99, &kernel) == TURBOTUNE_INVALID_ARGUMENT);

    // The same text asks for the same config, and another one for another.
    const CPlan again(runtime, small_problem(), turbotune_plan_config(plan));
    REQUIRE(again.status() == TURBOTUNE_OK);
    CHECK(std::string(turbotune_plan_config(again)) == turbotune_plan_config(plan));
    CHECK(std::string(turbotune_plan_origin(again)) == "fixed");
    const CPlan reference(runtime, small_problem(), "tier=reference");
    CHECK(std::string(turbotune_plan_config(reference)) == "tier=reference");
    CHECK(CPlan(runtime, small_problem(), "tier=abacus").status() == TURBOTUNE_INVALID_ARGUMENT);
    CHECK(CPlan(runtime, small_problem(), "tier").status() == TURBOTUNE_INVALID_ARGUMENT);
}

TEST_CASE("A plan outlives its runtime", "[capi][attention]") {
    Layer layer(small_problem());
    turbotune_runtime* runtime = nullptr;
    const auto options = cpu_options();
    REQUIRE(turbotune_runtime_create(&options, &runtime) == TURBOTUNE_OK);
    const CPlan plan(runtime, layer.problem);
    turbotune_runtime_destroy(runtime);
    REQUIRE(plan.status() == TURBOTUNE_OK);
    const CBuffers buffers = layer.buffers(plan);
    REQUIRE(turbotune_disentangled_attention_execute(plan, &buffers, nullptr) == TURBOTUNE_OK);
    const NamedTensors want = da::forward_reference(as_cpp(layer.problem), layer.inputs(), 0, 0);
    CHECK(largest_error(layer.out, want.at("out")) < 1e-5);
}

TEST_CASE("A buffer that is missing is named, and the plan still works", "[capi][attention]") {
    const CpuRuntime runtime;
    Layer layer(small_problem());
    const CPlan plan(runtime, layer.problem);
    REQUIRE(plan.status() == TURBOTUNE_OK);
    CBuffers buffers = layer.buffers(plan);
    buffers.position_query = nullptr;
    CHECK(turbotune_disentangled_attention_execute(plan, &buffers, nullptr) == TURBOTUNE_INVALID_ARGUMENT);
    CHECK(last_error().find("position_query") != std::string::npos);
    CHECK(turbotune_disentangled_attention_execute(plan, nullptr, nullptr) == TURBOTUNE_INVALID_ARGUMENT);
    buffers = layer.buffers(plan);
    CHECK(turbotune_disentangled_attention_execute(plan, &buffers, nullptr) == TURBOTUNE_OK);
}

TEST_CASE("Several threads execute one plan on buffers of their own", "[capi][attention]") {
    const CpuRuntime runtime;
    const CPlan plan(runtime, Layer(small_problem()).problem);
    REQUIRE(plan.status() == TURBOTUNE_OK);
    std::vector<Layer> layers(4, Layer(small_problem()));
    std::vector<turbotune_status> status(4, TURBOTUNE_INTERNAL_ERROR);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < layers.size(); ++i)
        threads.emplace_back([&, i] {
            const CBuffers buffers = layers[i].buffers(plan);
            for (int turn = 0; turn < 5; ++turn)
                status[i] = turbotune_disentangled_attention_execute(plan, &buffers, nullptr);
        });
    for (std::thread& thread : threads) thread.join();
    for (std::size_t i = 0; i < layers.size(); ++i) {
        CHECK(status[i] == TURBOTUNE_OK);
        CHECK(layers[i].out.data == layers[0].out.data);
    }
    const auto written = [](std::byte value) { return value != std::byte{0}; };
    CHECK(std::count_if(layers[0].out.data.begin(), layers[0].out.data.end(), written) >
          std::ptrdiff_t(layers[0].out.data.size() / 2));
}

TEST_CASE("Policy and store of the options are obeyed", "[capi][attention]") {
    const TempFolder folder;
    auto options = cpu_options();
    options.store_directory = folder.path().c_str();
    options.policy = "profile_only";
    {
        const CpuRuntime runtime(options);
        const CPlan plan(runtime, small_problem());
        CHECK(plan.status() == TURBOTUNE_PROFILE_MISS);
    }
    std::string config;
    options.policy = "heuristic";
    {
        const CpuRuntime runtime(options);
        const CPlan plan(runtime, small_problem());
        REQUIRE(plan.status() == TURBOTUNE_OK);
        config = turbotune_plan_config(plan);
        std::size_t files = 0;
        for (const auto& each : std::filesystem::recursive_directory_iterator(folder.path()))
            files += each.is_regular_file();
        CHECK(files > 0);
    }
    options.policy = "fixed";
    options.fixed_config = config.c_str();
    const CpuRuntime runtime(options);
    const CPlan plan(runtime, small_problem());
    REQUIRE(plan.status() == TURBOTUNE_OK);
    CHECK(std::string(turbotune_plan_origin(plan)) == "fixed");
}

TEST_CASE("The keep mask has the probability asked for and changes with seed and offset", "[capi][attention]") {
    CProblem problem = small_problem(TURBOTUNE_TRAINING_FORWARD);
    problem.length = 128;
    problem.dropout = 0.1f;
    const std::size_t count = std::size_t(2) * 3 * 128 * 128;
    std::vector<std::uint8_t> keep(count, 7), same(count), other(count);
    REQUIRE(turbotune_disentangled_attention_keep_mask(&problem, 1, 0, keep.data()) == TURBOTUNE_OK);
    REQUIRE(turbotune_disentangled_attention_keep_mask(&problem, 1, 0, same.data()) == TURBOTUNE_OK);
    REQUIRE(turbotune_disentangled_attention_keep_mask(&problem, 1, 1, other.data()) == TURBOTUNE_OK);
    CHECK(keep == same);
    CHECK(keep != other);
    double kept = 0;
    for (const std::uint8_t each : keep) {
        REQUIRE(each <= 1);
        kept += each;
    }
    CHECK(std::abs(kept / double(count) - 0.9) < 0.004);  // four standard deviations
}
