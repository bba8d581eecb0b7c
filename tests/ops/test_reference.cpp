#include "reference.h"

#include "cases.h"

#include <filesystem>

#include "attention_testing.h"
#include "catch.h"
#include "random_problems.h"
#include "turbotune/device/thread_pool.h"
#include "turbotune/ops/disentangled_attention/attention.h"

using namespace turbotune;
using namespace turbotune::testing;

TEST_CASE("the float64 reference agrees with the golden values to their fp32 rounding", "[reference]") {
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(TURBOTUNE_TEST_DATA)) {
        if (entry.path().filename().string().rfind("da_", 0) != 0) continue;
        ++files;
        const TestCase golden =
            disentangled_attention::operation().golden_cases(read_safetensors(entry.path().string()), nullptr).front();
        const NamedTensors outputs = disentangled_attention::forward_reference(
            disentangled_attention::Problem::from_fields(golden.problem), golden.inputs, 0, 0);
        INFO(entry.path().filename());
        CHECK(largest_error(outputs.at("out"), golden.expected.at("out")) < 3e-7);
    }
    CHECK(files == 10);
}

TEST_CASE("the float64 gradients agree with the golden values to their fp32 rounding", "[reference]") {
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(TURBOTUNE_TEST_DATA)) {
        if (entry.path().filename().string().rfind("da_", 0) != 0) continue;
        for (const TestCase& golden :
             disentangled_attention::operation().golden_cases(read_safetensors(entry.path().string()), nullptr)) {
            if (golden.problem.text("pass") != "backward" || golden.problem.text("dtype") != "f32") continue;
            ++files;
            const NamedTensors gradients = disentangled_attention::backward_reference(
                disentangled_attention::Problem::from_fields(golden.problem), golden.inputs, 0, 0);
            for (const auto& [name, expected] : golden.expected) {
                INFO(entry.path().filename() << " " << name);
                CHECK(largest_error(gradients.at(name), expected) < 1e-6);
            }
        }
    }
    CHECK(files == 10);
}

TEST_CASE("the float64 gradients are the slopes of the float64 output, with mask and dropout", "[reference]") {
    disentangled_attention::Problem problem;
    problem.pass = disentangled_attention::Pass::backward;
    problem.batch = 2;
    problem.length = 21;
    problem.head_dim = 32;
    problem.mask = true;
    problem.dropout = 0.25f;
    problem.position_buckets = 8;
    problem.max_relative_positions = 12;
    problem.dtype = DType::f32;
    NamedTensors inputs =
        disentangled_attention::random_inputs(problem, disentangled_attention::MaskPattern::holes, {}, 3);
    for (auto& [name, tensor] : inputs)
        if (name != "mask") tensor = tensor.to(DType::f64);
    constexpr std::uint64_t kSeed = 11, kOffset = 4;
    const NamedTensors gradients = disentangled_attention::backward_reference(problem, inputs, kSeed, kOffset);
    auto loss = [&] {
        const HostTensor out = disentangled_attention::forward_reference(problem, inputs, kSeed, kOffset).at("out");
        double sum = 0;
        for (std::int64_t i = 0; i < out.size(); ++i) sum += out.at(i) * inputs.at("dout").at(i);
        return sum;
    };
    const std::pair<const char*, const char*> pairs[] = {{"q", "dq"},
                                                         {"k", "dk"},
                                                         {"v", "dv"},
                                                         {"position_key", "d_position_key"},
                                                         {"position_query", "d_position_query"}};
    for (const auto& [input, gradient] : pairs)
        for (std::int64_t at = 5; at < inputs.at(input).size(); at += inputs.at(input).size() / 7) {
            constexpr double kStep = 1e-5;
            const double value = inputs.at(input).at(at);
            inputs.at(input).set(at, value + kStep);
            const double above = loss();
            inputs.at(input).set(at, value - kStep);
            const double below = loss();
            inputs.at(input).set(at, value);
            INFO(input << " " << at);
            CHECK(gradients.at(gradient).at(at) == Approx((above - below) / (2 * kStep)).margin(1e-7));
        }
}

TEST_CASE("the reference gives hidden queries the mean of the values and a uniform lse", "[reference]") {
    disentangled_attention::Problem problem;
    problem.heads = 2;
    problem.length = 6;
    problem.head_dim = 32;
    problem.dtype = DType::f32;
    problem.mask = true;
    problem.position_buckets = 4;
    problem.max_relative_positions = 8;
    NamedTensors inputs;
    for (const char* name : {"q", "k", "v"}) {
        inputs[name] = HostTensor(DType::f32, {1, 6, 64});
        for (std::int64_t i = 0; i < inputs[name].size(); ++i) inputs[name].set(i, double(i % 7) - 3);
    }
    inputs["position_key"] = inputs["position_query"] = HostTensor(DType::f32, {8, 64});
    inputs["mask"] = HostTensor(DType::u8, {1, 6});
    for (int j : {0, 1, 4}) inputs["mask"].set(j, 1);
    const NamedTensors outputs = disentangled_attention::forward_reference(problem, inputs, 0, 0);
    for (int i : {2, 3, 5})
        for (int d = 0; d < 64; ++d) {
            double mean = 0;
            for (int j = 0; j < 6; ++j) mean += inputs["v"].at(j * 64 + d) / 6;
            REQUIRE(outputs.at("out").at(i * 64 + d) == Approx(mean).margin(1e-12));
            REQUIRE(outputs.at("lse").at(i) == Approx(std::log2(6.0)));
        }
}

TEST_CASE("the reference's bits are the same for one thread and for several", "[reference]") {
    disentangled_attention::Problem problem;
    problem.pass = disentangled_attention::Pass::backward;
    problem.heads = 2;
    problem.head_dim = 32;
    problem.dropout = 0.1f;
    problem.position_buckets = 16;
    problem.max_relative_positions = 40;
    const std::vector<int> lengths = {130, 0, 3, 217};
    pack(problem, lengths);
    struct Context {
        const disentangled_attention::Problem& problem;
        const NamedTensors inputs;
        NamedTensors results;
    } context{problem,
              disentangled_attention::random_inputs(problem, disentangled_attention::MaskPattern::none, lengths, 8),
              {}};
    auto body = [](void* shared, std::size_t, int) {
        Context& c = *static_cast<Context*>(shared);
        c.results = disentangled_attention::backward_reference(c.problem, c.inputs, 5, 6);
    };
    ThreadPool::shared().run(1, body, &context);  // nested calls stay in their thread
    for (int repeat = 0; repeat < 5; ++repeat)
        for (const auto& [name, tensor] : disentangled_attention::backward_reference(problem, context.inputs, 5, 6)) {
            INFO(name);
            CHECK(tensor.data == context.results.at(name).data);
        }
    const NamedTensors forward = disentangled_attention::forward_reference(problem, context.inputs, 5, 6);
    for (const char* name : {"out", "lse"}) CHECK(forward.at(name).data == context.results.at(name).data);
}

TEST_CASE("cases that share their data are those of another math, and inference and training without dropout",
          "[reference]") {
    namespace da = disentangled_attention;
    da::Problem problem;
    problem.length = 40;
    problem.dtype = DType::f32;
    problem.position_buckets = 16;
    problem.max_relative_positions = 32;
    auto make = [&] { return da::make_case(problem, da::MaskPattern::none, {}, 4, true); };
    const TestCase inference = make();
    CHECK(inference.expected.size() == 1);
    problem.pass = da::Pass::training_forward;
    const TestCase training = make();
    CHECK(training.expected.size() == 2);
    CHECK(training.expected.at("out").data == inference.expected.at("out").data);
    CHECK(training.tolerance == 2e-4);
    problem.math = da::Math::fast;
    const TestCase fast = make();
    CHECK(fast.tolerance == 5e-3);
    CHECK(fast.problem.text("math") == "fast");
    CHECK(fast.expected.at("out").data == training.expected.at("out").data);
    problem.dropout = 0.1f;
    CHECK(make().expected.at("out").data != training.expected.at("out").data);
}

TEST_CASE("slots never fall as the distance grows, which the reference counts on", "[reference]") {
    for (auto [buckets, most] : {std::pair{256, 512},
                                 {16, 32},
                                 {32, 40},
                                 {0, 24},
                                 {-1, 1000},
                                 {2, 8},
                                 {3, 9},
                                 {5, 64},
                                 {7, 600},
                                 {127, 4096}}) {
        INFO(buckets << " " << most);
        const disentangled_attention::SlotTable table = disentangled_attention::make_slot_table(buckets, most);
        for (std::int64_t distance = -5000; distance < 5000; ++distance)
            REQUIRE(table.slot(distance) <= table.slot(distance + 1));
    }
}
