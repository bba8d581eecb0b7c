#include "reference.h"

#include <algorithm>
#include <cmath>
#include <memory>

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

// In lanes, so that an addition need not wait for the one before.
double dot(const double* a, const double* b, int n) {
    constexpr int kLanes = 8;
    double lanes[kLanes] = {}, sum = 0;
    int d = 0;
    for (; d + kLanes <= n; d += kLanes)
        for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += a[d + lane] * b[d + lane];
    for (; d < n; ++d) sum += a[d] * b[d];
    for (double lane : lanes) sum += lane;
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
    Doubles dout;            // empty: the forward pass alone
    std::int64_t width = 0;  // row stride
    double scale = 1, kept_scale = 1;
    DropoutParams dropout{};

    // Results, which start as zeros.
    double *out = nullptr, *lse = nullptr;
    double *dq = nullptr, *dk = nullptr, *dv = nullptr, *d_position_key = nullptr, *d_position_query = nullptr;
};

// Not initialised: threads write their rows first.
class Matrix {
  public:
    Matrix(int rows, int columns)
        : columns_(std::size_t(columns)), cells_(new double[std::size_t(rows) * std::size_t(columns)]) {}
    double* operator[](int row) { return &cells_[std::size_t(row) * columns_]; }

  private:
    std::size_t columns_;
    std::unique_ptr<double[]> cells_;
};

// One head of one sequence, in passes over rows or slots. A pass writes only what belongs to its row or slot, each sum
// in the same order always, so that nothing depends on the number of threads.
class Head {
  public:
    Head(const Task& task, const Sequence& sequence, int number, unsigned batch_head)
        : task_(task),
          sequence_(sequence),
          length_(sequence.length),
          head_dim_(task.problem.head_dim),
          c2p_(task.problem.c2p),
          p2c_(task.problem.p2c),
          gradients_(!task.dout.empty()),
          base_(sequence.first_row * task.width + std::int64_t{number} * head_dim_),
          table_base_(std::int64_t{number} * head_dim_),
          lse_(task.lse + sequence.lse_offset + sequence.lse_head * number),
          batch_head_(batch_head),
          slots_(slots_of(task, length_)),
          first_slot_(slots_.front()),
          reached_(slots_.back() + 1 - first_slot_),
          query_products_(c2p_ ? length_ : 0, reached_),
          key_products_(p2c_ ? length_ : 0, reached_),
          kept_(gradients_ ? length_ : 0, length_),
          ds_(gradients_ ? length_ : 0, length_),
          query_sums_(gradients_ && c2p_ ? length_ : 0, reached_),
          key_sums_(gradients_ && p2c_ ? length_ : 0, reached_) {}

    void run() {
        constexpr std::size_t kPieceRows = 8;
        ThreadPool& pool = ThreadPool::shared();
        auto pass = [&](int count, void (Head::*part)(int, int)) {
            pool.run_pieces(std::size_t(count), kPieceRows,
                            [&](std::size_t first, std::size_t end) { (this->*part)(int(first), int(end)); });
        };
        if (c2p_ || p2c_) pass(length_, &Head::multiply_positions);
        pass(length_, &Head::attend);
        if (!gradients_) return;
        pass(length_, &Head::differentiate_keys);
        if (c2p_ || p2c_) pass(reached_, &Head::differentiate_slots);
    }

  private:
    struct Range {
        int first, end;
    };

    // The slot of each distance i - j, from the least. They never fall as the distance grows.
    static std::vector<int> slots_of(const Task& task, int length) {
        std::vector<int> slots(2 * std::size_t(length) - 1, 0);
        for (int at = 0; (task.problem.c2p || task.problem.p2c) && at < int(slots.size()); ++at)
            slots[std::size_t(at)] = task.table.slot(at - (length - 1));
        return slots;
    }

    // From here on slots count from the first that the sequence reaches.
    int slot(int i, int j) const { return slots_[std::size_t(i - j + length_ - 1)] - first_slot_; }
    Range slots_of_query(int i) const { return {slot(i, length_ - 1), slot(i, 0) + 1}; }
    Range slots_of_key(int j) const { return {slot(0, j), slot(length_ - 1, j) + 1}; }

    std::int64_t row(int i) const { return base_ + std::int64_t{i} * task_.width; }
    std::int64_t table_row(int slot) const { return std::int64_t{first_slot_ + slot} * task_.width + table_base_; }
    const double* query(int i) const { return &task_.q[std::size_t(row(i))]; }
    const double* key(int j) const { return &task_.k[std::size_t(row(j))]; }
    const double* value(int j) const { return &task_.v[std::size_t(row(j))]; }
    const double* position_key(int slot) const { return &task_.position_key[std::size_t(table_row(slot))]; }
    const double* position_query(int slot) const { return &task_.position_query[std::size_t(table_row(slot))]; }
    bool hidden(int i) const { return sequence_.keep && !sequence_.keep[i]; }

    // Rows: products of queries with position_key and of keys with position_query, by slot.
    void multiply_positions(int first, int end) {
        for (int i = first; i < end; ++i) {
            const Range keys = slots_of_query(i), queries = slots_of_key(i);
            for (int at = keys.first; c2p_ && at < keys.end; ++at)
                query_products_[i][at] = dot(query(i), position_key(at), head_dim_);
            for (int at = queries.first; p2c_ && at < queries.end; ++at)
                key_products_[i][at] = dot(key(i), position_query(at), head_dim_);
        }
    }

    // Query rows: out and lse; and dS and dq. Keys are the outer loop where each costs more than a number: a key and
    // its value then serve all of the rows while they are near.
    void attend(int first, int end) {
        Matrix weights(end - first, length_), factors(end - first, length_);
        for (int j = 0; j < length_; ++j)
            for (int i = first; i < end; ++i) weights[i - first][j] = score(i, j);
        for (int i = first; i < end; ++i) {
            lse_[i] = soften(weights[i - first]);
            drop(i, factors[i - first]);
        }
        for (int j = 0; j < length_; ++j)
            for (int i = first; i < end; ++i) {
                const double kept = weights[i - first][j] * factors[i - first][j];
                add_scaled(task_.out + row(i), kept, value(j), head_dim_);
                if (gradients_) kept_[i][j] = kept;
            }
        if (gradients_) differentiate_queries(first, end, weights, factors);
    }

    double score(int i, int j) {
        if (hidden(i)) return 0;  // a hidden query attends every key equally
        if (hidden(j)) return -HUGE_VAL;
        double sum = dot(query(i), key(j), head_dim_);
        if (c2p_) sum += query_products_[i][slot(i, j)];
        if (p2c_) sum += key_products_[j][slot(i, j)];
        return sum * task_.scale;
    }

    // The softmax of a row of scores, in their place; returns its lse.
    double soften(double* scores) const {
        const double highest = *std::max_element(scores, scores + length_);
        double sum = 0;
        for (int j = 0; j < length_; ++j) sum += scores[j] = std::exp(scores[j] - highest);
        for (int j = 0; j < length_; ++j) scores[j] /= sum;
        return (highest + std::log(sum)) / std::log(2.0);
    }

    // What dropout makes of each weight of a query row.
    void drop(int i, double* factors) const {
        std::fill(factors, factors + length_, task_.kept_scale);
        for (int column = 0; task_.problem.dropout > 0 && column < length_; column += 64)
            for (int c = 0; c < 4; ++c) {
                const DropoutPatch patch = dropout_patch(i, column + 2 * c);
                const unsigned word = dropped_patch(task_.dropout, batch_head_, patch.row_group, patch.column_group);
                for (int n = 0; n < 16; ++n) {
                    const int j = column + 8 * (n / 2) + 2 * c + n % 2;
                    if (j < length_ && (word >> dropout_patch(i, j).bit & 1u)) factors[j] = 0;
                }
            }
    }

    void differentiate_queries(int first, int end, Matrix& weights, Matrix& factors) {
        for (int j = 0; j < length_; ++j)
            for (int i = first; i < end; ++i)
                ds_[i][j] = factors[i - first][j] * dot(&task_.dout[std::size_t(row(i))], value(j), head_dim_);
        for (int i = first; i < end; ++i) {
            double* ds = ds_[i];
            const double *weight = weights[i - first], delta = dot(weight, ds, length_);
            // The scores of a hidden query are constants.
            for (int j = 0; j < length_; ++j) ds[j] = hidden(i) ? 0.0 : weight[j] * (ds[j] - delta) * task_.scale;
        }
        for (int j = 0; j < length_; ++j)
            for (int i = first; i < end; ++i) add_scaled(task_.dq + row(i), ds_[i][j], key(j), head_dim_);
        for (int i = first; c2p_ && i < end; ++i) {
            const Range range = slots_of_query(i);
            double* sums = query_sums_[i];
            std::fill(sums + range.first, sums + range.end, 0.0);
            for (int j = 0; j < length_; ++j) sums[slot(i, j)] += ds_[i][j];
            for (int at = range.first; at < range.end; ++at)
                add_scaled(task_.dq + row(i), sums[at], position_key(at), head_dim_);
        }
    }

    // Key rows: dv and dk.
    void differentiate_keys(int first, int end) {
        for (int j = first; p2c_ && j < end; ++j) {
            const Range range = slots_of_key(j);
            std::fill(key_sums_[j] + range.first, key_sums_[j] + range.end, 0.0);
        }
        for (int i = 0; i < length_; ++i)
            for (int j = first; j < end; ++j) {
                add_scaled(task_.dv + row(j), kept_[i][j], &task_.dout[std::size_t(row(i))], head_dim_);
                add_scaled(task_.dk + row(j), ds_[i][j], query(i), head_dim_);
                if (p2c_) key_sums_[j][slot(i, j)] += ds_[i][j];
            }
        for (int j = first; p2c_ && j < end; ++j) {
            const Range range = slots_of_key(j);
            for (int at = range.first; at < range.end; ++at)
                add_scaled(task_.dk + row(j), key_sums_[j][at], position_query(at), head_dim_);
        }
    }

    // Slots: d_position_key and d_position_query.
    void differentiate_slots(int first, int end) {
        for (int i = 0; i < length_; ++i) {
            const Range keys = slots_of_query(i), queries = slots_of_key(i);
            for (int at = std::max(first, keys.first); c2p_ && at < std::min(end, keys.end); ++at)
                add_scaled(task_.d_position_key + table_row(at), query_sums_[i][at], query(i), head_dim_);
            for (int at = std::max(first, queries.first); p2c_ && at < std::min(end, queries.end); ++at)
                add_scaled(task_.d_position_query + table_row(at), key_sums_[i][at], key(i), head_dim_);
        }
    }

    const Task& task_;
    const Sequence& sequence_;
    const int length_, head_dim_;
    const bool c2p_, p2c_, gradients_;
    const std::int64_t base_, table_base_;  // element of row 0, and of the tables' slot 0
    double* const lse_;
    const unsigned batch_head_;
    const std::vector<int> slots_;
    const int first_slot_, reached_;
    Matrix query_products_, key_products_;  // [row][slot]
    Matrix kept_, ds_;                      // [query][key]: weights after dropout, and gradients of the scores
    Matrix query_sums_, key_sums_;          // [row][slot]: sums of ds_
};

double* doubles_of(HostTensor& tensor) {
    return reinterpret_cast<double*>(tensor.data.data());
}

NamedTensors reference(const Problem& problem, const NamedTensors& inputs, std::uint64_t seed, std::uint64_t offset,
                       bool gradients) {
    Task task(problem, inputs, seed, offset);
    NamedTensors outputs;
    auto add = [&](const char* name, const std::vector<std::int64_t>& shape) {
        return doubles_of(outputs[name] = HostTensor(DType::f64, shape));
    };
    const std::vector<std::int64_t>& rows = inputs.at("q").shape;
    task.out = add("out", rows);
    task.lse = add("lse", problem.layout == Layout::packed
                              ? std::vector<std::int64_t>{problem.heads, problem.tokens}
                              : std::vector<std::int64_t>{problem.batch, problem.heads, problem.length});
    if (gradients) {
        const std::vector<std::int64_t> table = {2 * std::int64_t{problem.span()}, task.width};
        task.dout = load(inputs, "dout");
        task.dq = add("dq", rows);
        task.dk = add("dk", rows);
        task.dv = add("dv", rows);
        if (problem.c2p) task.d_position_key = add("d_position_key", table);
        if (problem.p2c) task.d_position_query = add("d_position_query", table);
    }
    unsigned batch_head = 0;
    for (const Sequence& sequence : sequences_of(problem, inputs))
        for (int head = 0; head < problem.heads; ++head, ++batch_head)
            if (sequence.length > 0) Head(task, sequence, head, batch_head).run();
    return outputs;
}

}  // namespace

NamedTensors forward_reference(const Problem& problem, const NamedTensors& inputs, std::uint64_t seed,
                               std::uint64_t offset) {
    return reference(problem, inputs, seed, offset, false);
}

NamedTensors backward_reference(const Problem& problem, const NamedTensors& inputs, std::uint64_t seed,
                                std::uint64_t offset) {
    return reference(problem, inputs, seed, offset, true);
}

}  // namespace turbotune::disentangled_attention
