#include "turbotune/ops/disentangled_attention/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <limits>

#include "turbotune/base/error.h"

namespace turbotune::disentangled_attention {

namespace {

constexpr std::array<const char*, 3> kPasses = {"inference", "training_forward", "backward"};

void require_positive(const char* name, std::int64_t value) {
    if (value < 1) throw InvalidArgument(name, fmt::format("must be at least 1, got {}", value));
}

// Extents and strides of one view, to find out whether two of its elements share an address.
struct Axis {
    std::int64_t extent, stride;
};

void require_distinct(const char* name, std::vector<Axis> axes) {
    axes.erase(std::remove_if(axes.begin(), axes.end(), [](const Axis& a) { return a.extent <= 1; }), axes.end());
    std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
    std::int64_t span = 1;
    for (const Axis& axis : axes) {
        if (axis.stride < span)
            throw InvalidArgument(name, fmt::format("stride {} makes elements of the output overlap", axis.stride));
        span = axis.stride * (axis.extent - 1) + span;
    }
}

constexpr std::int64_t kMostStride = std::int64_t{1} << 40;  // elements; products with an index stay far below 2^63
constexpr int kMostLength = 1 << 22;                         // rows of a sequence

void require_strides(const char* name, const Strides& strides) {
    for (std::int64_t stride : {strides.batch, strides.row, strides.head})
        if (stride < 0 || stride > kMostStride)
            throw InvalidArgument(name, fmt::format("stride {} is not in [0, {}]", stride, kMostStride));
    if (strides.row == 0 && (strides.head != 0 || strides.batch != 0))
        throw InvalidArgument(name, "row stride 0 with other strides given: leave all at 0 for a dense tensor");
}

template <std::size_t N>
int index_of(const std::array<const char*, N>& names, const std::string& text, const char* field) {
    for (std::size_t i = 0; i < N; ++i)
        if (text == names[i]) return static_cast<int>(i);
    throw InvalidArgument(field, fmt::format("unknown value \"{}\"; one of: {}", text, fmt::join(names, ", ")));
}

int small_integer(const Fields& fields, const char* name) {
    const std::int64_t value = fields.integer(name);
    if (value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max())
        throw InvalidArgument(name, fmt::format("out of range: {}", value));
    return static_cast<int>(value);
}

// Of the form that fmt gives a float, so that it comes back bit for bit.
float probability(const std::string& text) {
    char* end = nullptr;
    const float value = std::strtof(text.c_str(), &end);
    if (text.empty() || *end) throw InvalidArgument("dropout", fmt::format("\"{}\" is not a number", text));
    return value;
}

}  // namespace

std::string to_string(Pass pass) {
    return kPasses[static_cast<int>(pass)];
}
std::string to_string(Layout layout) {
    return layout == Layout::padded ? "padded" : "packed";
}

float Problem::scale() const {
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim) * (1 + int(c2p) + int(p2c))));
}

void Problem::validate() const {
    if (pass < Pass::inference || pass > Pass::backward) throw InvalidArgument("pass", "is none of the passes");
    if (layout != Layout::padded && layout != Layout::packed)
        throw InvalidArgument("layout", "is neither padded nor packed");
    if (math != Math::strict && math != Math::fast) throw InvalidArgument("math", "is neither strict nor fast");
    require_positive("batch", batch);
    require_positive("heads", heads);
    require_positive("length", length);
    if (length > kMostLength) throw Unsupported(fmt::format("length must be at most {}, got {}", kMostLength, length));
    if (head_dim != 32 && head_dim != 64 && head_dim != 128)
        throw Unsupported(fmt::format("head_dim must be 32, 64 or 128, got {}", head_dim));
    if (dtype != DType::f16 && dtype != DType::bf16 && dtype != DType::f32)
        throw Unsupported(fmt::format("dtype must be f16, bf16 or f32, got {}", turbotune::to_string(dtype)));
    if (math == Math::fast && dtype != DType::f32)
        throw InvalidArgument("math", "fast applies to f32 only; half types always use tensor cores");
    if (!(dropout >= 0 && dropout < 1))
        throw InvalidArgument("dropout", fmt::format("must be at least 0 and below 1, got {}", dropout));
    if (dropout > 0 && pass == Pass::inference) throw InvalidArgument("dropout", "inference drops nothing");
    if (c2p || p2c) {
        require_positive("max_relative_positions", max_relative_positions);
        if (position_buckets == 1)
            throw InvalidArgument("position_buckets", "1 bucket has no distances; use at least 2, or 0 for none");
        // The logarithmic buckets run from position_buckets / 2 to max_relative_positions - 1.
        if (position_buckets > 1 && max_relative_positions - 1 <= position_buckets / 2)
            throw InvalidArgument("max_relative_positions",
                                  fmt::format("must be at least {} with {} position buckets, got {}",
                                              position_buckets / 2 + 2, position_buckets, max_relative_positions));
        constexpr int kMost = 1 << 20;
        if (span() > kMost || max_relative_positions > kMost)
            throw Unsupported(
                fmt::format("at most {} relative positions, got {}", kMost, std::max(span(), max_relative_positions)));
        make_slot_table(position_buckets, max_relative_positions);  // refuses ends out of reach
    }
    if (layout == Layout::packed) {
        if (mask) throw InvalidArgument("mask", "a packed batch has no mask: leave hidden rows out instead");
        if (tokens < 0) throw InvalidArgument("tokens", fmt::format("must not be negative, got {}", tokens));
        if (tokens > std::int64_t{batch} * length)
            throw InvalidArgument(
                "tokens", fmt::format("{} tokens do not fit {} sequences of at most {}", tokens, batch, length));
    } else if (tokens != 0) {
        throw InvalidArgument("tokens", "is for packed batches; leave it 0 with layout padded");
    }
    constexpr std::int64_t kMostBlocks = 65535;  // grid.y and grid.z of CUDA
    if (batch > kMostBlocks || heads > kMostBlocks)
        throw Unsupported(fmt::format("batch and heads must be at most {}, got {} and {}", kMostBlocks, batch, heads));

    struct Named {
        const char* name;
        const Strides& strides;
    };
    for (const Named& each : std::initializer_list<Named>{{"q", q},
                                                          {"k", k},
                                                          {"v", v},
                                                          {"out", out},
                                                          {"position_key", position_key},
                                                          {"position_query", position_query},
                                                          {"dout", dout},
                                                          {"dq", dq},
                                                          {"dk", dk},
                                                          {"dv", dv},
                                                          {"d_position_key", d_position_key},
                                                          {"d_position_query", d_position_query}})
        require_strides(each.name, each.strides);
    if (mask_batch_stride < 0) throw InvalidArgument("mask_batch_stride", "must not be negative");
    auto check_output = [&](const char* name, const Strides& strides) {
        if (strides.defaulted()) return;
        const std::int64_t rows = layout == Layout::packed ? tokens : length;
        std::vector<Axis> axes = {{head_dim, 1}, {rows, strides.row}, {heads, strides.head}};
        if (layout == Layout::padded) axes.push_back({batch, strides.batch});
        require_distinct(name, axes);
    };
    auto check_table = [&](const char* name, const Strides& strides) {
        if (strides.defaulted()) return;
        require_distinct(name, {{head_dim, 1}, {2 * std::int64_t{span()}, strides.row}, {heads, strides.head}});
    };
    if (pass != Pass::backward) return check_output("out", out);
    check_output("dq", dq);
    check_output("dk", dk);
    check_output("dv", dv);
    if (c2p) check_table("d_position_key", d_position_key);
    if (p2c) check_table("d_position_query", d_position_query);
}

Fields Problem::to_fields() const {
    Fields fields;
    fields.set("pass", to_string(pass));
    fields.set("layout", to_string(layout));
    fields.set("dtype", std::string(turbotune::to_string(dtype)));
    fields.set("math", math == Math::strict ? "strict" : "fast");
    fields.set("batch", batch);
    fields.set("heads", heads);
    fields.set("length", length);
    fields.set("head_dim", head_dim);
    fields.set("tokens", FieldValue(tokens));
    fields.set("c2p", FieldValue(c2p));
    fields.set("p2c", FieldValue(p2c));
    fields.set("position_buckets", position_buckets);
    fields.set("max_relative_positions", max_relative_positions);
    fields.set("mask", FieldValue(mask));
    fields.set("dropout", fmt::format("{}", dropout));
    return fields;
}

Problem Problem::from_fields(const Fields& fields) {
    Problem problem;
    problem.pass = static_cast<Pass>(index_of(kPasses, fields.text("pass"), "pass"));
    problem.layout = static_cast<Layout>(index_of(std::array{"padded", "packed"}, fields.text("layout"), "layout"));
    problem.dtype = parse_dtype(fields.text("dtype"));
    problem.math = static_cast<Math>(index_of(std::array{"strict", "fast"}, fields.text("math"), "math"));
    problem.batch = small_integer(fields, "batch");
    problem.heads = small_integer(fields, "heads");
    problem.length = small_integer(fields, "length");
    problem.head_dim = small_integer(fields, "head_dim");
    problem.tokens = fields.integer("tokens");
    problem.c2p = fields.boolean("c2p");
    problem.p2c = fields.boolean("p2c");
    problem.position_buckets = small_integer(fields, "position_buckets");
    problem.max_relative_positions = small_integer(fields, "max_relative_positions");
    problem.mask = fields.boolean("mask");
    problem.dropout = probability(fields.text("dropout"));
    return problem;
}

std::int32_t SlotTable::slot(std::int64_t delta) const {
    const std::int64_t clamped = std::clamp<std::int64_t>(delta, -band, band);
    return slots[static_cast<std::size_t>(clamped + band)];
}

SlotTable make_slot_table(int position_buckets, int max_relative_positions) {
    const int span = position_buckets > 0 ? position_buckets : max_relative_positions;
    const int middle = position_buckets / 2;
    auto bucket = [&](std::int64_t delta) -> std::int64_t {
        const std::int64_t distance = std::llabs(delta);
        if (position_buckets <= 0 || distance <= middle) return delta;
        const double ratio = std::log(double(distance) / middle) / std::log((max_relative_positions - 1.0) / middle);
        const auto magnitude = static_cast<std::int64_t>(std::ceil(ratio * (middle - 1))) + middle;
        return delta < 0 ? -magnitude : magnitude;
    };
    auto slot = [&](std::int64_t delta) {
        return static_cast<std::int32_t>(std::clamp<std::int64_t>(bucket(delta) + span, 0, 2 * std::int64_t{span} - 1));
    };
    // Buckets grow with the distance until both ends are reached: with an even number of buckets right behind
    // max_relative_positions, with an odd number farther out, with 2 or 3 buckets (middle 1) never.
    constexpr std::int64_t kFarthest = std::int64_t{1} << 22;
    std::int64_t farthest = std::int64_t{std::max(span, max_relative_positions)} + 1;
    while (middle > 1 && (slot(-farthest) != 0 || slot(farthest) != 2 * span - 1)) {
        farthest *= 2;
        if (farthest > kFarthest)
            throw Unsupported(
                fmt::format("{} position buckets up to {} do not reach their last slot within {} positions",
                            position_buckets, max_relative_positions, kFarthest));
    }
    SlotTable table;
    table.band = static_cast<int>(farthest);
    while (table.band > 1 && slot(-(table.band - 1)) == slot(-farthest) && slot(table.band - 1) == slot(farthest))
        --table.band;
    table.slots.resize(2 * static_cast<std::size_t>(table.band) + 1);
    for (std::int64_t delta = -table.band; delta <= table.band; ++delta)
        table.slots[static_cast<std::size_t>(delta + table.band)] = slot(delta);
    return table;
}

}  // namespace turbotune::disentangled_attention
