// Disentangled attention, backward, on the CPU device: adds up, in order, what the units of backward_host.cpp have
// summed on their own. grid.x: blocks of 16 slots of both tables, then blocks of 16 rows of dQ when it is in parts;
// grid.y: heads.

#include "common/host_block.h"
#include "common/host_dtype.h"
#include "config"
#include "disentangled_attention/host_backward_layout.h"
#include "disentangled_attention/host_backward_sequence.h"
#include "disentangled_attention/params.h"

namespace {

constexpr int kDim = config::head_dim;
constexpr int kRows = HostBackwardLayout::chunk;

void write(const float* from, Scalar* to) {
    for (int d = 0; d < kDim; ++d) to[d] = from_float<config::dtype>(from[d]);
}

// Slots that no distance reaches have no gradient.
void finish_table(const BackwardParams& p, int region, int slot0, int head, void* table, long long row,
                  long long head_stride) {
    const long long floats = 2LL * p.span * kDim;
    const int units = HostBackwardDivision{config::key_parts, p.batch}.units();
    const SlotRange range(p);
    for (int slot = slot0; slot < slot0 + kRows && slot < 2 * p.span; ++slot) {
        float sum[kDim] = {};
        for (int unit = 0; unit < units && range.contains(slot); ++unit) {
            const float* from = workspace_part(p, region, unit, head, floats) + static_cast<long long>(slot) * kDim;
            for (int d = 0; d < kDim; ++d) sum[d] += from[d];
        }
        write(sum, static_cast<Scalar*>(table) + slot * row + head * head_stride);
    }
}

void finish_queries(const BackwardParams& p, int b, int row0, int head) {
    const HeadOfSequence s(p, b, head);
    const int blocks = (s.length + config::block_m - 1) / config::block_m;
    const int parts = HostBackwardDivision::parts_of(blocks, config::key_parts);
    const long long floats = workspace_rows(p) * kDim;
    for (int row = row0; row < row0 + kRows && row < s.length; ++row) {
        float sum[kDim] = {};
        for (int part = 0; part < parts; ++part) {
            const float* from =
                workspace_part(p, HostBackwardRegions::dq, part, head, floats) + (s.workspace_row + row) * kDim;
            for (int d = 0; d < kDim; ++d) sum[d] += from[d];
        }
        write(sum, s.dq + row * p.dq_row);
    }
}

}  // namespace

extern "C" void disentangled_attention_backward_host_finish(const HostBlock* block, void** parameters) {
    const BackwardParams& p = *static_cast<const BackwardParams*>(parameters[0]);
    const int head = static_cast<int>(block->y);
    int index = static_cast<int>(block->x);
    const int slot_blocks = (2 * p.span + kRows - 1) / kRows;
    if constexpr (config::c2p) {
        if (index < slot_blocks)
            return finish_table(p, HostBackwardRegions::d_position_key, index * kRows, head, p.d_position_key,
                                p.d_position_key_row, p.d_position_key_head);
        index -= slot_blocks;
    }
    if constexpr (config::p2c) {
        if (index < slot_blocks)
            return finish_table(p, HostBackwardRegions::d_position_query, index * kRows, head, p.d_position_query,
                                p.d_position_query_row, p.d_position_query_head);
        index -= slot_blocks;
    }
    const int row_blocks = (p.length + kRows - 1) / kRows;
    finish_queries(p, index / row_blocks, index % row_blocks * kRows, head);
}
