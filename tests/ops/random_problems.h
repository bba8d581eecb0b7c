// Random problems against the float64 reference: odd lengths, every mask, every combination of terms.
#pragma once

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "attention_suite.h"
#include "cases.h"
#include "reference.h"

namespace turbotune::testing {

inline const std::vector<int>& odd_lengths() {
    static const std::vector<int> lengths = {1,   2,   17,  31,  32,  33,  63,  64,  65,   127,  128,
                                             129, 217, 255, 256, 257, 511, 512, 513, 1021, 1024, 2048};
    return lengths;
}

inline da::Problem random_problem(int length, int head_dim, ElementType dtype, bool mask) {
    da::Problem problem;
    problem.batch = length > 600 ? 1 : 2;
    problem.heads = length > 600 ? 1 : 2;
    problem.length = length;
    problem.head_dim = head_dim;
    problem.dtype = dtype;
    problem.math = dtype.math;
    problem.mask = mask;
    return problem;
}

inline void check_lengths(AttentionSuite& suite, int head_dim, ElementType dtype) {
    for (int length : odd_lengths()) {
        const da::Problem problem = random_problem(length, head_dim, dtype, false);
        const TestCase data = da::make_case(problem, da::MaskPattern::none, {}, 1000 + length, true);
        INFO(data.label);
        CHECK(suite.error_of(problem, data) <= data.tolerance);
    }
}

inline void check_masks(AttentionSuite& suite, int head_dim, ElementType dtype) {
    using enum da::MaskPattern;
    for (da::MaskPattern pattern : {right, left, holes, second_half, last_only, first_only, alternating, all_hidden})
        for (int length : {1, 33, 129, 300, 1021}) {
            da::Problem problem = random_problem(length, head_dim, dtype, true);
            problem.position_buckets = 32;  // far tiles already at short lengths
            problem.max_relative_positions = 64;
            const TestCase data = da::make_case(problem, pattern, {}, 77 + length, true);
            INFO(data.label);
            CHECK(suite.error_of(problem, data) <= data.tolerance);
        }
}

// c2p, p2c and none, with and without buckets, band narrower and wider than the sequence.
inline void check_terms(AttentionSuite& suite, int head_dim, ElementType dtype) {
    for (auto [c2p, p2c] : {std::pair{true, false}, {false, true}, {false, false}})
        for (auto [buckets, most] : {std::pair{256, 512}, {16, 32}, {0, 40}, {-1, 1000}, {2, 8}})
            for (int length : {65, 200, 700}) {
                da::Problem problem = random_problem(length, head_dim, dtype, false);
                problem.c2p = c2p;
                problem.p2c = p2c;
                problem.position_buckets = buckets;
                problem.max_relative_positions = most;
                const TestCase data = da::make_case(problem, da::MaskPattern::none, {}, 5, true);
                INFO(data.label << " c2p=" << c2p << " p2c=" << p2c);
                CHECK(suite.error_of(problem, data) <= data.tolerance);
            }
}

inline void check_packed(AttentionSuite& suite, int head_dim, ElementType dtype) {
    for (std::vector<int> lengths :
         {std::vector{5}, {64, 1, 0, 130, 33}, {0, 0, 17}, {33, 130, 0, 1, 64}, {16, 16, 900, 16, 16, 3}, {0}}) {
        da::Problem problem = random_problem(1, head_dim, dtype, false);
        problem.layout = da::Layout::packed;
        problem.heads = 2;
        problem.batch = static_cast<int>(lengths.size());
        problem.length = std::max(1, *std::max_element(lengths.begin(), lengths.end()));
        problem.tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
        const TestCase data = da::make_case(problem, da::MaskPattern::none, lengths, 31, true);
        INFO(data.label);
        CHECK(suite.error_of(problem, data) <= data.tolerance);
    }
}

// Views of one fused projection [B, L, 3 * H * D], output heads first: the same bits as dense tensors.
inline void check_strided_views(AttentionSuite& suite, int head_dim, ElementType dtype) {
    const da::Problem dense = random_problem(150, head_dim, dtype, false);
    const TestCase data = da::make_case(dense, da::MaskPattern::none, {}, 9, false);
    const HostTensor want = suite.outputs_of(data).at("out");

    da::Problem fused = dense;
    const std::int64_t width = std::int64_t{dense.heads} * dense.head_dim;
    fused.q = fused.k = fused.v = {3 * width * dense.length, 3 * width, dense.head_dim};
    fused.out = {width * dense.length, dense.head_dim, std::int64_t{dense.head_dim} * dense.length};  // [B, H, L, D]
    const std::size_t element = size_of(dtype), row = static_cast<std::size_t>(width) * element;
    HostTensor qkv(dtype, {dense.batch, dense.length, 3 * width});
    const std::size_t rows = static_cast<std::size_t>(dense.batch) * static_cast<std::size_t>(dense.length);
    for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t part = 0; part < 3; ++part)
            std::memcpy(&qkv.data[(3 * r + part) * row], &data.inputs.at(std::string(1, "qkv"[part])).data[r * row],
                        row);

    Device& device = suite.runtime().device();
    const Uploaded tables = upload(device, data);
    DeviceBuffer input(device, qkv.data.size()), output(device, want.data.size());
    device.copy_to_device(input.get(), qkv.data.data(), qkv.data.size());
    device.fill(output.get(), 0xff, want.data.size());
    const da::AttentionPlan plan = suite.plan_of(fused);
    DeviceBuffer workspace(device, std::max<std::size_t>(256, plan.workspace_bytes()));
    da::Buffers buffers;
    auto at = [&](std::size_t part) { return static_cast<std::byte*>(input.get()) + part * row; };
    buffers.q = at(0);
    buffers.k = at(1);
    buffers.v = at(2);
    buffers.position_key = tables.bindings.at("position_key");
    buffers.position_query = tables.bindings.at("position_query");
    buffers.out = output.get();
    buffers.workspace = workspace.get();
    plan.execute(buffers);
    device.synchronize(nullptr);
    HostTensor got(dtype, {dense.batch, dense.heads, dense.length, dense.head_dim});
    device.copy_to_host(got.data.data(), output.get(), got.data.size());
    std::size_t wrong = 0;
    for (int b = 0; b < dense.batch; ++b)
        for (int i = 0; i < dense.length; ++i)
            for (int h = 0; h < dense.heads; ++h) {
                const std::size_t bytes = static_cast<std::size_t>(head_dim) * element;
                const auto from = static_cast<std::size_t>((b * dense.heads + h) * dense.length + i) * bytes;
                const auto to = static_cast<std::size_t>((b * dense.length + i) * dense.heads + h) * bytes;
                wrong += std::memcmp(&got.data[from], &want.data[to], bytes) != 0;
            }
    CHECK(wrong == 0);
}

// Rows whose stride is odd in elements, so that no row but the first is aligned to more than an element.
inline void check_unaligned_rows(AttentionSuite& suite, int head_dim, ElementType dtype) {
    const da::Problem dense = random_problem(70, head_dim, dtype, false);
    const TestCase data = da::make_case(dense, da::MaskPattern::none, {}, 12, true);
    const std::int64_t width = std::int64_t{dense.heads} * dense.head_dim, wide = width + 1;
    const std::size_t element = size_of(dtype);
    da::Problem spread = dense;
    spread.q = spread.k = spread.v = spread.out = {wide * dense.length, wide, dense.head_dim};
    Device& device = suite.runtime().device();
    const Uploaded tables = upload(device, data);
    const std::size_t rows = static_cast<std::size_t>(dense.batch) * static_cast<std::size_t>(dense.length);
    std::vector<DeviceBuffer> spread_inputs;
    for (const char* name : {"q", "k", "v"}) {
        HostTensor wide_rows(dtype, {static_cast<std::int64_t>(rows), wide});
        for (std::size_t r = 0; r < rows; ++r)
            std::memcpy(&wide_rows.data[r * static_cast<std::size_t>(wide) * element],
                        &data.inputs.at(name).data[r * static_cast<std::size_t>(width) * element],
                        static_cast<std::size_t>(width) * element);
        spread_inputs.emplace_back(device, wide_rows.data.size());
        device.copy_to_device(spread_inputs.back().get(), wide_rows.data.data(), wide_rows.data.size());
    }
    HostTensor got(dtype, {static_cast<std::int64_t>(rows), wide});
    DeviceBuffer output(device, got.data.size());
    device.fill(output.get(), 0xff, got.data.size());
    const da::AttentionPlan plan = suite.plan_of(spread);
    DeviceBuffer workspace(device, std::max<std::size_t>(256, plan.workspace_bytes()));
    da::Buffers buffers;
    buffers.q = spread_inputs[0].get();
    buffers.k = spread_inputs[1].get();
    buffers.v = spread_inputs[2].get();
    buffers.position_key = tables.bindings.at("position_key");
    buffers.position_query = tables.bindings.at("position_query");
    buffers.out = output.get();
    buffers.workspace = workspace.get();
    plan.execute(buffers);
    device.synchronize(nullptr);
    device.copy_to_host(got.data.data(), output.get(), got.data.size());
    HostTensor compact(dtype, data.outputs[0].shape);
    std::size_t touched = 0;
    for (std::size_t r = 0; r < rows; ++r) {
        const std::byte* source = &got.data[r * static_cast<std::size_t>(wide) * element];
        std::memcpy(&compact.data[r * static_cast<std::size_t>(width) * element], source,
                    static_cast<std::size_t>(width) * element);
        for (std::size_t b = 0; b < element; ++b)
            touched += source[static_cast<std::size_t>(width) * element + b] != std::byte{0xff};
    }
    CHECK(touched == 0);  // nothing beyond the rows is written
    CHECK(largest_error(compact, data.expected.at("out")) <= data.tolerance);
}

// A mask that keeps everything equals no mask, a batch equals its parts, and a second call equals the first: bit for
// bit.
inline void check_bitwise(AttentionSuite& suite, int head_dim, ElementType dtype) {
    da::Problem problem = random_problem(193, head_dim, dtype, false);
    problem.batch = 4;
    const TestCase data = da::make_case(problem, da::MaskPattern::none, {}, 3, false);
    const HostTensor whole = suite.outputs_of(data).at("out");
    CHECK(same_bits(whole, suite.outputs_of(data).at("out")));

    TestCase masked = data;
    masked.problem.set("mask", FieldValue(true));
    HostTensor keep(DType::u8, {problem.batch, problem.length});
    std::fill(keep.data.begin(), keep.data.end(), std::byte{1});
    masked.inputs["mask"] = keep;
    CHECK(same_bits(whole, suite.outputs_of(masked).at("out")));

    for (int b = 0; b < problem.batch; ++b) {
        TestCase part = data;
        part.problem.set("batch", 1);
        part.outputs[0].shape[0] = 1;
        const std::size_t bytes = whole.data.size() / 4, first = static_cast<std::size_t>(b) * bytes;
        for (const char* name : {"q", "k", "v"}) {
            HostTensor& tensor = part.inputs.at(name);
            tensor.shape[0] = 1;
            tensor.data.assign(data.inputs.at(name).data.begin() + static_cast<std::ptrdiff_t>(first),
                               data.inputs.at(name).data.begin() + static_cast<std::ptrdiff_t>(first + bytes));
        }
        const HostTensor got = suite.outputs_of(part).at("out");
        CHECK(std::memcmp(got.data.data(), &whole.data[first], bytes) == 0);
    }
}

// Activations up to 1e4: scores far beyond what 16 bits hold.
inline void check_large_activations(AttentionSuite& suite, ElementType dtype) {
    const da::Problem problem = random_problem(140, 64, dtype, false);
    TestCase data = da::make_case(problem, da::MaskPattern::none, {}, 4, false);
    for (const char* name : {"q", "k", "position_key", "position_query"}) {
        HostTensor& tensor = data.inputs.at(name);
        for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, tensor.at(i) * 2500);
    }
    const HostTensor out = suite.outputs_of(data).at("out");
    bool finite = true;
    for (std::int64_t i = 0; i < out.size(); ++i) finite = finite && std::isfinite(out.at(i));
    CHECK(finite);
}

// Makes the problem one of packed sequences.
inline void pack(da::Problem& problem, const std::vector<int>& lengths) {
    problem.layout = da::Layout::packed;
    problem.batch = static_cast<int>(lengths.size());
    problem.length = *std::max_element(lengths.begin(), lengths.end());
    problem.tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

// Makes the keys grow along each sequence, so that a row's largest score moves on and on.
inline void grow_keys(const da::Problem& problem, const std::vector<int>& lengths, TestCase& data) {
    HostTensor& k = data.inputs.at("k");
    const std::int64_t row = std::int64_t{problem.heads} * problem.head_dim;
    std::int64_t at = 0;
    for (int length : lengths)
        for (int i = 0; i < length; ++i)
            for (std::int64_t n = 0; n < row; ++n, ++at) k.set(at, k.at(at) * (0.1 + 6.0 * i / length));
    data.expected = da::forward_reference(problem, data.inputs, da::kCaseDropoutSeed, da::kCaseDropoutOffset);
}

// With far tiles on both sides: padded, padded with a mask, packed, and with dropout where the tier has it.
inline void check_growing_scores(AttentionSuite& suite, int head_dim, ElementType dtype) {
    for (int length : {300, 900})
        for (const char* form : {"padded", "masked", "packed", "dropout", "masked, dropout"}) {
            const std::string what = form;
            da::Problem problem = random_problem(length, head_dim, dtype, what.find("masked") == 0);
            problem.position_buckets = 32;
            problem.max_relative_positions = 64;
            std::vector<int> lengths(static_cast<std::size_t>(problem.batch), length);
            if (what == "packed") {
                lengths = {70, length, 140};
                pack(problem, lengths);
            }
            if (what.find("dropout") != std::string::npos)
                problem.pass = da::Pass::training_forward, problem.dropout = 0.1f;
            const da::MaskPattern pattern = problem.mask ? da::MaskPattern::holes : da::MaskPattern::none;
            TestCase data = da::make_case(problem, pattern, what == "packed" ? lengths : std::vector<int>{}, 6, false);
            grow_keys(problem, lengths, data);
            INFO(form << ", length " << length);
            CHECK(suite.error_of(problem, data) <= da::tolerance_of(problem));
        }
}

// Rows that cannot be loaded as boxes, all hidden in some of the batch, more than a device takes at once: a block of
// the grid meets several heads, and hidden rows after kept ones.
inline void check_hidden_batches(AttentionSuite& suite, int head_dim, ElementType dtype, const Config& config) {
    da::Problem problem = random_problem(64, head_dim, dtype, true);
    problem.batch = 31;
    problem.heads = 6;
    TestCase data = da::make_case(problem, da::MaskPattern::holes, {}, 14, false);
    auto* keep = reinterpret_cast<std::uint8_t*>(data.inputs.at("mask").data.data());
    for (int b = 0; b < problem.batch; ++b)
        if (b % 3 != 0) std::fill_n(keep + b * problem.length, problem.length, std::uint8_t{0});
    // One sequence of keys and values for the whole batch.
    const std::size_t bytes = data.inputs.at("k").data.size() / 31;
    for (const char* name : {"k", "v"}) {
        HostTensor& tensor = data.inputs.at(name);
        for (std::size_t b = 1; b < 31; ++b) std::memcpy(&tensor.data[b * bytes], &tensor.data[0], bytes);
    }
    const NamedTensors expected = da::forward_reference(problem, data.inputs, 0, 0);
    problem.k = problem.v = {0, std::int64_t{problem.heads} * head_dim, head_dim};
    data.problem = problem.to_fields();
    const NamedTensors outputs = run_case(suite.runtime(), da::operation(), data, &config);
    CHECK(largest_error(outputs.at("out"), expected.at("out")) <= da::tolerance_of(problem));
}

// A query that is not a number spoils its own row alone, in the tiles of hidden rows too, whose scores are set to zero.
inline void check_lone_nan(AttentionSuite& suite, int head_dim, ElementType dtype) {
    for (int length : {100, 500}) {
        da::Problem problem = random_problem(length, head_dim, dtype, true);
        problem.position_buckets = 16;
        problem.max_relative_positions = 32;
        TestCase data = da::make_case(problem, da::MaskPattern::alternating, {}, 15, false);
        const std::int64_t row = std::int64_t{problem.heads} * head_dim;
        data.inputs.at("q").set(row, std::numeric_limits<double>::quiet_NaN());  // row 1, which is kept, of head 0
        const HostTensor out = suite.outputs_of(data).at("out");
        std::int64_t kept = 0, spoilt = 0;
        for (std::int64_t i = 0; i < out.size(); ++i) {
            const bool own = i / row == 1 && i % row < head_dim;
            (own ? kept : spoilt) += own != std::isnan(out.at(i));
        }
        INFO("length " << length);
        CHECK(kept == 0);    // elements of the row that are numbers
        CHECK(spoilt == 0);  // elements of others that are not
    }
}

}  // namespace turbotune::testing
