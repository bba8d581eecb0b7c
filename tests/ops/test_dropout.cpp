#include "turbotune/ops/disentangled_attention/dropout.h"

#include <cmath>
#include <cstdint>

#include "catch.h"
#include "common/philox.h"

using namespace turbotune;
namespace da = turbotune::disentangled_attention;

namespace {

da::Problem problem_with(float dropout, int length, int batch = 1, int heads = 1) {
    da::Problem problem;
    problem.pass = da::Pass::training_forward;
    problem.dropout = dropout;
    problem.length = length;
    problem.batch = batch;
    problem.heads = heads;
    return problem;
}

double kept(const std::vector<std::uint8_t>& mask) {
    double sum = 0;
    for (std::uint8_t keep : mask) sum += keep;
    return sum / double(mask.size());
}

}  // namespace

TEST_CASE("Philox4x32-10 gives the known answers of its authors", "[dropout]") {
    PhiloxKeys keys;
    philox_round_keys(0, 0, keys);
    const Philox4 zeros = philox({0, 0, 0, 0}, keys);
    CHECK(zeros.x == 0x6627e8d5u);
    CHECK(zeros.y == 0xe169c58du);
    CHECK(zeros.z == 0xbc57ac4cu);
    CHECK(zeros.w == 0x9b00dbd8u);
    philox_round_keys(0xa4093822u, 0x299f31d0u, keys);
    const Philox4 digits = philox({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, keys);
    CHECK(digits.x == 0xd16cfe09u);
    CHECK(digits.y == 0x94fdccebu);
    CHECK(digits.z == 0x5001e420u);
    CHECK(digits.w == 0x24126ea1u);
}

TEST_CASE("the share of weights that dropout keeps is 1 - p", "[dropout]") {
    for (float p : {0.05f, 0.1f, 0.5f, 0.9f}) {
        const std::vector<std::uint8_t> mask = da::dropout_keep_mask(problem_with(p, 1024), 1234, 5);
        const double deviation = std::sqrt(double(p) * (1 - double(p)) / double(mask.size()));
        INFO(p);
        CHECK(std::abs(kept(mask) - (1 - double(p))) < 4 * deviation);
    }
    CHECK(kept(da::dropout_keep_mask(problem_with(0, 64), 1, 1)) == 1);
}

TEST_CASE("dropped weights of neighbouring rows and columns are independent", "[dropout]") {
    constexpr int kLength = 1024;
    std::vector<std::pair<int, int>> steps = {{1, 0}, {0, 2}, {16, 0}, {0, 64}, {0, 128}};  // from one patch to another
    for (int row : {0, 8})                                                                  // within a patch
        for (int group = 0; group < 8; ++group)
            for (int column : {0, 1})
                if (row + group + column > 0) steps.push_back({row, 8 * group + column});
    for (double p : {0.25, 0.1}) {
        const std::vector<std::uint8_t> mask = da::dropout_keep_mask(problem_with(float(p), kLength), 99, 0);
        auto dropped = [&](int i, int j) { return mask[std::size_t(i) * kLength + std::size_t(j)] == 0; };
        for (const auto& [di, dj] : steps) {
            double both = 0, pairs = 0;
            for (int i = 0; i + di < kLength; ++i)
                for (int j = 0; j + dj < kLength; ++j, ++pairs) both += dropped(i, j) && dropped(i + di, j + dj);
            INFO(p << ": " << di << " " << dj);
            // Five standard deviations, and what ties of the first eight bits may add.
            const double deviation = std::sqrt((1 - p * p) / (p * p) / pairs);
            CHECK(both / pairs == Approx(p * p).epsilon(5 * deviation + 1.0 / 1024));
        }
    }
}

TEST_CASE("the mask differs by seed, offset, sequence and head, and does not depend on the length", "[dropout]") {
    const auto mask = da::dropout_keep_mask(problem_with(0.5f, 96, 2, 2), 7, 3);
    CHECK(mask == da::dropout_keep_mask(problem_with(0.5f, 96, 2, 2), 7, 3));
    CHECK(mask != da::dropout_keep_mask(problem_with(0.5f, 96, 2, 2), 8, 3));
    CHECK(mask != da::dropout_keep_mask(problem_with(0.5f, 96, 2, 2), 7 + (std::uint64_t{1} << 32), 3));
    CHECK(mask != da::dropout_keep_mask(problem_with(0.5f, 96, 2, 2), 7, 4));
    CHECK(mask != da::dropout_keep_mask(problem_with(0.5f, 96, 2, 2), 7, 3 + (std::uint64_t{1} << 32)));
    constexpr std::size_t kHead = 96 * 96;
    for (std::size_t a = 0; a < 4; ++a)
        for (std::size_t b = 0; b < a; ++b)
            CHECK_FALSE(std::equal(&mask[a * kHead], &mask[a * kHead] + kHead, &mask[b * kHead]));
    const auto longer = da::dropout_keep_mask(problem_with(0.5f, 150, 2, 2), 7, 3);
    for (std::size_t i = 0; i < 96; ++i)
        for (std::size_t j = 0; j < 96; ++j) REQUIRE(mask[i * 96 + j] == longer[i * 150 + j]);
}
