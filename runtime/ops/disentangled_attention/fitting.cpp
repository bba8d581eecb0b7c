#include "fitting.h"

#include "tier.h"
#include "turbotune/ops/disentangled_attention/attention.h"
#include "turbotune/ops/operation.h"
#include "workload.h"

namespace turbotune::disentangled_attention {

namespace {

std::int64_t blocks_of_128(std::int64_t rows) {
    return (rows + 127) / 128;
}

// Blocks of 128 rows.
std::int64_t blocks_of(const Problem& problem) {
    if (problem.layout == Layout::packed) return problem.heads * blocks_of_128(problem.tokens);
    return std::int64_t{problem.batch} * problem.heads * blocks_of_128(problem.length);
}

std::int64_t blocks_of(const Workload& workload) {
    return workload.fields.integer("batch_heads") * blocks_of_128(workload.fields.integer("length"));
}

}  // namespace

Fitted fit(const Problem& problem, const Workload& matched, const Config& config, const DeviceInfo& device) {
    Fitted fitted{config, {}};
    const int multiprocessors = device.device_class.sm_count;
    // Where the measurement left multiprocessors empty, what won is what spreads little work over many. Blocks of other
    // tiers have fewer rows, so that theirs filled the device, and their guesses are made for the workload's own grid.
    if (device.kind == DeviceKind::cuda && blocks_of(matched) < multiprocessors &&
        blocks_of(problem) >= 2 * multiprocessors) {
        const Config guess = operation().heuristic(workload_of(problem), device);
        if (guess.text("tier") == "sm90" && !(guess == config))
            fitted = {guess, "as its measurement did not fill the device"};
    }
    const Config by_shape = find_tier(fitted.config.text("tier")).fitted(problem, fitted.config);
    if (!(by_shape == fitted.config)) fitted = {by_shape, "for this length"};
    return fitted;
}

}  // namespace turbotune::disentangled_attention
