// One self-attention layer of DeBERTa in C++: forward, backward, and a check of one gradient.
//   q, k, v = x W        one fused projection [B, L, 3*H*D]; attention reads its three parts in place
//   out = attention(q, k, v),  loss = sum(out * target)
// Runs on the best device, or on the one that is named: deberta_layer cpu.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "turbotune/turbotune.hpp"

using namespace turbotune;
namespace da = turbotune::disentangled_attention;

namespace {

constexpr int kBatch = 2, kHeads = 4, kLength = 200, kHeadDim = 64, kWidth = kHeads * kHeadDim;
constexpr std::size_t kStates = std::size_t{kBatch} * kLength * kWidth, kFused = 3 * kStates;

std::vector<float> random_numbers(std::size_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> numbers(count);
    for (float& each : numbers) each = uniform(random);
    return numbers;
}

DeviceBuffer upload(Device& device, const std::vector<float>& numbers) {
    DeviceBuffer buffer(device, numbers.size() * sizeof(float));
    device.copy_to_device(buffer.get(), numbers.data(), buffer.bytes());
    return buffer;
}

float* floats(const DeviceBuffer& buffer, std::size_t offset = 0) {
    return static_cast<float*>(buffer.get()) + offset;
}

da::Problem problem_of(da::Pass pass) {
    da::Problem problem;
    problem.pass = pass;
    problem.dtype = DType::f32;
    problem.batch = kBatch, problem.heads = kHeads, problem.length = kLength, problem.head_dim = kHeadDim;
    problem.position_buckets = 32, problem.max_relative_positions = 64;
    problem.dropout = 0.1f;
    problem.q = problem.k = problem.v = {std::int64_t{kLength} * 3 * kWidth, 3 * kWidth, kHeadDim};
    problem.dq = problem.dk = problem.dv = problem.q;  // gradients go back to one fused array, too
    return problem;
}

double milliseconds_of(Device& device, const da::AttentionPlan& plan, const da::Buffers& buffers) {
    constexpr int kTurns = 20;
    device.synchronize(nullptr);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kTurns; ++i) plan.execute(buffers);
    device.synchronize(nullptr);
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() / kTurns;
}

int run(const char* device_name) {
    RuntimeOptions options;
    options.device = device_name;
    Runtime runtime(options);
    Device& device = runtime.device();
    const da::Problem problem = problem_of(da::Pass::training_forward);
    const auto forward = da::AttentionPlan::create(runtime, problem);
    const auto backward = da::AttentionPlan::create(runtime, problem_of(da::Pass::backward));

    const std::size_t table = std::size_t(2 * problem.span()) * kWidth, f = sizeof(float);
    std::vector<float> qkv = random_numbers(kFused, 1);
    const std::vector<float> target = random_numbers(kStates, 2);
    const DeviceBuffer projection = upload(device, qkv), gradient(device, kFused * f);
    const DeviceBuffer keys = upload(device, random_numbers(table, 3)), d_keys(device, table * f);
    const DeviceBuffer queries = upload(device, random_numbers(table, 4)), d_queries(device, table * f);
    const DeviceBuffer out(device, kStates * f), lse(device, std::size_t{kBatch} * kHeads * kLength * f);
    const DeviceBuffer dout = upload(device, target);  // the gradient of sum(out * target) by out
    const DeviceBuffer workspace(device, std::max(forward.workspace_bytes(), backward.workspace_bytes()));

    da::Buffers buffers;
    buffers.q = floats(projection), buffers.k = floats(projection, kWidth), buffers.v = floats(projection, 2 * kWidth);
    buffers.dq = floats(gradient), buffers.dk = floats(gradient, kWidth), buffers.dv = floats(gradient, 2 * kWidth);
    buffers.position_key = keys.get(), buffers.d_position_key = d_keys.get();
    buffers.position_query = queries.get(), buffers.d_position_query = d_queries.get();
    buffers.out = out.get(), buffers.lse = floats(lse), buffers.dout = dout.get(), buffers.workspace = workspace.get();
    buffers.dropout_seed = 7;  // the same in both passes; another offset at each step

    const auto loss_of = [&](const std::vector<float>& inputs) {
        device.copy_to_device(projection.get(), inputs.data(), kFused * f);
        forward.execute(buffers);
        device.synchronize(nullptr);
        std::vector<float> result(kStates);
        device.copy_to_host(result.data(), out.get(), kStates * f);
        double loss = 0;
        for (std::size_t i = 0; i < kStates; ++i) loss += double(result[i]) * target[i];
        return loss;
    };
    const double loss = loss_of(qkv);
    backward.execute(buffers);
    device.synchronize(nullptr);

    // The gradient of one element of q against the slope of the loss about it.
    constexpr std::size_t kElement = std::size_t{kLength + 77} * 3 * kWidth + 2 * kHeadDim + 5;
    constexpr float kStep = 0.02f;
    float given = 0;
    device.copy_to_host(&given, floats(gradient, kElement), f);
    const float before = qkv[kElement];
    qkv[kElement] = before + kStep;
    const double above = loss_of(qkv);
    qkv[kElement] = before - kStep;
    const double slope = (above - loss_of(qkv)) / (2.0 * kStep);
    const double error = std::abs(given - slope) / std::abs(slope);

    std::printf("%s\n", device.info().name.c_str());
    std::printf("forward   %s: %.3f ms\n", forward.selection().config.to_string().c_str(),
                milliseconds_of(device, forward, buffers));
    std::printf("backward  %s: %.3f ms\n", backward.selection().config.to_string().c_str(),
                milliseconds_of(device, backward, buffers));
    std::printf("loss %.4f, gradient %.6f, slope %.6f, error %.1e\n", loss, given, slope, error);
    return error < 2e-2 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(argc > 1 ? argv[1] : "auto");
    } catch (const Error& error) {
        std::fprintf(stderr, "deberta_layer: %s\n", error.what());
        return 1;
    }
}
