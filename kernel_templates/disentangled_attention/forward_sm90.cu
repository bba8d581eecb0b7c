// Disentangled attention, forward, for Hopper (sm_90a): wgmma, one producer warpgroup and `warpgroups` consumers of 64
// query rows each, rings of buffers guarded by mbarriers, blocks that stay and take one work item after the other.
//
//   s_ij = q_i.k_j + [c2p] q_i.PK[slot(i-j)] + [p2c] k_j.PQ[slot(i-j)],   O = softmax_j(scale * s) V
//
// A tile of block_n keys is
//   far   when every |i-j| >= band: all its pairs share one end slot e, so that q_i.PK_e is a constant of the row and
//         k_j.PQ_e is folded into the operand, (q_i + PQ_e).k_j. It costs what plain attention does.
//   near  otherwise: sm90_position.cuh.
// q, k, v come as boxes of tensor maps with `boxes`, else row by row, which may lie anywhere (16-byte aligned with
// `aligned`). PK and PQ come by bulk copies of chunks of 64 distances, which expand_positions.cu laid out in the
// workspace.
#include "config"
#include "disentangled_attention/params.h"
#include "common/types.cuh"
#include "common/math.cuh"
#include "common/async_copy.cuh"
#include "common/shared_memory.cuh"
#include "common/mma.cuh"
#include "common/bulk_copy.cuh"
#include "common/mbarrier.cuh"
#include "common/register_budget.cuh"
#include "common/wgmma.cuh"
#include "common/philox.h"
#include "common/philox_fp64.cuh"
#include "disentangled_attention/dropout.h"
#include "disentangled_attention/sequence.cuh"

namespace {

using namespace config;

#include "disentangled_attention/sm90_tiles.cuh"
#include "disentangled_attention/sm90_layout.cuh"
#include "disentangled_attention/sm90_drawer.cuh"
#include "disentangled_attention/sm90_mask.cuh"
#include "disentangled_attention/sm90_producer.cuh"
#include "disentangled_attention/sm90_shift.cuh"
#include "disentangled_attention/sm90_position.cuh"
#include "disentangled_attention/sm90_softmax.cuh"
#include "disentangled_attention/sm90_dropout.cuh"
#include "disentangled_attention/sm90_warpgroup.cuh"
#include "disentangled_attention/sm90_far.cuh"
#include "disentangled_attention/sm90_near.cuh"
#include "disentangled_attention/sm90_consumer.cuh"

static_assert(!boxes || aligned, "tensor maps want rows that are 16-byte aligned");
static_assert(shared_end == shared_bytes, "the launch's dynamic shared memory");

// Two blocks of a single consumer share a multiprocessor where they fit.
constexpr int residents = paired ? 2 : 1;
// Registers of a thread after the warpgroups split what the launch got: 384 threads with 168 each, or twice 256 with 128.
constexpr int producer_registers = 40;
constexpr int consumer_registers = paired ? 216 : 232;
constexpr bool split = warpgroups == 2 || paired;
static_assert(!paired || 2 * (shared_bytes + 1024) <= 228 * 1024, "shared memory of two blocks");

}  // namespace

extern "C" __global__ __launch_bounds__(threads, residents) void disentangled_attention_forward_sm90(
    const __grid_constant__ ForwardParams p, const __grid_constant__ ForwardMaps maps) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 shared = shared_address(memory);
    const int thread = int(threadIdx.x);
    if (thread == 0) {
        constexpr int taken = 128 * warpgroups;
        for (int i = 0; i < stages; ++i) {
            barrier_init(shared + k_full + 8 * i, load_arrivals + int(has_bias) + int(mask));
            barrier_init(shared + k_empty + 8 * i, taken);
            barrier_init(shared + v_full + 8 * i, load_arrivals);
            barrier_init(shared + v_empty + 8 * i, taken);
        }
        for (int i = 0; has_bias && i < ring; ++i) barrier_init(shared + strip_empty + 8 * i, taken);
        for (int i = 0; p2c && i < (shared_t ? 1 : warpgroups); ++i) {
            barrier_init(shared + t_full + 8 * i, shared_t ? taken : 128);
            barrier_init(shared + t_empty + 8 * i, shared_t ? taken : 128);
        }
        barrier_init(shared + tail_full, 1);
        barrier_init(shared + q_full, load_arrivals + end_arrivals);
        barrier_init(shared + q_empty, taken);
        for (int i = 0; dropout && i < stages; ++i) {
            barrier_init(shared + kept_full + 8 * i, 32 * draw_warps);
            barrier_init(shared + kept_empty + 8 * i, taken);
        }
        for (int i = 0; mask && i < 2; ++i) {
            barrier_init(shared + range_full + 8 * i, 32);
            barrier_init(shared + range_empty + 8 * i, taken + (one_tile(p) ? 0 : 32 * (1 + draw_warps)));
        }
        barrier_init_fence();
    }
    if constexpr (sum_column) {
        const u32 ones = pack2<dtype>(1.0f, 1.0f);
        if (thread < 2 * head_dim) store_shared16(shared + ones_offset + 16 * thread, {ones, ones, ones, ones});
        async_proxy_fence();
    }
    __syncthreads();
    if (thread >= 128 * warpgroups) {
        if constexpr (split) registers_lower<producer_registers>();
        produce(p, maps, memory, shared, thread - 128 * warpgroups);
    } else {
        if constexpr (split) registers_raise<consumer_registers>();
        Consumer(p, shared, thread).run();
    }
}
