#include "reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "dropout_arguments.h"
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

double dot(const double* a, const double* b, int n) {
    double sum = 0;
    for (int d = 0; d < n; ++d) sum += a[d] * b[d];
    return sum;
}

void add_scaled(double* to, double factor, const double* from, int n) {
    for (int d = 0; d < n; ++d) to[d] += factor * from[d];
}

Doubles load(const NamedTensors& inputs, const char* name) {
    const auto found = inputs.find(name);
    if (found == inputs.end()) throw InvalidArgument(name, "missing input tensor");
    return found->second.to_doubles();
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

struct Task {
    Task(const Problem& p, const NamedTensors& inputs, std::uint64_t seed, std::uint64_t offset)
        : problem(p), q(load(inputs, "q")), k(load(inputs, "k")), v(load(inputs, "v")) {
        if (p.c2p || p.p2c) table = make_slot_table(p.position_buckets, p.max_relative_positions);
        if (p.c2p) position_key = load(inputs, "position_key");
        if (p.p2c) position_query = load(inputs, "position_query");
        sequences = sequences_of(p, inputs);
        width = std::int64_t{p.heads} * p.head_dim;
        scale = 1.0 / std::sqrt(double(p.head_dim) * (1 + int(p.c2p) + int(p.p2c)));
        if (p.dropout > 0) {
            set_probability(dropout, p.dropout);
            set_seed(dropout, seed, offset);
            kept_scale = double(dropout.scale);
        }
    }

    Problem problem;
    SlotTable table;
    Doubles q, k, v, position_key, position_query;
    std::vector<Sequence> sequences;
    std::int64_t width = 0;  // row stride
    double scale = 1, kept_scale = 1;
    DropoutParams dropout{};
};

// One head of one sequence: its rows, and the weights of a query row.
class Head {
  public:
    Head(const Task& task, std::size_t sequence, int head)
        : task_(task),
          sequence_(task.sequences[sequence]),
          base(sequence_.first_row * task.width + std::int64_t{head} * task.problem.head_dim),
          length(sequence_.length),
          head_dim(task.problem.head_dim),
          slots(2 * task.problem.span()),
          number_(static_cast<unsigned>(sequence) * static_cast<unsigned>(task.problem.heads) + unsigned(head)),
          table_(std::int64_t{head} * task.problem.head_dim),
          scores_(std::size_t(length)),
          dropped_(std::size_t(length) + 64) {
        if (task.problem.c2p) c2p_ = slot_products(task.q, task.position_key);
        if (task.problem.p2c) p2c_ = slot_products(task.k, task.position_query);
        weights.resize(std::size_t(length));
        factors.resize(std::size_t(length));
    }

    std::int64_t row(int i) const { return base + std::int64_t{i} * task_.width; }
    std::int64_t table_row(int slot) const { return std::int64_t{slot} * task_.width + table_; }
    bool hidden(int i) const { return sequence_.keep && !sequence_.keep[i]; }
    int slot(int i, int j) const {
        return task_.problem.c2p || task_.problem.p2c ? task_.table.slot(std::int64_t{i} - j) : 0;
    }

    // Fills weights (the softmax) and factors (what dropout makes of each weight); returns lse.
    double attend(int i) {
        double highest = -HUGE_VAL;
        for (int j = 0; j < length; ++j) {
            double score = 0;  // a hidden query attends every key equally
            if (!hidden(i)) {
                const int at = slot(i, j);
                score = dot(&task_.q[std::size_t(row(i))], &task_.k[std::size_t(row(j))], head_dim);
                if (task_.problem.c2p) score += c2p_[std::size_t(i) * std::size_t(slots) + std::size_t(at)];
                if (task_.problem.p2c) score += p2c_[std::size_t(j) * std::size_t(slots) + std::size_t(at)];
                score *= task_.scale;
                if (hidden(j)) score = -HUGE_VAL;
            }
            scores_[std::size_t(j)] = score;
            highest = std::max(highest, score);
        }
        double sum = 0;
        for (int j = 0; j < length; ++j) sum += weights[std::size_t(j)] = std::exp(scores_[std::size_t(j)] - highest);
        for (double& weight : weights) weight /= sum;
        draw(i);
        return (highest + std::log(sum)) / std::log(2.0);
    }

  private:
    const Task& task_;
    const Sequence& sequence_;

  public:
    const std::int64_t base;  // element of row 0
    const int length, head_dim, slots;
    Doubles weights, factors;

  private:
    // [row][slot], rows . table.
    Doubles slot_products(const Doubles& rows, const Doubles& table) const {
        Doubles products(std::size_t(length) * std::size_t(slots));
        for (int i = 0; i < length; ++i)
            for (int at = 0; at < slots; ++at)
                products[std::size_t(i) * std::size_t(slots) + std::size_t(at)] =
                    dot(&rows[std::size_t(row(i))], &table[std::size_t(table_row(at))], head_dim);
        return products;
    }

    void draw(int i) {
        if (task_.problem.dropout == 0) {
            std::fill(factors.begin(), factors.end(), 1.0);
            return;
        }
        for (int column = 0; column < length; column += 64)
            for (int c = 0; c < 4; ++c) {
                const DropoutPatch patch = dropout_patch(i, column + 2 * c);
                const unsigned word = dropped_patch(task_.dropout, number_, patch.row_group, patch.column_group);
                for (int j = 0; j < 16; ++j) {
                    const int at = column + 8 * (j / 2) + 2 * c + j % 2;
                    dropped_[std::size_t(at)] = word >> dropout_patch(i, at).bit & 1u;
                }
            }
        for (int j = 0; j < length; ++j) factors[std::size_t(j)] = dropped_[std::size_t(j)] ? 0.0 : task_.kept_scale;
    }

    const unsigned number_;
    const std::int64_t table_;
    Doubles c2p_, p2c_, scores_;
    std::vector<char> dropped_;
};

struct Gradients {
    double *dq, *dk, *dv;
    Doubles d_position_key, d_position_query;  // of one head of one sequence, [slot][d]
};

void differentiate(const Task& task, const Doubles& dout, std::size_t sequence, int head_index, Gradients& gradients) {
    const Problem& problem = task.problem;
    Head head(task, sequence, head_index);
    const int length = head.length, head_dim = head.head_dim, slots = head.slots;
    const auto cells = std::size_t(slots) * std::size_t(head_dim);
    if (problem.c2p) gradients.d_position_key.assign(cells, 0.0);
    if (problem.p2c) gradients.d_position_query.assign(cells, 0.0);
    // Sums of dS by slot: of a query row; and [key][slot].
    Doubles row_slots(static_cast<std::size_t>(slots), 0.0);
    Doubles key_slots;
    if (problem.p2c) key_slots.resize(std::size_t(length) * std::size_t(slots));
    Doubles dp(std::size_t(length), 0.0);
    for (int i = 0; i < length; ++i) {
        head.attend(i);
        const double* gradient = &dout[std::size_t(head.row(i))];
        double delta = 0;
        for (int j = 0; j < length; ++j) {
            const auto at = std::size_t(j);
            dp[at] = head.factors[at] * dot(gradient, &task.v[std::size_t(head.row(j))], head_dim);
            delta += head.weights[at] * dp[at];
            add_scaled(gradients.dv + head.row(j), head.weights[at] * head.factors[at], gradient, head_dim);
        }
        if (head.hidden(i)) continue;  // its scores are constants
        std::fill(row_slots.begin(), row_slots.end(), 0.0);
        for (int j = 0; j < length; ++j) {
            const auto slot = std::size_t(head.slot(i, j));
            const double ds = head.weights[std::size_t(j)] * (dp[std::size_t(j)] - delta) * task.scale;
            add_scaled(gradients.dq + head.row(i), ds, &task.k[std::size_t(head.row(j))], head_dim);
            add_scaled(gradients.dk + head.row(j), ds, &task.q[std::size_t(head.row(i))], head_dim);
            row_slots[slot] += ds;
            if (problem.p2c) key_slots[std::size_t(j) * std::size_t(slots) + slot] += ds;
        }
        for (int slot = 0; problem.c2p && slot < slots; ++slot) {
            const double sum = row_slots[std::size_t(slot)];
            add_scaled(gradients.dq + head.row(i), sum, &task.position_key[std::size_t(head.table_row(slot))],
                       head_dim);
            add_scaled(&gradients.d_position_key[std::size_t(slot) * std::size_t(head_dim)], sum,
                       &task.q[std::size_t(head.row(i))], head_dim);
        }
    }
    for (int j = 0; problem.p2c && j < length; ++j)
        for (int slot = 0; slot < slots; ++slot) {
            const double sum = key_slots[std::size_t(j) * std::size_t(slots) + std::size_t(slot)];
            add_scaled(gradients.dk + head.row(j), sum, &task.position_query[std::size_t(head.table_row(slot))],
                       head_dim);
            add_scaled(&gradients.d_position_query[std::size_t(slot) * std::size_t(head_dim)], sum,
                       &task.k[std::size_t(head.row(j))], head_dim);
        }
}

double* doubles_of(HostTensor& tensor) {
    return reinterpret_cast<double*>(tensor.data.data());
}

}  // namespace

NamedTensors forward_reference(const Problem& problem, const NamedTensors& inputs, std::uint64_t seed,
                               std::uint64_t offset) {
    const std::vector<std::int64_t> lse_shape =
        problem.layout == Layout::packed ? std::vector<std::int64_t>{problem.heads, problem.tokens}
                                         : std::vector<std::int64_t>{problem.batch, problem.heads, problem.length};
    NamedTensors outputs;
    outputs["out"] = HostTensor(DType::f64, inputs.at("q").shape);
    outputs["lse"] = HostTensor(DType::f64, lse_shape);
    struct Context {
        Task task;
        double *out, *lse;
    } context{Task(problem, inputs, seed, offset), doubles_of(outputs["out"]), doubles_of(outputs["lse"])};
    auto body = [](void* shared, std::size_t index, int) {
        const Context& c = *static_cast<const Context*>(shared);
        const auto heads = std::size_t(c.task.problem.heads);
        const Sequence& sequence = c.task.sequences[index / heads];
        const int number = static_cast<int>(index % heads);
        Head head(c.task, index / heads, number);
        for (int i = 0; i < head.length; ++i) {
            c.lse[sequence.lse_offset + sequence.lse_head * number + i] = head.attend(i);
            double* out = c.out + head.row(i);
            for (int j = 0; j < head.length; ++j)
                add_scaled(out, head.weights[std::size_t(j)] * head.factors[std::size_t(j)],
                           &c.task.v[std::size_t(head.row(j))], head.head_dim);
        }
    };
    ThreadPool::shared().run(context.task.sequences.size() * std::size_t(problem.heads), body, &context);
    return outputs;
}

NamedTensors backward_reference(const Problem& problem, const NamedTensors& inputs, std::uint64_t seed,
                                std::uint64_t offset) {
    NamedTensors outputs;
    for (const char* name : {"dq", "dk", "dv"}) outputs[name] = HostTensor(DType::f64, inputs.at("q").shape);
    const std::vector<std::int64_t> table = {2 * std::int64_t{problem.span()},
                                             std::int64_t{problem.heads} * problem.head_dim};
    if (problem.c2p) outputs["d_position_key"] = HostTensor(DType::f64, table);
    if (problem.p2c) outputs["d_position_query"] = HostTensor(DType::f64, table);
    struct Context {
        Task task;
        Doubles dout;
        std::vector<Gradients> heads;
    } context{Task(problem, inputs, seed, offset), load(inputs, "dout"), {}};
    const auto heads = std::size_t(problem.heads);
    context.heads.resize(context.task.sequences.size() * heads,
                         {doubles_of(outputs["dq"]), doubles_of(outputs["dk"]), doubles_of(outputs["dv"]), {}, {}});
    auto body = [](void* shared, std::size_t index, int) {
        Context& c = *static_cast<Context*>(shared);
        const auto count = std::size_t(c.task.problem.heads);
        differentiate(c.task, c.dout, index / count, static_cast<int>(index % count), c.heads[index]);
    };
    ThreadPool::shared().run(context.heads.size(), body, &context);
    const int head_dim = problem.head_dim;
    auto add_tables = [&](const char* name, Doubles Gradients::*part) {
        double* to = doubles_of(outputs[name]);
        for (std::size_t index = 0; index < context.heads.size(); ++index)
            for (int slot = 0; slot < 2 * problem.span(); ++slot)
                add_scaled(to + slot * context.task.width + static_cast<int>(index % heads) * head_dim, 1.0,
                           &(context.heads[index].*part)[std::size_t(slot) * std::size_t(head_dim)], head_dim);
    };
    if (problem.c2p) add_tables("d_position_key", &Gradients::d_position_key);
    if (problem.p2c) add_tables("d_position_query", &Gradients::d_position_query);
    return outputs;
}

}  // namespace turbotune::disentangled_attention
