// The operation for C++ programs: a problem, its plan, and execution on the caller's stream and buffers.
#pragma once

#include <cstddef>
#include <memory>

#include "turbotune/ops/disentangled_attention/problem.h"
#include "turbotune/ops/operation.h"

namespace turbotune::disentangled_attention {

// Device pointers (host pointers on the CPU device). Strides are those of the problem.
struct Buffers {
    const void* q = nullptr;                // [B, L, H*D]; packed [T, H*D]
    const void* k = nullptr;
    const void* v = nullptr;
    const void* position_key = nullptr;     // [2*span, H*D]; needed with c2p
    const void* position_query = nullptr;   // [2*span, H*D]; needed with p2c
    const std::uint8_t* mask = nullptr;     // [B, L], 1 = keep; needed with problem.mask
    const std::int32_t* cu_seqlens = nullptr;   // [B + 1], from 0 to T, never falling; needed when packed
    void* out = nullptr;                    // like q; backward reads it
    float* lse = nullptr;                   // [B, H, L] (packed [H, T]) fp32, base 2; training_forward writes it,
                                            // backward reads it
    void* workspace = nullptr;              // AttentionPlan::workspace_bytes(), aligned to 256 bytes

    const void* dout = nullptr;             // gradient of out, like q; backward needs it and writes what follows
    void* dq = nullptr;                     // like q
    void* dk = nullptr;
    void* dv = nullptr;
    void* d_position_key = nullptr;         // [2*span, H*D], the sum over the batch; every slot is written; with c2p
    void* d_position_query = nullptr;       // with p2c

    // The dropout mask is a function of these, batch * H + head, row and column. Give the backward pass the same.
    std::uint64_t dropout_seed = 0;
    std::uint64_t dropout_offset = 0;
};

// A plan holds kernels and constants of its runtime, which must outlive it.
class AttentionPlan {
  public:
    // Throws as Operation::plan. `stream` is only asked whether it is being captured.
    static AttentionPlan create(Runtime& runtime, const Problem& problem, const Config* config = nullptr,
                                StreamHandle stream = nullptr);
    AttentionPlan(AttentionPlan&&) noexcept;
    AttentionPlan& operator=(AttentionPlan&&) noexcept;
    ~AttentionPlan();

    const Problem& problem() const;
    const Selection& selection() const;
    std::size_t workspace_bytes() const;
    std::vector<KernelMetadata> kernels() const;

    // Enqueues. May be called from several threads at once, with different buffers and streams. Another context that is
    // current stays so. Throws InvalidArgument naming a null or misaligned buffer, DeviceError when the launch fails.
    void execute(const Buffers& buffers, StreamHandle stream = nullptr) const;

  private:
    struct State;
    explicit AttentionPlan(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

// The registered operation ("disentangled_attention").
const Operation& operation();

}  // namespace turbotune::disentangled_attention
