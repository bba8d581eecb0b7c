#include <cstdio>

#include "turbotune/turbotune.hpp"

using namespace turbotune;

int main() {
    Runtime runtime;  // the best device here; profiles of it, saved by turbotune or shipped, are found by themselves
    Device& device = runtime.device();
    device.make_current();

    disentangled_attention::Problem problem;  // DeBERTa-v3-base in bf16: both position terms, 256 buckets
    problem.batch = 4, problem.heads = 12, problem.length = 200, problem.head_dim = 64;
    const auto plan = disentangled_attention::AttentionPlan::create(runtime, problem);

    const std::size_t row = 12 * 64 * size_of(problem.dtype), tokens = 4 * 200 * row, table = 2 * problem.span() * row;
    DeviceBuffer q(device, tokens), k(device, tokens), v(device, tokens), out(device, tokens);
    DeviceBuffer position_key(device, table), position_query(device, table), workspace(device, plan.workspace_bytes());
    for (DeviceBuffer* input : {&q, &k, &v, &position_key, &position_query})
        device.fill(input->get(), 0x3c, input->bytes());  // stands for the model's activations

    plan.execute({.q = q.get(),
                  .k = k.get(),
                  .v = v.get(),
                  .position_key = position_key.get(),
                  .position_query = position_query.get(),
                  .out = out.get(),
                  .workspace = workspace.get()});
    device.synchronize(nullptr);  // execute only enqueues
    std::printf("%s: %s\n", plan.selection().origin.c_str(), plan.selection().config.to_string().c_str());
}
