// Disentangled attention, backward: sums of dS_ij q_i and dS_ij k_j by distance i - j over the near tiles, through
// mma.sync (sm_80 and newer).
//
// A block owns one part (backward_distances.cuh) of one head, and dim_part of the head_dim columns. Its first four
// warps sum for PK, with rows = queries and distances in the order of j - i; its last four for PQ, with rows = keys and
// distances in the order of i - j. Each warp owns a quarter of the blocks of 16 distances, chosen such that all have
// the same number of products to do per square. dS is moved from columns to distances (mma_shear.cuh) and transposed.
//
// Dynamic shared memory: [stages] of
//   dS  [tiles (keys)][tiles (queries)][64][64]  each as in the workspace
//   Q   [span][dim_part]                         16-byte chunks swizzled by row
//   K   [span][dim_part]
// and after the last stage 16 bytes of zeros.
#include "config"
#include "disentangled_attention/params.h"
#include "common/types.cuh"
#include "common/math.cuh"
#include "common/async_copy.cuh"
#include "common/mma.cuh"

namespace {

using namespace config;

#include "disentangled_attention/backward_layout.cuh"
#include "disentangled_attention/backward_sequence.cuh"
#include "disentangled_attention/backward_distances.cuh"
#include "disentangled_attention/backward_squares.cuh"
#include "disentangled_attention/mma_shear.cuh"
#include "disentangled_attention/backward_mma_position_square.cuh"

}  // namespace

// Grid: heads * parts * (head_dim / dim_part) blocks.
extern "C" __global__ __launch_bounds__(threads, tiles == 2 ? 1 : 2) void disentangled_attention_backward_mma_position(
    const __grid_constant__ BackwardParams p) {
    extern __shared__ __align__(128) unsigned char memory[];
    const u32 shared = shared_address(memory);
    const int tid = int(threadIdx.x), column0 = int(blockIdx.x) % column_parts * dim_part;
    const DistanceParts list(p);
    const int part = int(blockIdx.x) / column_parts % list.parts, head = int(blockIdx.x) / column_parts / list.parts;
    if (part >= list.parts) return;

    SquareCopier copy(p, head, column0);
    Cursor ahead(p, list, part), at(p, list, part);
    int copied = 0, taken = 0;
    auto copy_next = [&]() {
        if (ahead.find()) {
            copy.square(ahead.square, shared + copied % stages * stage_bytes);
            ++copied, ahead.next();
        }
        copy_async_commit();
    };
#pragma unroll 1
    for (int i = 0; i < stages - 1; ++i) copy_next();

    if (tid == 0) store_shared16(shared + stages * stage_bytes, {0, 0, 0, 0});
    PositionWarp w(tid, shared + stages * stage_bytes);
    const int first_diagonal = at.d;
    bool more = at.find();
    const s64 end = list.part_end(part);
    for (int d = first_diagonal;; ++d) {
        while (more && at.d == d) {
            copy_async_wait<stages - 2>();
            __syncthreads();
            copy_next();
            w.add_square(shared + taken % stages * stage_bytes);
            ++taken, at.next();
            more = at.find();
        }
        if (w.table == table_key ? c2p : p2c) w.store(list.piece(p, head, part, d, w.table) + column0);
        w.clear();
        if (list.first(d + 1) >= end) return;
    }
}
