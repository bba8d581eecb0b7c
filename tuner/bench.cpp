#include "turbotune/tuner/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "turbotune/base/error.h"

namespace turbotune {

namespace {

bool has(const Config& config, const Fields::Entry& field) {
    const FieldValue* value = config.find(field.first);
    return value && *value == field.second;
}

bool matches(const Config& config, const Config& given) {
    const auto& fields = given.entries();
    return std::all_of(fields.begin(), fields.end(), [&](const Fields::Entry& field) { return has(config, field); });
}

// Which field keeps every candidate out, and the values that it may have.
std::string mismatch(const std::vector<Config>& candidates, const Config& given) {
    for (const Fields::Entry& field : given.entries()) {
        if (std::any_of(candidates.begin(), candidates.end(), [&](const Config& each) { return has(each, field); }))
            continue;
        std::set<std::string> values;
        for (const Config& candidate : candidates)
            if (const FieldValue* value = candidate.find(field.first)) values.insert(to_string(*value));
        if (values.empty()) return fmt::format("no candidate has a field {}", field.first);
        return fmt::format("no candidate has {}={}; there are: {}", field.first, to_string(field.second),
                           fmt::join(values, ", "));
    }
    return fmt::format("no candidate has {} together", given.to_string());
}

}  // namespace

Config complete_config(const Operation& operation, const Workload& workload, const DeviceInfo& device,
                       const Config& given) {
    std::vector<Config> candidates;
    for (const Config& candidate : operation.candidates(workload, device)) candidates.push_back(candidate);
    std::string refusal;
    for (const Config& candidate : candidates) {
        if (!matches(candidate, given)) continue;
        const Verdict verdict = operation.filter(workload, candidate, device);
        if (verdict.fits) return candidate;
        refusal = fmt::format("{}: {}", candidate.to_string(), verdict.reason);
    }
    if (operation.reference_config(device) == given) return given;
    throw InvalidArgument("config", refusal.empty() ? mismatch(candidates, given) : refusal);
}

BenchResult bench(Runtime& runtime, const Operation& operation, const Fields& problem, const BenchOptions& options) {
    const DeviceInfo& device = runtime.device().info();
    // Before inputs are drawn on the host, which takes as much again.
    const double least = operation.bytes(problem);
    if (const auto free = double(runtime.device().free_memory()); least > free)
        throw DeviceError(fmt::format("out of memory: needs {:.1f} GiB at least, {:.1f} GiB are free", least / 0x1p30,
                                      free / 0x1p30));
    const TestCase test_case = operation.problem_case(problem, options.seed);
    const Workload workload = operation.workload_of(test_case.problem);
    const std::string why = operation.unavailable(workload, device);
    if (!why.empty()) throw Unsupported(why);

    BenchResult result;
    result.problem = test_case.problem;
    if (options.config.empty()) {
        result.selection = operation.plan(runtime, test_case.problem, nullptr)->selection();
    } else {
        result.selection.config = complete_config(operation, workload, device, options.config);
        result.selection.origin = "fixed";
        result.selection.matched = workload;
    }
    const Config& config = result.selection.config;
    TimingBench timing(runtime, operation, test_case, memory_limit(runtime.device()));
    timing.add(config);
    int done = 0;
    const auto samples = timing.round({config}, options.samples, [&](int) {
        if (options.before_sample) options.before_sample(std::min(done, options.samples));
        ++done;
    });
    result.latency = summarize(samples.front());
    result.host_us = timing.host_us(config);
    result.flops = operation.flops(test_case.problem);
    result.bytes = operation.bytes(test_case.problem);
    result.workspace_bytes = timing.plan(config).workspace_bytes();
    result.memory = timing.memory();
    result.kernels = timing.plan(config).kernels();
    return result;
}

}  // namespace turbotune
