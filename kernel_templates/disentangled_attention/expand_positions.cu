// The rows of PK and PQ by distance instead of by slot, for forward_sm90.cu: chunks of 64 distances, [heads][chunks]
// [PK | PQ][64][head_dim], each swizzled as its copy in shared memory. Within a chunk an accumulator thread c must hold
// 16 neighbours in the order of its score buffer: row 8n + 2c + b is distance 16c + 2n + b of the chunk for PQ, and
// counted from the chunk's end for PK.
#include "config"
#include "disentangled_attention/params.h"
#include "common/types.cuh"
#include "common/math.cuh"
#include "common/bulk_copy.cuh"
#include "common/wgmma.cuh"
#include "disentangled_attention/sequence.cuh"

namespace {

using namespace config;

#include "disentangled_attention/sm90_tiles.cuh"
#include "disentangled_attention/sm90_layout.cuh"

constexpr int expand_threads = 256;
constexpr int pieces = chunk_bytes / 16;

}  // namespace

// Grid: heads * chunks blocks.
extern "C" __global__ __launch_bounds__(expand_threads) void disentangled_attention_expand_positions(
    const __grid_constant__ ForwardParams p) {
    allow_next_grid();
    const int chunks = last_chunk(p.band) - first_chunk(p.band) + 1;
    const int head = int(blockIdx.x) / chunks, e = int(blockIdx.x) % chunks + first_chunk(p.band);
    unsigned char* to = static_cast<unsigned char*>(p.workspace) + s64(blockIdx.x) * chunk_bytes;
#pragma unroll
    for (int i = int(threadIdx.x); i < pieces; i += expand_threads) {
        const int table = i / (table_bytes / 16), row = i / row_chunks % 64, chunk = i % row_chunks;
        const bool query = !c2p || table == 1;
        const int x = 16 * (row >> 1 & 3) + 2 * (row >> 3) + (row & 1);
        const s64 slot = slot_of(p, query ? 64 * e + x : 64 * e + 63 - x);
        const u16* from = query ? static_cast<const u16*>(p.position_query) + head * p.position_query_head
                                : static_cast<const u16*>(p.position_key) + head * p.position_key_head;
        from += slot * (query ? p.position_query_row : p.position_key_row);
        from += chunk * 8;
        Words4 words;
        if constexpr (aligned) {
            words = *reinterpret_cast<const Words4*>(from);
        } else {
            words.x = u32(from[0]) | u32(from[1]) << 16, words.y = u32(from[2]) | u32(from[3]) << 16;
            words.z = u32(from[4]) | u32(from[5]) << 16, words.w = u32(from[6]) | u32(from[7]) << 16;
        }
        *reinterpret_cast<Words4*>(to + table * table_bytes + chunk_address<64>(0, row, chunk)) = words;
    }
}
