// Training problems against the float64 reference, for every tier: the forward pass with lse and dropout, and all
// gradients.
#pragma once

#include <limits>

#include "random_problems.h"

namespace turbotune::testing {

inline da::Problem training_problem(da::Pass pass, int length, int head_dim, ElementType dtype, bool mask,
                                    float dropout = 0) {
    da::Problem problem = random_problem(length, head_dim, dtype, mask);
    problem.pass = pass;
    problem.dropout = dropout;
    return problem;
}

inline da::Problem gradient_problem(int length, int head_dim, ElementType dtype, bool mask, float dropout = 0) {
    return training_problem(da::Pass::backward, length, head_dim, dtype, mask, dropout);
}

// Every output of the case within its tolerance.
inline void check_case(AttentionSuite& suite, const TestCase& data, const Config* config = nullptr) {
    const NamedTensors outputs =
        config ? run_case(suite.runtime(), da::operation(), data, config) : suite.outputs_of(data);
    for (const auto& [name, expected] : data.expected) {
        INFO(data.label << " " << name);
        CHECK(largest_error(outputs.at(name), expected) <= data.tolerance);
    }
}

inline void check_gradient_lengths(AttentionSuite& suite, int head_dim, ElementType dtype) {
    for (int length : {1, 2, 17, 33, 63, 64, 65, 127, 128, 129, 217, 257, 513, 1021})
        check_case(suite, da::make_case(gradient_problem(length, head_dim, dtype, false), da::MaskPattern::none, {},
                                        300 + length, true));
}

inline void check_gradient_masks(AttentionSuite& suite, int head_dim, ElementType dtype) {
    using enum da::MaskPattern;
    for (da::MaskPattern pattern : {right, left, holes, second_half, last_only, first_only, alternating, all_hidden})
        for (int length : {1, 33, 129, 300}) {
            da::Problem problem = gradient_problem(length, head_dim, dtype, true);
            problem.position_buckets = 32;
            problem.max_relative_positions = 64;
            check_case(suite, da::make_case(problem, pattern, {}, 400 + length, true));
        }
}

inline void check_gradient_terms(AttentionSuite& suite, int head_dim, ElementType dtype) {
    for (auto [c2p, p2c] : {std::pair{true, true}, {true, false}, {false, true}, {false, false}})
        for (auto [buckets, most] : {std::pair{256, 512}, {16, 32}, {0, 40}, {-1, 1000}, {2, 8}})
            for (int length : {65, 200, 700}) {
                da::Problem problem = gradient_problem(length, head_dim, dtype, false);
                problem.c2p = c2p;
                problem.p2c = p2c;
                problem.position_buckets = buckets;
                problem.max_relative_positions = most;
                INFO("c2p=" << c2p << " p2c=" << p2c);
                check_case(suite, da::make_case(problem, da::MaskPattern::none, {}, 6, true));
            }
}

inline da::Problem packed_problem(da::Problem problem, const std::vector<int>& lengths) {
    problem.layout = da::Layout::packed;
    problem.heads = 2;
    problem.batch = static_cast<int>(lengths.size());
    problem.length = std::max(1, *std::max_element(lengths.begin(), lengths.end()));
    problem.tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    return problem;
}

inline void check_gradient_packed(AttentionSuite& suite, int head_dim, ElementType dtype) {
    for (std::vector<int> lengths :
         {std::vector{5}, {64, 1, 0, 130, 33}, {0, 0, 17}, {33, 130, 0, 1, 64}, {16, 16, 900, 16, 16, 3}})
        for (float dropout : {0.0f, 0.1f}) {
            const da::Problem problem = packed_problem(gradient_problem(1, head_dim, dtype, false, dropout), lengths);
            check_case(suite, da::make_case(problem, da::MaskPattern::none, lengths, 32, true));
        }
    // No rows at all: the gradients of the tables are zeros, and written.
    const da::Problem problem = packed_problem(gradient_problem(1, head_dim, dtype, false), {0});
    check_case(suite, da::make_case(problem, da::MaskPattern::none, {0}, 32, true));
}

// One long sequence among many short ones.
inline void check_gradient_mixed_lengths(AttentionSuite& suite, int head_dim, ElementType dtype) {
    std::vector<int> lengths(50, 16);
    lengths.insert(lengths.begin() + 20, 1300);
    const da::Problem problem = packed_problem(gradient_problem(1, head_dim, dtype, false), lengths);
    check_case(suite, da::make_case(problem, da::MaskPattern::none, lengths, 33, true));
}

// The forward pass and the gradients drop the same weights as the float64 reference, which draws them by element.
inline void check_dropout(AttentionSuite& suite, int head_dim, ElementType dtype) {
    for (da::Pass pass : {da::Pass::training_forward, da::Pass::backward})
        for (float dropout : {0.1f, 0.5f})
            for (int length : {1, 33, 150, 600}) {
                da::Problem problem = training_problem(pass, length, head_dim, dtype, length == 150, dropout);
                problem.position_buckets = 32;
                problem.max_relative_positions = 64;
                check_case(suite, da::make_case(problem, problem.mask ? da::MaskPattern::holes : da::MaskPattern::none,
                                                {}, 21, true));
            }
}

// Bit for bit: the same again, with a mask that keeps everything, and for each sequence of a batch alone (the tables'
// gradients are sums over the batch, so only those of the rows).
inline void check_gradient_bits(AttentionSuite& suite, int head_dim, ElementType dtype) {
    da::Problem problem = gradient_problem(193, head_dim, dtype, false);
    problem.batch = 4;
    const TestCase data = da::make_case(problem, da::MaskPattern::none, {}, 3, true);
    const NamedTensors whole = suite.outputs_of(data);
    for (int run = 0; run < 3; ++run)
        for (const auto& [name, tensor] : suite.outputs_of(data)) {
            INFO(name);
            CHECK(same_bits(tensor, whole.at(name)));
        }

    TestCase masked = data;
    masked.problem.set("mask", FieldValue(true));
    HostTensor keep(DType::u8, {problem.batch, problem.length});
    std::fill(keep.data.begin(), keep.data.end(), std::byte{1});
    masked.inputs["mask"] = keep;
    for (const auto& [name, tensor] : suite.outputs_of(masked)) {
        INFO(name);
        CHECK(same_bits(tensor, whole.at(name)));
    }

    for (int b = 0; b < problem.batch; ++b) {
        TestCase part = data;
        part.problem.set("batch", 1);
        for (TensorSpec& output : part.outputs)
            if (output.shape.size() == 3) output.shape[0] = 1;
        for (const char* name : {"q", "k", "v", "out", "dout", "lse"}) {
            HostTensor& tensor = part.inputs.at(name);
            const std::size_t bytes = tensor.data.size() / 4, first = static_cast<std::size_t>(b) * bytes;
            tensor.shape[0] = 1;
            tensor.data.assign(data.inputs.at(name).data.begin() + static_cast<std::ptrdiff_t>(first),
                               data.inputs.at(name).data.begin() + static_cast<std::ptrdiff_t>(first + bytes));
        }
        const NamedTensors alone = suite.outputs_of(part);
        for (const char* name : {"dq", "dk", "dv"}) {
            const std::size_t bytes = whole.at(name).data.size() / 4;
            INFO(name << " of sequence " << b);
            CHECK(std::memcmp(alone.at(name).data.data(), &whole.at(name).data[static_cast<std::size_t>(b) * bytes],
                              bytes) == 0);
        }
    }
}

// A tensor of [B, L, H*D] as a view into rows of `pitch` elements, from element `first` on.
class StridedRows {
  public:
    StridedRows(Device& device, ElementType dtype, std::int64_t rows, std::int64_t width, std::int64_t pitch,
                std::int64_t first)
        : device_(device),
          whole_(dtype, {rows, pitch}),
          buffer_(device, whole_.data.size()),
          width_(width),
          pitch_(pitch),
          first_(first) {
        device.fill(buffer_.get(), 0xff, whole_.data.size());
    }
    void* pointer() const { return static_cast<std::byte*>(buffer_.get()) + bytes(first_); }
    void upload(const HostTensor& dense) {
        for (std::int64_t row = 0; row < whole_.shape[0]; ++row)
            std::memcpy(&whole_.data[bytes(row * pitch_ + first_)], &dense.data[bytes(row * width_)], bytes(width_));
        device_.copy_to_device(buffer_.get(), whole_.data.data(), whole_.data.size());
    }
    // The view, dense; `touched` counts bytes outside of it that were written.
    HostTensor download(std::size_t* touched) {
        std::vector<std::byte> now(whole_.data.size());
        device_.copy_to_host(now.data(), buffer_.get(), now.size());
        HostTensor dense(whole_.dtype, {whole_.shape[0], width_});
        for (std::int64_t row = 0; row < whole_.shape[0]; ++row)
            for (std::int64_t column = 0; column < pitch_; ++column) {
                const std::size_t at = bytes(row * pitch_ + column);
                const bool inside = column >= first_ && column < first_ + width_;
                if (inside)
                    std::memcpy(&dense.data[bytes(row * width_ + column - first_)], &now[at], bytes(1));
                else
                    for (std::size_t b = 0; b < bytes(1); ++b) *touched += now[at + b] != std::byte{0xff};
            }
        return dense;
    }

  private:
    std::size_t bytes(std::int64_t elements) const { return std::size_t(elements) * size_of(whole_.dtype); }

    Device& device_;
    HostTensor whole_;
    DeviceBuffer buffer_;
    std::int64_t width_, pitch_, first_;
};

// Gradients through views: q, k, v and their gradients of one fused projection each, and rows that are not aligned.
inline void check_gradient_views(AttentionSuite& suite, int head_dim, ElementType dtype) {
    const da::Problem dense = gradient_problem(150, head_dim, dtype, false);
    const TestCase data = da::make_case(dense, da::MaskPattern::none, {}, 9, true);
    const std::int64_t width = std::int64_t{dense.heads} * head_dim, rows = std::int64_t{dense.batch} * dense.length;
    for (std::int64_t pitch : {3 * width, width + 1}) {
        Device& device = suite.runtime().device();
        const Uploaded rest = upload(device, data);
        da::Problem views = dense;
        views.q = views.k = views.v = views.out = views.dout = views.dq = views.dk =
            views.dv = {pitch * dense.length, pitch, head_dim};
        std::map<std::string, StridedRows> strided;
        const char* const names[] = {"q", "k", "v", "out", "dout", "dq", "dk", "dv"};
        for (int i = 0; i < 8; ++i) {
            const std::int64_t first = pitch == 3 * width ? i % 3 * width : 0;
            const auto at = strided.emplace(std::piecewise_construct, std::forward_as_tuple(names[i]),
                                            std::forward_as_tuple(device, dtype, rows, width, pitch, first));
            if (data.inputs.count(names[i])) at.first->second.upload(data.inputs.at(names[i]));
        }
        const da::AttentionPlan plan = suite.plan_of(views);
        DeviceBuffer workspace(device, std::max<std::size_t>(256, plan.workspace_bytes()));
        device.fill(workspace.get(), 0xff, workspace.bytes());
        da::Buffers buffers;
        auto pointer = [&](const char* name) { return strided.at(name).pointer(); };
        buffers.q = pointer("q"), buffers.k = pointer("k"), buffers.v = pointer("v");
        buffers.out = pointer("out"), buffers.dout = pointer("dout");
        buffers.dq = pointer("dq"), buffers.dk = pointer("dk"), buffers.dv = pointer("dv");
        buffers.lse = static_cast<float*>(rest.bindings.at("lse"));
        buffers.position_key = rest.bindings.at("position_key");
        buffers.position_query = rest.bindings.at("position_query");
        buffers.d_position_key = rest.bindings.at("d_position_key");
        buffers.d_position_query = rest.bindings.at("d_position_query");
        buffers.workspace = workspace.get();
        plan.execute(buffers);
        device.synchronize(nullptr);
        for (const char* name : {"dq", "dk", "dv"}) {
            std::size_t touched = 0;
            const HostTensor got = strided.at(name).download(&touched);
            INFO(name << " pitch " << pitch);
            CHECK(touched == 0);
            CHECK(largest_error(got, data.expected.at(name)) <= data.tolerance);
        }
        const NamedTensors tables = download(device, data, rest);
        for (const char* name : {"d_position_key", "d_position_query"})
            CHECK(largest_error(tables.at(name), data.expected.at(name)) <= data.tolerance);
    }
}

}  // namespace turbotune::testing
