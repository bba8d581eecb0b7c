#include "dropout_arguments.h"

#include <cmath>

#include "turbotune/ops/disentangled_attention/dropout.h"

namespace turbotune::disentangled_attention {

void set_probability(DropoutParams& params, float probability) {
    const auto threshold = static_cast<std::uint64_t>(std::round(double(probability) * 0x1p40));
    for (int i = 0; i < 8; ++i) params.threshold[i] = (threshold >> (39 - i)) & 1u ? ~0u : 0u;
    params.fraction = static_cast<unsigned>(threshold);
    params.scale = static_cast<float>(1 / (1 - double(probability)));
}

void set_seed(DropoutParams& params, std::uint64_t seed, std::uint64_t offset) {
    // The counter has room for half of the offset; the rest, of interest after 2^32 calls, turns the key.
    const auto high = static_cast<unsigned>(offset >> 32) * 0x85ebca6bu;
    philox_round_keys(static_cast<unsigned>(seed), static_cast<unsigned>(seed >> 32) ^ high, params.keys);
    params.offset = static_cast<unsigned>(offset);
}

std::vector<std::uint8_t> dropout_keep_mask(const Problem& problem, std::uint64_t seed, std::uint64_t offset) {
    const auto length = static_cast<std::size_t>(problem.length);
    const std::size_t heads = std::size_t(problem.batch) * static_cast<std::size_t>(problem.heads);
    std::vector<std::uint8_t> keep(heads * length * length, 1);
    if (problem.dropout == 0) return keep;
    DropoutParams params{};
    set_probability(params, problem.dropout);
    set_seed(params, seed, offset);
    const int row_groups = (problem.length + 15) / 16 * 8, column_groups = (problem.length + 63) / 64 * 4;
    for (std::size_t head = 0; head < heads; ++head)
        for (int row_group = 0; row_group < row_groups; ++row_group)
            for (int column_group = 0; column_group < column_groups; ++column_group) {
                const unsigned dropped = dropped_patch(params, static_cast<unsigned>(head), row_group, column_group);
                for (int bit = 0; bit < 32; ++bit) {
                    const int row = row_group / 8 * 16 + row_group % 8 + (bit >> 3 & 1) * 8;
                    const int column = column_group / 4 * 64 + (bit & 7) * 8 + column_group % 4 * 2 + (bit >> 4);
                    if (row < problem.length && column < problem.length && (dropped >> bit & 1u))
                        keep[(head * length + std::size_t(row)) * length + std::size_t(column)] = 0;
                }
            }
    return keep;
}

}  // namespace turbotune::disentangled_attention
