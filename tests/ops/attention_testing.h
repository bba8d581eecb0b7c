// Runs a case of disentangled attention through the public interface and gives back its outputs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "turbotune/device/device.h"
#include "turbotune/ops/operation.h"

namespace turbotune::testing {

struct Uploaded {
    std::vector<DeviceBuffer> buffers;
    Bindings bindings;
};

inline Uploaded upload(Device& device, const TestCase& test_case) {
    Uploaded uploaded;
    auto add = [&](const std::string& name, std::size_t bytes) {
        uploaded.buffers.emplace_back(device, std::max<std::size_t>(bytes, 256));
        return uploaded.bindings[name] = uploaded.buffers.back().get();
    };
    for (const auto& [name, tensor] : test_case.inputs)
        device.copy_to_device(add(name, tensor.data.size()), tensor.data.data(), tensor.data.size());
    for (const TensorSpec& output : test_case.outputs) {
        const std::size_t bytes = HostTensor(output.dtype, output.shape).data.size();
        device.fill(add(output.name, bytes), 0xff, std::max<std::size_t>(bytes, 256));  // NaN in every float type
    }
    return uploaded;
}

inline NamedTensors download(Device& device, const TestCase& test_case, const Uploaded& uploaded) {
    NamedTensors outputs;
    for (const TensorSpec& output : test_case.outputs) {
        HostTensor tensor(output.dtype, output.shape);
        device.copy_to_host(tensor.data.data(), uploaded.bindings.at(output.name), tensor.data.size());
        outputs[output.name] = std::move(tensor);
    }
    return outputs;
}

inline NamedTensors run_case(Runtime& runtime, const Operation& operation, const TestCase& test_case,
                             const Config* config = nullptr) {
    Device& device = runtime.device();
    const std::unique_ptr<Plan> plan = operation.plan(runtime, test_case.problem, config);
    const Uploaded uploaded = upload(device, test_case);
    DeviceBuffer workspace(device, std::max<std::size_t>(plan->workspace_bytes(), 256));
    device.fill(workspace.get(), 0xff, workspace.bytes());
    plan->bind(uploaded.bindings, workspace.get())->execute(nullptr);
    device.synchronize(nullptr);
    return download(device, test_case, uploaded);
}

// Largest |got - want| relative to the largest |want|; infinity when anything is not finite.
inline double largest_error(const HostTensor& got, const HostTensor& want) {
    double difference = 0, largest = 0;
    for (std::int64_t i = 0; i < want.size(); ++i) {
        if (!std::isfinite(got.at(i))) return HUGE_VAL;
        difference = std::max(difference, std::abs(got.at(i) - want.at(i)));
        largest = std::max(largest, std::abs(want.at(i)));
    }
    return largest > 0 ? difference / largest : difference;
}

}  // namespace turbotune::testing
