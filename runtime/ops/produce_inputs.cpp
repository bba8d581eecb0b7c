#include <utility>

#include "turbotune/ops/operation.h"

namespace turbotune {

void produce_inputs(Runtime& runtime, const Operation& operation, TestCase& test_case) {
    if (test_case.producer.empty()) return;
    Device& device = runtime.device();
    device.make_current();
    const Config config = operation.heuristic(operation.workload_of(test_case.producer), device.info());
    const std::unique_ptr<Plan> plan = operation.plan(runtime, test_case.producer, &config);

    std::vector<DeviceBuffer> buffers;
    Bindings bindings;
    auto add = [&](const std::string& name, std::size_t bytes) {
        buffers.emplace_back(device, bytes);
        bindings[name] = buffers.back().get();
        return bindings[name];
    };
    for (const auto& [name, tensor] : test_case.inputs)
        device.copy_to_device(add(name, tensor.data.size()), tensor.data.data(), tensor.data.size());
    std::vector<std::pair<std::string, HostTensor>> results;
    for (const TensorSpec& spec : test_case.produced) {
        results.emplace_back(spec.name, HostTensor(spec.dtype, spec.shape));
        add(spec.name, results.back().second.data.size());
    }
    const DeviceBuffer workspace(device, plan->workspace_bytes());
    const StreamHandle stream = device.create_stream();
    try {
        plan->bind(bindings, workspace.get())->execute(stream);
        device.synchronize(stream);
    } catch (...) {
        device.destroy_stream(stream);
        throw;
    }
    device.destroy_stream(stream);
    for (auto& [name, tensor] : results) {
        device.copy_to_host(tensor.data.data(), bindings.at(name), tensor.data.size());
        test_case.inputs[name] = std::move(tensor);
    }
    test_case.producer = {};
    test_case.produced.clear();
}

}  // namespace turbotune
