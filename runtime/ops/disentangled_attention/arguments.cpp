#include "arguments.h"

#include <fmt/format.h>

#include "dropout_arguments.h"
#include "turbotune/base/error.h"

namespace turbotune::disentangled_attention {

namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr std::size_t kWorkspaceAlignment = 256;  // bytes

Strides dense_unless_given(const Problem& problem, const Strides& given) {
    if (!given.defaulted()) return given;
    const std::int64_t row = std::int64_t{problem.heads} * problem.head_dim;
    return {row * problem.length, row, problem.head_dim};
}

// What both structs hold under the same names.
template <class Params>
Params common_arguments(Runtime& runtime, const Problem& problem) {
    Params params{};
    auto set = [&](const Strides& given, long long& batch, long long& row, long long& head) {
        const Strides strides = dense_unless_given(problem, given);
        batch = strides.batch;
        row = strides.row;
        head = strides.head;
    };
    set(problem.q, params.q_batch, params.q_row, params.q_head);
    set(problem.k, params.k_batch, params.k_row, params.k_head);
    set(problem.v, params.v_batch, params.v_row, params.v_head);
    set(problem.out, params.out_batch, params.out_row, params.out_head);
    long long unused = 0;
    set(problem.position_key, unused, params.position_key_row, params.position_key_head);
    set(problem.position_query, unused, params.position_query_row, params.position_query_head);
    if constexpr (requires { params.dq; }) {
        set(problem.dout, params.dout_batch, params.dout_row, params.dout_head);
        set(problem.dq, params.dq_batch, params.dq_row, params.dq_head);
        set(problem.dk, params.dk_batch, params.dk_row, params.dk_head);
        set(problem.dv, params.dv_batch, params.dv_row, params.dv_head);
        set(problem.d_position_key, unused, params.d_position_key_row, params.d_position_key_head);
        set(problem.d_position_query, unused, params.d_position_query_row, params.d_position_query_head);
    }
    params.mask_batch = problem.mask_batch_stride ? problem.mask_batch_stride : problem.length;
    params.tokens = problem.tokens;
    params.batch = problem.batch;
    params.heads = problem.heads;
    params.length = problem.length;
    if (problem.c2p || problem.p2c) {
        const SlotTable table = make_slot_table(problem.position_buckets, problem.max_relative_positions);
        params.slots =
            static_cast<const int*>(runtime.constant(table.slots.data(), table.slots.size() * sizeof(std::int32_t)));
        params.band = table.band;
        params.span = problem.span();
    }
    params.scale_log2 = static_cast<float>(double(problem.scale()) * kLog2E);
    if (problem.dropout > 0) set_probability(params.dropout, problem.dropout);
    return params;
}

template <class Params>
void set_common_buffers(Params& params, const Problem& problem, const Buffers& buffers) {
    params.q = buffers.q;
    params.k = buffers.k;
    params.v = buffers.v;
    params.position_key = buffers.position_key;
    params.position_query = buffers.position_query;
    params.mask = buffers.mask;
    params.cu_seqlens = buffers.cu_seqlens;
    params.out = buffers.out;
    params.lse = buffers.lse;
    params.workspace = buffers.workspace;
    if (problem.dropout > 0) set_seed(params.dropout, buffers.dropout_seed, buffers.dropout_offset);
}

}  // namespace

ForwardParams forward_arguments(Runtime& runtime, const Problem& problem) {
    return common_arguments<ForwardParams>(runtime, problem);
}

BackwardParams backward_arguments(Runtime& runtime, const Problem& problem) {
    auto params = common_arguments<BackwardParams>(runtime, problem);
    params.scale = problem.scale();
    return params;
}

void set_buffers(ForwardParams& params, const Problem& problem, const Buffers& buffers) {
    set_common_buffers(params, problem, buffers);
}

void set_buffers(BackwardParams& params, const Problem& problem, const Buffers& buffers) {
    set_common_buffers(params, problem, buffers);
    params.dout = buffers.dout;
    params.dq = buffers.dq;
    params.dk = buffers.dk;
    params.dv = buffers.dv;
    params.d_position_key = buffers.d_position_key;
    params.d_position_query = buffers.d_position_query;
}

void check_buffers(const Problem& problem, const Buffers& buffers, std::size_t element_alignment,
                   std::size_t workspace_bytes) {
    auto check = [](const char* name, const void* pointer, std::size_t alignment) {
        if (!pointer) throw InvalidArgument(name, "is null");
        if (reinterpret_cast<std::uintptr_t>(pointer) % alignment)
            throw InvalidArgument(name, fmt::format("must be aligned to {} bytes", alignment));
    };
    const bool backward = problem.pass == Pass::backward;
    const bool has_rows = problem.layout == Layout::padded || problem.tokens > 0;  // an empty tensor has no address
    if (has_rows) {
        check("q", buffers.q, element_alignment);
        check("k", buffers.k, element_alignment);
        check("v", buffers.v, element_alignment);
        check("out", buffers.out, element_alignment);
        if (problem.pass != Pass::inference) check("lse", buffers.lse, 4);
    }
    if (problem.c2p) check("position_key", buffers.position_key, element_alignment);
    if (problem.p2c) check("position_query", buffers.position_query, element_alignment);
    if (problem.mask) check("mask", buffers.mask, 1);
    if (problem.layout == Layout::packed) check("cu_seqlens", buffers.cu_seqlens, 4);
    if (backward && has_rows) {
        check("dout", buffers.dout, element_alignment);
        check("dq", buffers.dq, element_alignment);
        check("dk", buffers.dk, element_alignment);
        check("dv", buffers.dv, element_alignment);
    }
    if (backward && problem.c2p) check("d_position_key", buffers.d_position_key, element_alignment);
    if (backward && problem.p2c) check("d_position_query", buffers.d_position_query, element_alignment);
    if (workspace_bytes) check("workspace", buffers.workspace, kWorkspaceAlignment);
}

}  // namespace turbotune::disentangled_attention
