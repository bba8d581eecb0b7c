// Disentangled attention, backward, for Hopper (sm_90a): dQ, and what far tiles add to the gradients of the tables. One
// warpgroup a block of 64 queries.
//
// Far tiles compute P and dS again, with Q + PQ_e in place of Q; their row sums give dQ its share of PK_e. Near tiles
// bring dS from the KV kernel; dQ's position term is a product of the sheared dS with chunks of 64 distances of PK.
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

constexpr int warpgroups = 1;

#include "disentangled_attention/backward_layout.cuh"
#include "disentangled_attention/sm90_tiles.cuh"
#include "disentangled_attention/sm90_shift.cuh"
#include "disentangled_attention/sm90_backward.cuh"
#include "disentangled_attention/sm90_query_tiles.cuh"
#include "disentangled_attention/sm90_query_far.cuh"
#include "disentangled_attention/sm90_query_near.cuh"
#include "disentangled_attention/sm90_queries.cuh"

static_assert(shared_end == shared_bytes, "the launch's dynamic shared memory");
static_assert(aligned, "rows must be 16-byte aligned");

}  // namespace

extern "C" __global__ __launch_bounds__(threads, head_dim == 128 ? 2 : 3) void disentangled_attention_backward_sm90_q(
    const __grid_constant__ BackwardParams p) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const Block block(p, int(blockIdx.x));
    if (!block.exists) return;
    QueryBlock(p, memory, shared_address(memory), int(threadIdx.x), block).run();
}
