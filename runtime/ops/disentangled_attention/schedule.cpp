#include "schedule.h"

#include <fmt/format.h>

#include <algorithm>

#include "turbotune/base/error.h"

namespace turbotune::disentangled_attention {

namespace {

std::string join(const std::vector<int>& values) {
    std::string text;
    for (int value : values) text += (text.empty() ? "" : ", ") + std::to_string(value);
    return text;
}

// Rows of a defaulted tensor are dense: heads * head_dim elements, a multiple of 32.
bool is_aligned(const Strides& strides) {
    return strides.defaulted() || (strides.row % 8 == 0 && strides.head % 8 == 0 && strides.batch % 8 == 0);
}

}  // namespace

Config make_config(const char* tier, const std::vector<ScheduleAxis>& axes, const std::vector<int>& values) {
    Config config;
    config.set("tier", tier);
    for (std::size_t i = 0; i < axes.size(); ++i) config.set(axes[i].name, values[i]);
    return config;
}

void check_config(const char* tier, const std::vector<ScheduleAxis>& axes, const Config& config) {
    if (config.text("tier") != tier)
        throw InvalidArgument("tier", fmt::format("is \"{}\"; here: {}", config.text("tier"), tier));
    for (const ScheduleAxis& axis : axes) {
        const std::int64_t value = config.integer(axis.name);
        if (std::find(axis.values.begin(), axis.values.end(), value) == axis.values.end())
            throw InvalidArgument(axis.name, fmt::format("is {}; one of: {}", value, join(axis.values)));
    }
    for (const auto& entry : config.entries()) {
        const std::string& name = entry.first;
        if (name != "tier" &&
            std::none_of(axes.begin(), axes.end(), [&](const ScheduleAxis& axis) { return axis.name == name; }))
            throw InvalidArgument(name, fmt::format("is not a field of the {} tier's configs", tier));
    }
}

bool is_backward(const Workload& workload) {
    const std::string& pass = workload.fields.text("pass");
    return pass == "backward_dq" || pass == "backward_dkdv";
}

bool has_dropout(const Workload& workload) {
    const FieldValue* dropout = workload.fields.find("dropout");
    return dropout && *dropout == FieldValue(true);
}

std::string refuse_unserved(const char* tier, const Workload& workload, const Served& served) {
    const std::string& pass = workload.fields.text("pass");
    if (is_backward(workload) ? !served.backward : pass != "inference" && pass != "training_forward")
        return fmt::format("pass {} is not available on the {} tier", pass, tier);
    if (has_dropout(workload) && !served.dropout) return fmt::format("dropout is not available on the {} tier", tier);
    const std::string& layout = workload.fields.text("layout");
    if (layout != "padded" && layout != "padded_masked" && layout != "packed")
        return fmt::format("layout {} is not available on the {} tier", layout, tier);
    const std::int64_t head_dim = workload.fields.integer("head_dim");
    if (head_dim != 32 && head_dim != 64 && head_dim != 128)
        return fmt::format("head_dim {} is not available on the {} tier: one of 32, 64, 128", head_dim, tier);
    return "";
}

int registers_per_thread(int threads, int blocks_per_sm) {
    constexpr int kRegistersPerSm = 65536, kMost = 255, kGranularity = 8;
    return std::min(kMost, kRegistersPerSm / (threads * blocks_per_sm) / kGranularity * kGranularity);
}

bool has_aligned_rows(const Problem& problem) {
    return is_aligned(problem.q) && is_aligned(problem.k) && is_aligned(problem.v) && is_aligned(problem.out) &&
           is_aligned(problem.position_key) && is_aligned(problem.position_query) && is_aligned(problem.dout) &&
           is_aligned(problem.dq) && is_aligned(problem.dk) && is_aligned(problem.dv) &&
           is_aligned(problem.d_position_key) && is_aligned(problem.d_position_query);
}

unsigned blocks_of(const Problem& problem, int rows_per_block) {
    const std::int64_t rows = (problem.length + std::int64_t{rows_per_block} - 1) / rows_per_block;
    const std::int64_t blocks = rows * problem.heads * problem.batch;
    if (blocks > INT32_MAX)
        throw Unsupported(fmt::format("batch {} x heads {} x length {} needs {} blocks; at most {}", problem.batch,
                                      problem.heads, problem.length, blocks, INT32_MAX));
    return static_cast<unsigned>(blocks);
}

PositionTerms position_terms(const Workload& workload) {
    const FieldValue* relative = workload.fields.find("relative");
    const std::string* text = relative ? std::get_if<std::string>(relative) : nullptr;
    if (!text) return {};
    return {*text == "c2p_p2c" || *text == "c2p", *text == "c2p_p2c" || *text == "p2c"};
}

}  // namespace turbotune::disentangled_attention
