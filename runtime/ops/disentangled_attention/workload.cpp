#include "workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "turbotune/base/error.h"

namespace turbotune::disentangled_attention {

namespace {

using Texts = std::vector<std::string>;

struct Axes {
    Texts length, batch_heads, head_dim, precision, layout, pass, relative, dropout;
};

constexpr float kTunedDropout = 0.1f;  // DeBERTa's own; the time does not depend on it

const Texts kTraining = {"training_forward", "backward_dq", "backward_dkdv"};

Axes preset_axes(Preset preset) {
    Axes axes;
    axes.head_dim = {"64"};
    axes.layout = {"padded", "padded_masked", "packed"};
    axes.pass = {"inference", "training_forward", "backward_dq", "backward_dkdv"};
    axes.relative = {"c2p_p2c"};
    axes.dropout = {"off", "on"};
    axes.precision = {"half"};
    axes.batch_heads = {"32"};
    switch (preset) {
        case Preset::quick:
            axes.length = {"64"};
            axes.dropout = {"off"};
            break;
        case Preset::standard:
            axes.length = {"128", "512", "2048", "8192"};
            break;
        case Preset::exhaustive:
            for (int family : kLengthFamilies) axes.length.push_back(std::to_string(family));
            axes.batch_heads = {"8", "32"};
            axes.precision = {"half", "fp32_strict", "fp32_fast"};
            break;
    }
    return axes;
}

struct AxisRule {
    const char* name;
    Texts Axes::*values;
    const char* allowed;                           // for messages and help
    std::string (*canonical)(const std::string&);  // empty: not a value of this axis
};

int parse_positive(const std::string& text) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() && value > 0 ? value : 0;
}

std::string one_of(const std::string& text, std::initializer_list<const char*> names) {
    for (const char* name : names)
        if (text == name) return text;
    return "";
}

const AxisRule kRules[] = {
    {"length", &Axes::length, "any length from 1; its family is tuned (64, 128, 384, 512, 768, 1024, 2048, 4096, 8192)",
     [](const std::string& text) {
         const int length = parse_positive(text);
         return length ? std::to_string(length_family(length)) : "";
     }},
    {"batch_heads", &Axes::batch_heads, "8, 32",
     [](const std::string& text) {
         return one_of(text, {"8", "32"});
     }},
    {"head_dim", &Axes::head_dim, "32, 64, 128",
     [](const std::string& text) {
         return one_of(text, {"32", "64", "128"});
     }},
    {"precision", &Axes::precision, "half (also fp16, bf16), fp32_strict (also fp32), fp32_fast (also tf32)",
     [](const std::string& text) -> std::string {
         if (text == "fp16" || text == "bf16" || text == "f16") return "half";
         if (text == "fp32" || text == "f32") return "fp32_strict";
         if (text == "tf32") return "fp32_fast";
         return one_of(text, {"half", "fp32_strict", "fp32_fast"});
     }},
    {"layout", &Axes::layout, "padded, padded_masked, packed",
     [](const std::string& text) {
         return one_of(text, {"padded", "padded_masked", "packed"});
     }},
    {"pass", &Axes::pass, "inference, training_forward, backward_dq, backward_dkdv, training (the last three)",
     [](const std::string& text) {
         return one_of(text, {"inference", "training_forward", "backward_dq", "backward_dkdv"});
     }},
    {"relative", &Axes::relative, "c2p_p2c, c2p, p2c, none",
     [](const std::string& text) {
         return one_of(text, {"c2p_p2c", "c2p", "p2c", "none"});
     }},
    {"dropout", &Axes::dropout, "off, on",
     [](const std::string& text) {
         return one_of(text, {"off", "on"});
     }},
};

void apply_axis(Axes& axes, const std::string& name, const Texts& given) {
    const auto rule =
        std::find_if(std::begin(kRules), std::end(kRules), [&](const AxisRule& r) { return name == r.name; });
    if (rule == std::end(kRules)) throw InvalidArgument(name, fmt::format("{} has no such axis", kName));
    Texts values;
    auto add = [&](const std::string& value) {
        if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
    };
    for (const std::string& text : given) {
        if (name == "pass" && text == "training") {
            for (const std::string& pass : kTraining) add(pass);
            continue;
        }
        const std::string value = rule->canonical(text);
        if (value.empty()) throw InvalidArgument(name, fmt::format("\"{}\" is not one of: {}", text, rule->allowed));
        add(value);
    }
    if (values.empty()) throw InvalidArgument(name, "no value given");
    axes.*(rule->values) = values;
}

Workload make_workload(const std::string& pass, const std::string& layout, int length, int batch_heads, int head_dim,
                       const std::string& precision, const std::string& relative, bool dropout) {
    Workload workload{kName, {}};
    workload.fields.set("pass", FieldValue(pass));
    workload.fields.set("layout", FieldValue(layout));
    workload.fields.set("length", length);
    workload.fields.set("batch_heads", batch_heads);
    workload.fields.set("head_dim", head_dim);
    workload.fields.set("precision", FieldValue(precision));
    workload.fields.set("relative", FieldValue(relative));
    workload.fields.set("dropout", FieldValue(dropout));
    return workload;
}

// Calls visit for every combination of the axes other than pass and dropout, which together make one case.
template <class Visit>
void for_each_case(const Axes& axes, Visit visit) {
    for (const std::string& precision : axes.precision)
        for (const std::string& head_dim : axes.head_dim)
            for (const std::string& relative : axes.relative)
                for (const std::string& batch_heads : axes.batch_heads)
                    for (const std::string& length : axes.length)
                        for (const std::string& layout : axes.layout)
                            visit(layout, std::stoi(length), std::stoi(batch_heads), std::stoi(head_dim), precision,
                                  relative);
}

std::string relative_name(bool c2p, bool p2c) {
    return c2p ? (p2c ? "c2p_p2c" : "c2p") : (p2c ? "p2c" : "none");
}

}  // namespace

int length_family(int length) {
    for (int family : kLengthFamilies)
        if (length <= family) return family;
    return *std::rbegin(kLengthFamilies);
}

Workload workload_of(const Problem& problem) {
    const std::string layout =
        problem.layout == Layout::packed ? "packed" : (problem.mask ? "padded_masked" : "padded");
    const std::string precision =
        problem.dtype != DType::f32 ? "half" : (problem.math == Math::fast ? "fp32_fast" : "fp32_strict");
    // The boundary is the geometric middle of the two occupancies.
    const int batch_heads = std::int64_t{problem.batch} * problem.heads <= 16 ? 8 : 32;
    // One set of kernels gives every gradient; its two workloads share a winner (shared_winner).
    const std::string pass = problem.pass == Pass::backward ? "backward_dkdv" : to_string(problem.pass);
    return make_workload(pass, layout, length_family(problem.length), batch_heads, problem.head_dim, precision,
                         relative_name(problem.c2p, problem.p2c), problem.dropout > 0);
}

std::vector<Workload> enumerate_workloads(const WorkloadQuery& query) {
    Axes axes = preset_axes(query.preset);
    for (const auto& [name, values] : query.axes) apply_axis(axes, name, values);
    std::vector<Workload> workloads;
    for_each_case(axes, [&](auto&&... key) {
        for (const std::string& pass : axes.pass)
            for (const std::string& dropout : axes.dropout) {
                // Inference drops nothing, so it is one workload whatever the dropout axis says.
                const bool inference = pass == "inference";
                if (inference && &dropout != &axes.dropout.front()) continue;
                workloads.push_back([&](const std::string& layout, auto&&... rest) {
                    return make_workload(pass, layout, rest..., !inference && dropout == "on");
                }(key...));
            }
    });
    return workloads;
}

std::vector<Workload> workload_neighbours(const Workload& workload) {
    const auto length = static_cast<int>(workload.fields.integer("length"));
    std::vector<int> lengths(std::begin(kLengthFamilies), std::end(kLengthFamilies));
    const auto own = std::find(lengths.begin(), lengths.end(), length) - lengths.begin();
    std::stable_sort(lengths.begin(), lengths.end(), [&](int a, int b) {
        auto distance = [&](int family) {
            const auto index =
                std::find(std::begin(kLengthFamilies), std::end(kLengthFamilies), family) - std::begin(kLengthFamilies);
            return 2 * std::abs(index - own) - (index > own ? 1 : 0);  // of two equally near the longer first
        };
        return distance(a) < distance(b);
    });
    const bool packed = workload.fields.text("layout") == "packed";
    const Texts layouts = packed                                       ? Texts{"packed"}
                          : workload.fields.text("layout") == "padded" ? Texts{"padded", "padded_masked"}
                                                                       : Texts{"padded_masked", "padded"};
    const std::int64_t occupancy = workload.fields.integer("batch_heads");
    std::vector<Workload> neighbours;
    for (const std::string& layout : layouts)
        for (int family : lengths)
            for (std::int64_t batch_heads : {occupancy, occupancy == 8 ? std::int64_t{32} : std::int64_t{8}}) {
                Workload neighbour = workload;
                neighbour.fields.set("layout", FieldValue(layout));
                neighbour.fields.set("length", family);
                neighbour.fields.set("batch_heads", FieldValue(batch_heads));
                if (!(neighbour == workload)) neighbours.push_back(neighbour);
            }
    return neighbours;
}

std::vector<std::pair<std::string, std::string>> workload_axes() {
    std::vector<std::pair<std::string, std::string>> axes;
    for (const AxisRule& rule : kRules) axes.emplace_back(rule.name, rule.allowed);
    return axes;
}

Problem problem_of(const Workload& workload, DType dtype) {
    const Fields& fields = workload.fields;
    Problem problem;
    const std::string& pass = fields.text("pass");
    problem.pass = pass == "inference"          ? Pass::inference
                   : pass == "training_forward" ? Pass::training_forward
                                                : Pass::backward;
    if (fields.boolean("dropout")) problem.dropout = kTunedDropout;
    problem.layout = fields.text("layout") == "packed" ? Layout::packed : Layout::padded;
    problem.mask = fields.text("layout") == "padded_masked";
    problem.dtype = dtype;
    problem.math = fields.text("precision") == "fp32_fast" ? Math::fast : Math::strict;
    problem.length = static_cast<int>(fields.integer("length"));
    problem.head_dim = static_cast<int>(fields.integer("head_dim"));
    const std::string& relative = fields.text("relative");
    problem.c2p = relative == "c2p_p2c" || relative == "c2p";
    problem.p2c = relative == "c2p_p2c" || relative == "p2c";
    return problem;
}

std::optional<Workload> shared_winner(const Workload& workload) {
    const std::string& pass = workload.fields.text("pass");
    if (pass != "backward_dq" && pass != "backward_dkdv") return std::nullopt;
    Workload other = workload;
    other.fields.set("pass", pass == "backward_dq" ? "backward_dkdv" : "backward_dq");
    return other;
}

std::vector<DType> dtypes_of(const Workload& workload) {
    if (workload.fields.text("precision") == "half") return {DType::bf16, DType::f16};
    return {DType::f32};
}

}  // namespace turbotune::disentangled_attention
