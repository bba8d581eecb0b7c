// Disentangled attention, backward, for Hopper (sm_90a): dK and dV, and the near tiles of dS. One warpgroup a block, or
// with head_dim 128 two: each has half of the columns of dK and dV, and both compute P and dS.
//
// A tile of 64 queries is
//   far   when every |i-j| >= band: its pairs share one end slot e; q_i.PK_e is in the row's statistics, and Q + PQ_e
//         takes the place of Q in the scores and in dK. It costs what plain attention does.
//   near  otherwise: q_i.PK and k_j.PQ are products over chunks of 64 distances, shifted through fp16 buffers; dK's
//         position term is a product of the sheared dS with the same chunks.
// Blocks of 64 keys, of all sequences and heads, as sm90_backward.cuh numbers them.
#include "config"
#include "disentangled_attention/params.h"
#include "common/types.cuh"
#include "common/math.cuh"
#include "common/async_copy.cuh"
#include "common/shared_memory.cuh"
#include "common/mma.cuh"
#include "common/bulk_copy.cuh"
#include "common/mbarrier.cuh"
#include "common/wgmma.cuh"
#include "common/philox.h"
#include "disentangled_attention/dropout.h"

namespace {

using namespace config;

constexpr int warpgroups = head_dim == 128 ? 2 : 1;

#include "disentangled_attention/backward_layout.cuh"
#include "disentangled_attention/sm90_tiles.cuh"
#include "disentangled_attention/sm90_shift.cuh"
#include "disentangled_attention/sm90_backward.cuh"
#include "disentangled_attention/sm90_key_tiles.cuh"
#include "disentangled_attention/sm90_key_far.cuh"
#include "disentangled_attention/sm90_key_near.cuh"
#include "disentangled_attention/sm90_keys.cuh"

static_assert(shared_end == shared_bytes, "the launch's dynamic shared memory");
static_assert(aligned, "rows must be 16-byte aligned");

}  // namespace

extern "C" __global__ __launch_bounds__(threads, 3 - warpgroups) void disentangled_attention_backward_sm90_kv(
    const __grid_constant__ BackwardParams p) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const Block block(p, int(blockIdx.x));
    if (!block.exists) return;
    KeyBlock(p, memory, shared_address(memory), int(threadIdx.x), block).run();
}
