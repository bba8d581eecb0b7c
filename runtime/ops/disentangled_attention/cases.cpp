#include "cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>

#include "reference.h"
#include "turbotune/base/error.h"
#include "turbotune/device/thread_pool.h"
#include "workload.h"

namespace turbotune::disentangled_attention {

namespace {

// splitmix64: https://prng.di.unimi.it/splitmix64.c (public domain algorithm, Sebastiano Vigna).
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::uint64_t next() {
        std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    int below(int bound) { return static_cast<int>(next() % static_cast<std::uint64_t>(bound)); }
    // Sum of four uniforms, centred, variance 1: near enough to normal and one draw per number.
    float normal() {
        const std::uint64_t bits = next();
        const auto sum =
            static_cast<float>((bits & 0xffff) + ((bits >> 16) & 0xffff) + ((bits >> 32) & 0xffff) + (bits >> 48));
        return (sum * (1.0f / 65536.0f) - 2.0f) * 1.7320508f;
    }

    // As if so many numbers had been drawn.
    void skip(std::uint64_t count) { state_ += count * 0x9e3779b97f4a7c15ull; }

  private:
    std::uint64_t state_;
};

HostTensor random_tensor(std::vector<std::int64_t> shape, DType dtype, Random& random) {
    constexpr std::size_t kPiece = 1 << 16;
    HostTensor tensor(dtype, std::move(shape));
    const auto count = static_cast<std::size_t>(tensor.size());
    ThreadPool::shared().run_pieces(count, kPiece, [&](std::size_t first, std::size_t end) {
        Random own = random;
        own.skip(first);
        HostTensor piece(DType::f32, {static_cast<std::int64_t>(end - first)});
        auto* values = reinterpret_cast<float*>(piece.data.data());
        for (std::size_t i = first; i < end; ++i) values[i - first] = own.normal();
        const HostTensor rounded = piece.to(dtype);
        std::memcpy(&tensor.data[first * size_of(dtype)], rounded.data.data(), rounded.data.size());
    });
    random.skip(count);
    return tensor;
}

void fill_mask(std::uint8_t* keep, int length, MaskPattern pattern, Random& random) {
    const int cut = 1 + random.below(length);  // at least one kept
    for (int j = 0; j < length; ++j) {
        switch (pattern) {
            case MaskPattern::none:
                keep[j] = 1;
                break;
            case MaskPattern::right:
                keep[j] = j < cut;
                break;
            case MaskPattern::left:
                keep[j] = j >= length - cut;
                break;
            case MaskPattern::holes:
                keep[j] = random.below(3) != 0;
                break;
            case MaskPattern::second_half:
                keep[j] = j >= length / 2;
                break;
            case MaskPattern::last_only:
                keep[j] = j == length - 1;
                break;
            case MaskPattern::first_only:
                keep[j] = j == 0;
                break;
            case MaskPattern::alternating:
                keep[j] = j % 2;
                break;
            case MaskPattern::all_hidden:
                keep[j] = 0;
                break;
        }
    }
}

// Lengths of the sequences of a packed problem that has the given longest one.
std::vector<int> packed_lengths(int sequences, int longest, Random& random) {
    std::vector<int> lengths;
    for (int b = 0; b + 1 < sequences; ++b) lengths.push_back(longest / 4 + random.below(longest - longest / 4 + 1));
    lengths.push_back(longest);
    return lengths;
}

Problem with_tokens(Problem problem, const std::vector<int>& lengths) {
    problem.tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    problem.batch = static_cast<int>(lengths.size());
    problem.length = std::max(1, *std::max_element(lengths.begin(), lengths.end()));
    return problem;
}

struct SmallShape {
    int batch, heads, length, buckets, max_relative;
};

// Lengths about the edges of tiles and of the position band; few buckets bring far distances to short sequences.
std::vector<SmallShape> small_shapes(int family) {
    std::vector<SmallShape> shapes = {{1, 1, 1, 256, 512},   {2, 2, 33, 16, 32},  {1, 2, 64, 0, 24},
                                      {2, 1, 129, 32, 40},   {1, 2, 257, 32, 64}, {1, 1, 513, 256, 512},
                                      {1, 1, 1300, 256, 512}};
    shapes.erase(std::remove_if(shapes.begin(), shapes.end(), [&](const SmallShape& s) { return s.length > family; }),
                 shapes.end());
    if (family == 64) shapes.push_back({2, 2, 63, 16, 32});
    return shapes;
}

Problem timing_problem(const Workload& workload, const DeviceInfo& device, DType dtype) {
    Problem problem = problem_of(workload, dtype);
    const int batch_heads = static_cast<int>(workload.fields.integer("batch_heads"));
    // A few cores see no difference between 8 and 32 independent heads beyond their number; keep the work bounded.
    const int most = device.kind == DeviceKind::cpu ? std::max(4, device.device_class.sm_count) : batch_heads;
    problem.heads = std::min(8, most);
    problem.batch = std::max(1, std::min(batch_heads, most) / problem.heads);
    return problem;
}

TestCase full_size_case(const Workload& workload, const DeviceInfo& device, DType dtype, std::uint64_t seed) {
    Problem problem = timing_problem(workload, device, dtype);
    Random random(seed * 7919 + 17);
    if (problem.layout == Layout::packed) {
        const std::vector<int> lengths = packed_lengths(std::max(2, problem.batch), problem.length, random);
        return make_case(with_tokens(problem, lengths), MaskPattern::none, lengths, seed, false);
    }
    return make_case(problem, problem.mask ? MaskPattern::right : MaskPattern::none, {}, seed, false);
}

}  // namespace

const char* to_string(MaskPattern pattern) {
    static constexpr const char* kNames[] = {"none",      "right",      "left",        "holes",     "second_half",
                                             "last_only", "first_only", "alternating", "all_hidden"};
    return kNames[static_cast<int>(pattern)];
}

std::vector<TensorSpec> output_specs(const Problem& problem) {
    const std::int64_t width = std::int64_t{problem.heads} * problem.head_dim;
    const bool packed = problem.layout == Layout::packed;
    using Shape = std::vector<std::int64_t>;
    const Shape rows = packed ? Shape{problem.tokens, width} : Shape{problem.batch, problem.length, width};
    const Shape table = {2 * std::int64_t{problem.span()}, width};
    std::vector<TensorSpec> outputs;
    if (problem.pass == Pass::backward) {
        for (const char* name : {"dq", "dk", "dv"}) outputs.push_back({name, problem.dtype, rows});
        if (problem.c2p) outputs.push_back({"d_position_key", problem.dtype, table});
        if (problem.p2c) outputs.push_back({"d_position_query", problem.dtype, table});
        return outputs;
    }
    outputs.push_back({"out", problem.dtype, rows});
    if (problem.pass == Pass::training_forward)
        outputs.push_back(
            {"lse", DType::f32,
             packed ? Shape{problem.heads, problem.tokens} : Shape{problem.batch, problem.heads, problem.length}});
    return outputs;
}

NamedTensors add_forward_results(const Problem& problem, NamedTensors& inputs) {
    NamedTensors results = backward_reference(problem, inputs, kCaseDropoutSeed, kCaseDropoutOffset);
    inputs["out"] = results.at("out").to(problem.dtype);
    inputs["lse"] = results.at("lse").to(DType::f32);
    return results;
}

double tolerance_of(const Problem& problem) {
    if (problem.dtype != DType::f32) return 2e-2;
    return problem.math == Math::fast ? 5e-3 : 2e-4;
}

NamedTensors random_inputs(const Problem& problem, MaskPattern pattern, const std::vector<int>& lengths,
                           std::uint64_t seed) {
    Random random(seed);
    const std::int64_t width = std::int64_t{problem.heads} * problem.head_dim;
    const std::vector<std::int64_t> rows = problem.layout == Layout::packed
                                               ? std::vector<std::int64_t>{problem.tokens, width}
                                               : std::vector<std::int64_t>{problem.batch, problem.length, width};
    NamedTensors inputs;
    for (const char* name : {"q", "k", "v"}) inputs[name] = random_tensor(rows, problem.dtype, random);
    if (problem.pass == Pass::backward) inputs["dout"] = random_tensor(rows, problem.dtype, random);
    const std::vector<std::int64_t> table = {2 * std::int64_t{problem.span()}, width};
    if (problem.c2p) inputs["position_key"] = random_tensor(table, problem.dtype, random);
    if (problem.p2c) inputs["position_query"] = random_tensor(table, problem.dtype, random);
    if (problem.mask) {
        HostTensor& mask = inputs["mask"] = HostTensor(DType::u8, {problem.batch, problem.length});
        for (int b = 0; b < problem.batch; ++b)
            fill_mask(reinterpret_cast<std::uint8_t*>(mask.data.data()) + std::int64_t{b} * problem.length,
                      problem.length, pattern, random);
    }
    if (problem.layout == Layout::packed) {
        HostTensor& bounds = inputs["cu_seqlens"] = HostTensor(DType::i32, {problem.batch + 1});
        std::int64_t row = 0;
        for (int b = 0; b < problem.batch; ++b) bounds.set(b + 1, double(row += lengths[static_cast<std::size_t>(b)]));
    }
    return inputs;
}

namespace {

// Inputs, and every result of theirs in float64.
struct CaseData {
    NamedTensors inputs, results;
};

CaseData draw_with_results(const Problem& problem, MaskPattern pattern, const std::vector<int>& lengths,
                           std::uint64_t seed) {
    CaseData data{random_inputs(problem, pattern, lengths, seed), {}};
    data.results = problem.pass == Pass::backward
                       ? add_forward_results(problem, data.inputs)
                       : forward_reference(problem, data.inputs, kCaseDropoutSeed, kCaseDropoutOffset);
    return data;
}

// Workloads that differ in length family, occupancy or math share the data of their small cases, and the float64
// results of one take up to a second of a core.
class CaseMemory {
  public:
    using Shared = std::shared_ptr<const CaseData>;

    template <class Make>
    Shared find_or_make(const std::string& key, Make make) {
        {
            const std::lock_guard lock(mutex_);
            const auto found = data_.find(key);
            if (found != data_.end()) return found->second;
        }
        const auto fresh = std::make_shared<const CaseData>(make());
        const std::lock_guard lock(mutex_);
        if (!data_.emplace(key, fresh).second) return fresh;
        constexpr std::size_t kMostBytes = std::size_t{256} << 20;
        bytes_ += bytes_of(*fresh);
        for (order_.push_back(key); bytes_ > kMostBytes; order_.pop_front()) {
            const auto oldest = data_.find(order_.front());
            bytes_ -= bytes_of(*oldest->second);
            data_.erase(oldest);
        }
        return fresh;
    }

  private:
    static std::size_t bytes_of(const CaseData& data) {
        std::size_t bytes = 0;
        for (const NamedTensors* tensors : {&data.inputs, &data.results})
            for (const auto& entry : *tensors) bytes += entry.second.data.size();
        return bytes;
    }

    std::mutex mutex_;
    std::map<std::string, Shared> data_;
    std::deque<std::string> order_;  // keys, the oldest first
    std::size_t bytes_ = 0;
};

CaseMemory::Shared remembered_data(Problem problem, MaskPattern pattern, const std::vector<int>& lengths,
                                   std::uint64_t seed) {
    static CaseMemory memory;
    // The data is the same for either math, and for inference and training_forward without dropout.
    problem.math = Math::strict;
    if (problem.pass == Pass::inference) problem.pass = Pass::training_forward;
    const std::string key =
        fmt::format("{} {} {} {}", problem.to_fields().to_string(), to_string(pattern), fmt::join(lengths, "+"), seed);
    return memory.find_or_make(key, [&] { return draw_with_results(problem, pattern, lengths, seed); });
}

}  // namespace

TestCase make_case(const Problem& problem, MaskPattern pattern, const std::vector<int>& lengths, std::uint64_t seed,
                   bool with_reference) {
    TestCase test_case;
    const std::string shape = problem.layout == Layout::packed
                                  ? fmt::format("packed={}", fmt::join(lengths, "+"))
                                  : fmt::format("B={} L={}", problem.batch, problem.length);
    test_case.label = fmt::format("{} H={} D={} {}{}{} buckets={}/{} seed={}", shape, problem.heads, problem.head_dim,
                                  turbotune::to_string(problem.dtype),
                                  problem.mask ? fmt::format(" mask={}", to_string(pattern)) : "",
                                  problem.dropout > 0 ? fmt::format(" dropout={}", problem.dropout) : "",
                                  problem.position_buckets, problem.max_relative_positions, seed);
    test_case.problem = problem.to_fields();
    test_case.outputs = output_specs(problem);
    test_case.tolerance = tolerance_of(problem);
    if (with_reference) {
        const CaseMemory::Shared data = remembered_data(problem, pattern, lengths, seed);
        test_case.inputs = data->inputs;
        for (const TensorSpec& output : test_case.outputs)
            test_case.expected[output.name] = data->results.at(output.name);
        return test_case;
    }
    test_case.inputs = random_inputs(problem, pattern, lengths, seed);
    if (problem.pass == Pass::backward) {
        Problem forward = problem;
        forward.pass = Pass::training_forward;
        test_case.producer = forward.to_fields();
        test_case.produced = output_specs(forward);
    }
    return test_case;
}

std::vector<TestCase> make_parity_cases(const Workload& workload, const DeviceInfo& device, std::uint64_t seed) {
    const auto family = static_cast<int>(workload.fields.integer("length"));
    std::vector<TestCase> cases;
    for (DType dtype : dtypes_of(workload)) {
        const Problem base = problem_of(workload, dtype);
        std::uint64_t draw = seed * 1000003;
        if (base.layout == Layout::packed) {
            std::vector<int> lengths = {1, std::min(family, 33), 0, std::min(family, 130), 5, std::min(family, 64)};
            for (int round = 0; round < 2; ++round) {  // the boundaries in order, then reversed
                Problem problem = with_tokens(base, lengths);
                problem.heads = 2;
                problem.position_buckets = 32;
                problem.max_relative_positions = 48;
                cases.push_back(make_case(problem, MaskPattern::none, lengths, ++draw, true));
                std::reverse(lengths.begin(), lengths.end());
            }
        } else {
            using enum MaskPattern;
            const std::vector<MaskPattern> patterns =
                base.mask ? std::vector{right, left, holes, second_half, last_only, first_only, alternating, all_hidden}
                          : std::vector{none};
            const std::vector<SmallShape> shapes = small_shapes(family);
            // Every shape, and every pattern, each at least once; the long shapes with one pattern only.
            const std::size_t count = std::max(shapes.size(), patterns.size());
            for (std::size_t i = 0; i < count; ++i) {
                const SmallShape& shape = i < shapes.size() ? shapes[i] : shapes[1 % shapes.size()];
                Problem problem = base;
                problem.batch = shape.batch;
                problem.heads = shape.heads;
                problem.length = shape.length;
                problem.position_buckets = shape.buckets;
                problem.max_relative_positions = shape.max_relative;
                cases.push_back(make_case(problem, patterns[i % patterns.size()], {}, ++draw, true));
            }
        }
        // The reference plan checks the whole family; the CPU's is plain float64 loops, so only while that is quick.
        if (device.kind != DeviceKind::cpu || family <= 512)
            cases.push_back(full_size_case(workload, device, dtype, ++draw));
    }
    return cases;
}

std::vector<Fields> producers_of(const Workload& workload, const DeviceInfo& device) {
    std::vector<Fields> producers;
    for (DType dtype : dtypes_of(workload)) {
        Problem problem = timing_problem(workload, device, dtype);
        if (problem.pass != Pass::backward) continue;
        problem.pass = Pass::training_forward;
        producers.push_back(problem.to_fields());
    }
    return producers;
}

TestCase make_timing_case(const Workload& workload, const DeviceInfo& device, std::uint64_t seed) {
    return full_size_case(workload, device, dtypes_of(workload).front(), seed);
}

TestCase make_problem_case(Problem problem, std::uint64_t seed) {
    std::vector<int> lengths;
    if (problem.layout == Layout::packed) {
        if (problem.tokens == 0) problem.tokens = std::int64_t{problem.batch} * problem.length;
        problem.validate();
        std::int64_t left = problem.tokens;
        for (int b = 0; b < problem.batch; ++b) {
            const std::int64_t share = b == 0 ? problem.length : left / (problem.batch - b);
            lengths.push_back(static_cast<int>(std::min(left, share)));
            left -= lengths.back();
        }
    }
    problem.validate();
    return make_case(problem, problem.mask ? MaskPattern::right : MaskPattern::none, lengths, seed, false);
}

}  // namespace turbotune::disentangled_attention
