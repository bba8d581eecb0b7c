#include "bench_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "output.h"
#include "turbotune/base/error.h"

namespace turbotune::cli {
namespace {

// A flag gives one field of the problem a list of values.
struct FieldFlag {
    const char* flag;
    const char* field;
    const char* type;
    const char* help;
};

const FieldFlag kFieldFlags[] = {
    {"--pass", "pass", "P,P", "Passes: inference, training_forward, backward"},
    {"--layout", "layout", "L,L", "padded, packed"},
    {"--dtype", "dtype", "T,T", "bf16, f16, f32"},
    {"--math", "math", "M,M", "Of f32: strict (IEEE), fast (tf32)"},
    {"--dropout", "dropout", "P,P", "Probability that an attention weight is dropped; training passes"},
    {"--batch", "batch", "N,N", "Batch size; packed: number of sequences"},
    {"--heads", "heads", "N,N", "Attention heads"},
    {"--head-dim", "head_dim", "N,N", "Head dimensions: 32, 64, 128"},
    {"--length", "length", "N,N", "Sequence lengths; packed: of the longest sequence"},
};

std::string field_names(const Fields& fields) {
    std::string names;
    for (const auto& [name, value] : fields.entries()) names += (names.empty() ? "" : ", ") + name;
    return names;
}

// The text as a value of the type that the field has.
FieldValue typed(const std::string& flag, const FieldValue& before, const std::string& text) {
    if (std::holds_alternative<std::string>(before)) return text;
    if (std::holds_alternative<bool>(before)) {
        if (text == "true" || text == "false") return text == "true";
        throw InvalidArgument(flag, fmt::format("'{}' is neither true nor false", text));
    }
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size())
        throw InvalidArgument(flag, fmt::format("'{}' is no whole number", text));
    return value;
}

void set_field(Fields& problem, const std::string& flag, const std::string& name, const std::string& text) {
    const FieldValue* before = problem.find(name);
    if (!before)
        throw InvalidArgument(flag,
                              fmt::format("the operation has no field {}; it has: {}", name, field_names(problem)));
    problem.set(name, typed(flag, *before, text));
}

}  // namespace

void BenchCommand::add_to(CLI::App& app) {
    const auto add = [&](const char* flag, auto& value, const std::string& help, const char* type, const char* group) {
        return app.add_option(flag, value, help)->type_name(type)->group(group);
    };
    const char* const what = "What to measure (lists are combined)";
    add("--op", operation, "The operation; default disentangled_attention", "A", what);
    for (const FieldFlag& each : kFieldFlags) add(each.flag, values[each.flag], each.help, each.type, what);
    app.add_flag("--mask", mask, "With a keep mask (random right padding)")->group(what);
    add("--tokens", tokens, "Rows of the batch in all, instead of --batch: batch is N / length", "N", what)
        ->check([](const std::string& text) { return text == "0" ? "0 is no number of rows" : ""; });
    add("--set", set, "Any other field of the problem, such as position_buckets=128; may be repeated", "NAME=VALUE",
        what);
    const char* const how = "How";
    add("--device", device, "auto (first GPU, else the CPU; default), cpu, or a GPU's number", "N|cpu|auto", how);
    add("--config", config,
        "The first candidate with these fields, such as \"tier=mma block_m=64\"; default: by policy", "FIELDS", how);
    add("--policy", policy, "How the config is picked: auto (default), heuristic, autotune, profile_only", "P", how);
    add("--profile", profile, "A profile that comes before those found by themselves", "FILE", how);
    add("--repeats", repeats, "Samples of each; default 50", "N", how);
    add("--peak-tflops", peak_tflops, "TFLOP/s of the device, for the floor; default: known for some devices", "X",
        how);
    add("--peak-gbs", peak_gigabytes, "GB/s of its memory, likewise", "X", how);
    app.add_flag("--json", json, "One JSON object with a list `rows`; progress goes to standard error")
        ->group("Output");
}

std::vector<Fields> BenchCommand::problems(const Operation& chosen) const {
    Fields base = chosen.example_problem();
    if (mask) set_field(base, "--mask", "mask", "true");
    for (const std::string& assignment : set) {
        const std::size_t equals = assignment.find('=');
        if (equals == std::string::npos || equals == 0)
            throw InvalidArgument("--set", fmt::format("'{}' is not of the form name=value", assignment));
        set_field(base, "--set", assignment.substr(0, equals), assignment.substr(equals + 1));
    }
    std::vector<Fields> all = {base};
    for (const FieldFlag& each : kFieldFlags) {
        const std::string& given = values.at(each.flag);
        if (given.empty()) continue;
        for (const std::string& assignment : set)
            if (assignment.rfind(each.field + std::string("="), 0) == 0)
                throw InvalidArgument("--set", fmt::format("{} and {} exclude each other", assignment, each.flag));
        std::vector<Fields> next;
        for (const Fields& problem : all)
            for (const std::string& value : split_list(each.flag, given)) {
                next.push_back(problem);
                set_field(next.back(), each.flag, each.field, value);
            }
        all = std::move(next);
    }
    if (tokens == 0) return all;
    if (tokens < 0) throw InvalidArgument("--tokens", fmt::format("{} is no number of rows", tokens));
    if (!values.at("--batch").empty()) throw InvalidArgument("--tokens", "and --batch exclude each other");
    for (Fields& problem : all) {
        const std::int64_t length = problem.integer("length");
        if (length > 0 && (tokens < length || tokens % length != 0))
            throw InvalidArgument("--tokens", fmt::format("{} is no multiple of length {}", tokens, length));
        problem.set("batch", length > 0 ? tokens / length : 1);
    }
    return all;
}

RuntimeOptions BenchCommand::runtime_options() const {
    RuntimeOptions options;
    options.device = device;
    if (!policy.empty()) {
        options.policy = parse_policy(policy);
        if (options.policy == Policy::fixed) throw InvalidArgument("--policy", "for a fixed config give --config");
    }
    if (!profile.empty()) options.profiles = {profile};
    return options;
}

}  // namespace turbotune::cli
