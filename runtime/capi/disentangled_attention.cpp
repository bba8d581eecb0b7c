#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "handles.h"
#include "sized_struct.h"
#include "turbotune/base/fields.h"
#include "turbotune/ops/disentangled_attention/dropout.h"
#include "turbotune/ops/operation.h"

using namespace turbotune;
using namespace turbotune::capi;
namespace da = turbotune::disentangled_attention;

namespace {

using CProblem = turbotune_disentangled_attention_problem;
using CBuffers = turbotune_disentangled_attention_buffers;

CProblem default_problem() {
    const da::Problem defaults;
    CProblem problem{};
    problem.pass = TURBOTUNE_INFERENCE;
    problem.layout = TURBOTUNE_PADDED;
    problem.dtype = TURBOTUNE_BF16;
    problem.math = TURBOTUNE_STRICT;
    problem.batch = defaults.batch;
    problem.heads = defaults.heads;
    problem.length = defaults.length;
    problem.head_dim = defaults.head_dim;
    problem.c2p = defaults.c2p;
    problem.p2c = defaults.p2c;
    problem.position_buckets = defaults.position_buckets;
    problem.max_relative_positions = defaults.max_relative_positions;
    return problem;
}

template <typename Value, std::size_t N>
Value choose(const std::array<Value, N>& values, int32_t given, const char* argument, const char* names) {
    if (given < 0 || std::size_t(given) >= N)
        throw InvalidArgument(argument, fmt::format("{} is none of {}", given, names));
    return values[std::size_t(given)];
}

da::Strides strides(const turbotune_strides& given) {
    return {given.batch, given.row, given.head};
}

bool flag(int32_t given, const char* argument) {
    if (given != 0 && given != 1) throw InvalidArgument(argument, fmt::format("must be 0 or 1, got {}", given));
    return given != 0;
}

da::Problem translate(const CProblem* from) {
    const CProblem given = read_sized(from, default_problem(), "problem");
    da::Problem problem;
    problem.pass = choose(std::array{da::Pass::inference, da::Pass::training_forward, da::Pass::backward}, given.pass,
                          "pass", "TURBOTUNE_INFERENCE, TURBOTUNE_TRAINING_FORWARD, TURBOTUNE_BACKWARD");
    problem.layout = choose(std::array{da::Layout::padded, da::Layout::packed}, given.layout, "layout",
                            "TURBOTUNE_PADDED, TURBOTUNE_PACKED");
    problem.dtype = choose(std::array{DType::f32, DType::f16, DType::bf16}, given.dtype, "dtype",
                           "TURBOTUNE_F32, TURBOTUNE_F16, TURBOTUNE_BF16");
    problem.math =
        choose(std::array{da::Math::strict, da::Math::fast}, given.math, "math", "TURBOTUNE_STRICT, TURBOTUNE_FAST");
    problem.batch = given.batch;
    problem.heads = given.heads;
    problem.length = given.length;
    problem.head_dim = given.head_dim;
    problem.tokens = given.tokens;
    problem.c2p = flag(given.c2p, "c2p");
    problem.p2c = flag(given.p2c, "p2c");
    problem.position_buckets = given.position_buckets;
    problem.max_relative_positions = given.max_relative_positions;
    problem.mask = flag(given.mask, "mask");
    problem.dropout = given.dropout;
    problem.mask_batch_stride = given.mask_batch_stride;
    problem.q = strides(given.q);
    problem.k = strides(given.k);
    problem.v = strides(given.v);
    problem.out = strides(given.out);
    problem.position_key = strides(given.position_key);
    problem.position_query = strides(given.position_query);
    problem.dout = strides(given.dout);
    problem.dq = strides(given.dq);
    problem.dk = strides(given.dk);
    problem.dv = strides(given.dv);
    problem.d_position_key = strides(given.d_position_key);
    problem.d_position_query = strides(given.d_position_query);
    return problem;
}

da::Buffers translate(const CBuffers& given) {
    da::Buffers buffers;
    buffers.q = given.q;
    buffers.k = given.k;
    buffers.v = given.v;
    buffers.position_key = given.position_key;
    buffers.position_query = given.position_query;
    buffers.mask = given.mask;
    buffers.cu_seqlens = given.cu_seqlens;
    buffers.out = given.out;
    buffers.lse = given.lse;
    buffers.workspace = given.workspace;
    buffers.dout = given.dout;
    buffers.dq = given.dq;
    buffers.dk = given.dk;
    buffers.dv = given.dv;
    buffers.d_position_key = given.d_position_key;
    buffers.d_position_query = given.d_position_query;
    buffers.dropout_seed = given.dropout_seed;
    buffers.dropout_offset = given.dropout_offset;
    return buffers;
}

}  // namespace

void turbotune_disentangled_attention_problem_init(CProblem* problem, size_t struct_size) {
    write_sized(problem, struct_size, default_problem());
}

void turbotune_disentangled_attention_buffers_init(CBuffers* buffers, size_t struct_size) {
    write_sized(buffers, struct_size, CBuffers{});
}

turbotune_status turbotune_disentangled_attention_supported(turbotune_runtime* runtime, const CProblem* problem) {
    return guarded([&] {
        const DeviceInfo& device = need(runtime, "runtime").runtime->device().info();
        const da::Problem translated = translate(problem);
        translated.validate();
        const Operation& operation = da::operation();
        const std::string why = operation.unavailable(operation.workload_of(translated.to_fields()), device);
        if (!why.empty()) throw Unsupported(why);
    });
}

turbotune_status turbotune_disentangled_attention_plan_create(turbotune_runtime* runtime, const CProblem* problem,
                                                              const char* config, void* stream, turbotune_plan** plan) {
    return guarded([&] {
        need(plan, "plan");
        const std::shared_ptr<Runtime>& owner = need(runtime, "runtime").runtime;
        Config given;
        if (config) given = parse_fields(config, "config");
        da::AttentionPlan made =
            da::AttentionPlan::create(*owner, translate(problem), config ? &given : nullptr, stream);
        std::string text = made.selection().config.to_string();
        std::vector<KernelMetadata> kernels = made.kernels();
        *plan = new turbotune_plan{owner, std::move(made), std::move(text), std::move(kernels)};
    });
}

turbotune_status turbotune_disentangled_attention_execute(const turbotune_plan* plan, const CBuffers* buffers,
                                                          void* stream) {
    return guarded([&] {
        const da::AttentionPlan& attention = need(plan, "plan").attention;
        attention.execute(translate(read_sized(buffers, CBuffers{}, "buffers")), stream);
    });
}

turbotune_status turbotune_disentangled_attention_keep_mask(const CProblem* problem, uint64_t dropout_seed,
                                                            uint64_t dropout_offset, uint8_t* keep) {
    return guarded([&] {
        const da::Problem translated = translate(problem);
        translated.validate();
        if (!keep) throw InvalidArgument("keep", "is null");
        const std::vector<std::uint8_t> mask = da::dropout_keep_mask(translated, dropout_seed, dropout_offset);
        std::copy(mask.begin(), mask.end(), keep);
    });
}
