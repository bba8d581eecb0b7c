#include "reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "turbotune/base/error.h"
#include "turbotune/device/thread_pool.h"

namespace turbotune::disentangled_attention {

namespace {

using Doubles = std::vector<double>;

struct Sequence {
    std::int64_t first_row;  // row of q, k, v, out
    int length;
    const std::uint8_t* keep;  // [length] or null
    std::int64_t lse_offset;   // of head 0
    std::int64_t lse_head;     // stride between heads
};

struct Task {
    const Problem* problem;
    const SlotTable* table;
    Doubles q, k, v, position_key, position_query;
    std::vector<Sequence> sequences;
    double* out;
    double* lse;
};

double dot(const double* a, const double* b, int n) {
    double sum = 0;
    for (int d = 0; d < n; ++d) sum += a[d] * b[d];
    return sum;
}

Doubles load(const NamedTensors& inputs, const char* name) {
    const auto found = inputs.find(name);
    if (found == inputs.end()) throw InvalidArgument(name, "missing input tensor");
    return found->second.to_doubles();
}

// products[row][slot] = rows . table, for one head of one sequence.
Doubles slot_products(const double* rows, const Doubles& table, int length, int slots, int head, int width,
                      int head_dim) {
    Doubles products(static_cast<std::size_t>(length) * slots);
    for (int i = 0; i < length; ++i)
        for (int slot = 0; slot < slots; ++slot)
            products[static_cast<std::size_t>(i) * slots + slot] =
                dot(rows + static_cast<std::int64_t>(i) * width,
                    &table[static_cast<std::size_t>(slot) * width + std::size_t(head) * head_dim], head_dim);
    return products;
}

void attend(const Task& task, const Sequence& sequence, int head) {
    const Problem& problem = *task.problem;
    const int length = sequence.length, head_dim = problem.head_dim, slots = 2 * problem.span();
    const int width = problem.heads * head_dim;  // row stride
    const std::int64_t base = sequence.first_row * width + std::int64_t{head} * head_dim;
    Doubles c2p, p2c;
    if (problem.c2p) c2p = slot_products(&task.q[base], task.position_key, length, slots, head, width, head_dim);
    if (problem.p2c) p2c = slot_products(&task.k[base], task.position_query, length, slots, head, width, head_dim);
    const double scale = 1.0 / std::sqrt(double(head_dim) * (1 + int(problem.c2p) + int(problem.p2c)));

    Doubles scores(length);
    for (int i = 0; i < length; ++i) {
        const double* query = &task.q[base + std::int64_t{i} * width];
        const bool hidden_query = sequence.keep && !sequence.keep[i];
        double highest = -HUGE_VAL;
        for (int j = 0; j < length; ++j) {
            double score = 0;  // a hidden query attends every key equally
            if (!hidden_query) {
                const int slot = problem.c2p || problem.p2c ? task.table->slot(i - j) : 0;
                score = dot(query, &task.k[base + std::int64_t{j} * width], head_dim);
                if (problem.c2p) score += c2p[static_cast<std::size_t>(i) * slots + slot];
                if (problem.p2c) score += p2c[static_cast<std::size_t>(j) * slots + slot];
                score *= scale;
                if (sequence.keep && !sequence.keep[j]) score = -HUGE_VAL;
            }
            scores[j] = score;
            highest = std::max(highest, score);
        }
        double sum = 0;
        double* out = task.out + base + std::int64_t{i} * width;
        std::fill(out, out + head_dim, 0.0);
        for (int j = 0; j < length; ++j) {
            const double weight = std::exp(scores[j] - highest);
            sum += weight;
            const double* value = &task.v[base + std::int64_t{j} * width];
            for (int d = 0; d < head_dim; ++d) out[d] += weight * value[d];
        }
        for (int d = 0; d < head_dim; ++d) out[d] /= sum;
        task.lse[sequence.lse_offset + sequence.lse_head * head + i] = (highest + std::log(sum)) / std::log(2.0);
    }
}

std::vector<Sequence> sequences_of(const Problem& problem, const NamedTensors& inputs) {
    std::vector<Sequence> sequences;
    if (problem.layout == Layout::packed) {
        const HostTensor& bounds = inputs.at("cu_seqlens");
        for (int b = 0; b < problem.batch; ++b) {
            const auto first = static_cast<std::int64_t>(bounds.at(b)),
                       last = static_cast<std::int64_t>(bounds.at(b + 1));
            sequences.push_back({first, static_cast<int>(last - first), nullptr, first, problem.tokens});
        }
        return sequences;
    }
    const std::uint8_t* keep =
        problem.mask ? reinterpret_cast<const std::uint8_t*>(inputs.at("mask").data.data()) : nullptr;
    for (int b = 0; b < problem.batch; ++b) {
        const std::int64_t row = std::int64_t{b} * problem.length;
        sequences.push_back({row, problem.length, keep ? keep + row : nullptr, row * problem.heads, problem.length});
    }
    return sequences;
}

}  // namespace

NamedTensors forward_reference(const Problem& problem, const NamedTensors& inputs) {
    const SlotTable table = problem.c2p || problem.p2c
                                ? make_slot_table(problem.position_buckets, problem.max_relative_positions)
                                : SlotTable{};
    const std::int64_t rows =
        problem.layout == Layout::packed ? problem.tokens : std::int64_t{problem.batch} * problem.length;
    NamedTensors outputs;
    HostTensor& out = outputs["out"] = HostTensor(DType::f64, inputs.at("q").shape);
    const std::vector<std::int64_t> lse_shape =
        problem.layout == Layout::packed ? std::vector<std::int64_t>{problem.heads, problem.tokens}
                                         : std::vector<std::int64_t>{problem.batch, problem.heads, problem.length};
    HostTensor& lse = outputs["lse"] = HostTensor(DType::f64, lse_shape);
    if (rows == 0) return outputs;

    Task task{&problem,
              &table,
              load(inputs, "q"),
              load(inputs, "k"),
              load(inputs, "v"),
              {},
              {},
              sequences_of(problem, inputs),
              reinterpret_cast<double*>(out.data.data()),
              reinterpret_cast<double*>(lse.data.data())};
    if (problem.c2p) task.position_key = load(inputs, "position_key");
    if (problem.p2c) task.position_query = load(inputs, "position_query");
    auto body = [](void* context, std::size_t index, int) {
        const Task& shared = *static_cast<const Task*>(context);
        const auto heads = static_cast<std::size_t>(shared.problem->heads);
        attend(shared, shared.sequences[index / heads], static_cast<int>(index % heads));
    };
    ThreadPool::shared().run(task.sequences.size() * static_cast<std::size_t>(problem.heads), body, &task);
    return outputs;
}

}  // namespace turbotune::disentangled_attention
