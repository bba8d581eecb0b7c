#include "turbotune/tuner/parity.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>

#include "turbotune/base/error.h"
#include "turbotune/device/thread_pool.h"

namespace turbotune {

namespace {

constexpr unsigned char kPoison = 0xFF;  // all bits set is a NaN in every floating-point format here
constexpr unsigned char kCanary = 0xC5;
// Wide enough that a row written too far lands inside; a multiple of 256 keeps the tensor aligned.
constexpr std::size_t kCanaryBytes = 4096;

// A tensor in device memory between two canaries.
class GuardedBuffer {
  public:
    GuardedBuffer() = default;
    GuardedBuffer(Device& device, std::size_t bytes)
        : device_(&device), bytes_(bytes), buffer_(device, bytes + 2 * kCanaryBytes) {
        restore_canaries();
    }

    DevicePointer get() const { return at(kCanaryBytes); }
    std::size_t bytes() const { return bytes_; }
    std::size_t device_bytes() const { return buffer_.bytes(); }

    void restore_canaries() {
        device_->fill(at(0), kCanary, kCanaryBytes);
        device_->fill(at(kCanaryBytes + bytes_), kCanary, kCanaryBytes);
    }
    void poison() {
        if (bytes_) device_->fill(get(), kPoison, bytes_);
    }
    void upload(const void* data) {
        if (bytes_) device_->copy_to_device(get(), data, bytes_);
    }
    void download(std::byte* to) const {
        if (bytes_) device_->copy_to_host(to, get(), bytes_);
    }
    // The first byte that differs from those of `want`; nothing when all are the same. Downloads a piece at a time,
    // which stays in the cache until it is compared.
    std::optional<std::size_t> difference(const std::vector<std::byte>& want) const {
        constexpr std::size_t kMostBytes = std::size_t{4} << 20;
        std::vector<std::byte> piece(std::min(bytes_, kMostBytes));
        for (std::size_t first = 0; first < bytes_; first += piece.size()) {
            const std::size_t count = std::min(piece.size(), bytes_ - first);
            device_->copy_to_host(piece.data(), at(kCanaryBytes + first), count);
            if (std::memcmp(piece.data(), &want[first], count) == 0) continue;
            const auto where = std::mismatch(piece.begin(), piece.begin() + std::ptrdiff_t(count), &want[first]);
            return first + std::size_t(where.first - piece.begin());
        }
        return std::nullopt;
    }
    // "" or "4 bytes before the first", "16 bytes behind the last".
    std::string overrun() const {
        std::vector<unsigned char> canary(kCanaryBytes);
        device_->copy_to_host(canary.data(), at(0), kCanaryBytes);
        for (std::size_t i = kCanaryBytes; i-- > 0;)
            if (canary[i] != kCanary) return fmt::format("byte {} before its first", kCanaryBytes - i);
        device_->copy_to_host(canary.data(), at(kCanaryBytes + bytes_), kCanaryBytes);
        for (std::size_t i = 0; i < kCanaryBytes; ++i)
            if (canary[i] != kCanary) return fmt::format("byte {} behind its last", i + 1);
        return "";
    }

  private:
    DevicePointer at(std::size_t offset) const { return static_cast<char*>(buffer_.get()) + offset; }

    Device* device_ = nullptr;
    std::size_t bytes_ = 0;
    DeviceBuffer buffer_;
};

std::string coordinates(std::int64_t index, const std::vector<std::int64_t>& shape) {
    std::vector<std::int64_t> place(shape.size());
    for (std::size_t axis = shape.size(); axis-- > 0;) {
        place[axis] = index % shape[axis];
        index /= shape[axis];
    }
    return fmt::format("[{}]", fmt::join(place, ","));
}

bool all_poison(const HostTensor& tensor, std::int64_t index) {
    std::size_t width = size_of(tensor.dtype);
    for (std::size_t i = 0; i < width; ++i)
        if (tensor.data[std::size_t(index) * width + i] != std::byte{kPoison}) return false;
    return true;
}

bool is_float(DType dtype) {
    return dtype != DType::i32 && dtype != DType::u8;
}

constexpr std::size_t kPiece = 1 << 12;  // elements that a thread takes at a time: their doubles fit the nearest cache

// The expected values of one output, and what its errors are relative to.
struct Expectation {
    HostTensor tensor;  // as it came: doubles are made a piece at a time, where they are compared
    double largest = 0;
    std::int64_t first_nan = -1;

    explicit Expectation(HostTensor t) : tensor(std::move(t)) {
        struct Piece {
            double largest = 0;
            std::int64_t first_nan = -1;
        };
        const auto count = std::size_t(tensor.size());
        std::vector<Piece> pieces((count + kPiece - 1) / kPiece);
        ThreadPool::shared().run_pieces(count, kPiece, [&](std::size_t first, std::size_t end) {
            double values[kPiece];
            tensor.copy_doubles(std::int64_t(first), std::int64_t(end - first), values);
            Piece& piece = pieces[first / kPiece];
            for (std::size_t i = first; i < end; ++i) {
                const double size = std::abs(values[i - first]);
                if (std::isfinite(size)) piece.largest = std::max(piece.largest, size);
                if (std::isnan(size) && piece.first_nan < 0) piece.first_nan = std::int64_t(i);
            }
        });
        for (const Piece& piece : pieces) {
            largest = std::max(largest, piece.largest);
            if (first_nan < 0) first_nan = piece.first_nan;
        }
        if (largest == 0) largest = 1;  // a tensor of zeros: absolute errors
    }
};

// Where one output differs most.
struct Difference {
    double error = 0;  // relative; infinite for a NaN or an infinity
    std::int64_t worst = -1;
    std::int64_t unwritten = -1;  // first element that still holds the poison
};

void compare_piece(const HostTensor& got, const Expectation& want, std::size_t first, std::size_t end,
                   Difference& difference) {
    double values[kPiece], wanted[kPiece];
    got.copy_doubles(std::int64_t(first), std::int64_t(end - first), values);
    want.tensor.copy_doubles(std::int64_t(first), std::int64_t(end - first), wanted);
    const bool floats = is_float(got.dtype);
    double farthest = 0;
    for (std::size_t i = first; i < end; ++i) {
        const double value = values[i - first], expected = wanted[i - first], distance = std::abs(value - expected);
        if (distance <= farthest) continue;  // most elements, and never one with a NaN
        farthest = std::max(farthest, distance);
        double error = distance / want.largest;
        if (std::isnan(error)) error = std::isnan(value) && std::isnan(expected) ? 0 : INFINITY;
        if (value == expected) error = 0;  // equal infinities
        const auto index = std::int64_t(i);
        if (floats && difference.unwritten < 0 && std::isnan(value) && !std::isnan(expected) && all_poison(got, index))
            difference.unwritten = index;
        if (error > difference.error) difference.error = error, difference.worst = index;
    }
}

Difference compare(const HostTensor& got, const Expectation& want) {
    const auto count = std::size_t(want.tensor.size());
    std::vector<Difference> pieces((count + kPiece - 1) / kPiece);
    ThreadPool::shared().run_pieces(count, kPiece, [&](std::size_t first, std::size_t end) {
        compare_piece(got, want, first, end, pieces[first / kPiece]);
    });
    Difference difference;
    for (const Difference& piece : pieces) {
        if (difference.unwritten < 0) difference.unwritten = piece.unwritten;
        if (piece.error > difference.error) difference.error = piece.error, difference.worst = piece.worst;
    }
    return difference;
}

}  // namespace

struct ParityChecker::State {
    Runtime& runtime;
    Device& device;
    const Operation& operation;
    TestCase test_case;
    std::map<std::string, GuardedBuffer> inputs, outputs;
    std::map<std::string, Expectation> expected;
    NamedTensors got;  // of the last run that was downloaded: memory that is there already saves its page faults
    StreamHandle stream = nullptr;
    double reference_ms = 0;
    bool damaged = false;  // inputs or their canaries may not be what they should

    State(Runtime& r, const Operation& o, TestCase t)
        : runtime(r), device(r.device()), operation(o), test_case(std::move(t)) {}
    ~State() {
        if (stream) device.destroy_stream(stream);
    }

    Bindings bindings() const;
    void upload_inputs();
    void poison(GuardedBuffer& workspace);
    void run(Execution& execution);
    void download();
    std::string overrun(const GuardedBuffer& workspace) const;
    std::string changed_input() const;
    std::string changed_output() const;
    void compute_reference();
    CaseOutcome judge() const;
};

Bindings ParityChecker::State::bindings() const {
    Bindings bindings;
    for (const auto& [name, buffer] : inputs) bindings[name] = buffer.get();
    for (const auto& [name, buffer] : outputs) bindings[name] = buffer.get();
    return bindings;
}

void ParityChecker::State::upload_inputs() {
    for (auto& [name, buffer] : inputs) {
        buffer.restore_canaries();
        buffer.upload(test_case.inputs.at(name).data.data());
    }
    damaged = false;
}

void ParityChecker::State::poison(GuardedBuffer& workspace) {
    for (auto& [name, buffer] : outputs) buffer.poison();
    workspace.poison();
}

void ParityChecker::State::run(Execution& execution) {
    execution.execute(stream);
    device.synchronize(stream);
}

void ParityChecker::State::download() {
    for (const TensorSpec& spec : test_case.outputs) {
        HostTensor& tensor = got[spec.name];
        if (tensor.shape.empty()) tensor = HostTensor(spec.dtype, spec.shape);
        outputs.at(spec.name).download(tensor.data.data());
    }
}

std::string ParityChecker::State::overrun(const GuardedBuffer& workspace) const {
    for (const auto* group : {&inputs, &outputs})
        for (const auto& [name, buffer] : *group)
            if (std::string where = buffer.overrun(); !where.empty()) return name + ": wrote " + where;
    std::string where = workspace.overrun();
    return where.empty() ? "" : "workspace: wrote " + where;
}

std::string ParityChecker::State::changed_input() const {
    for (const auto& [name, buffer] : inputs) {
        const HostTensor& tensor = test_case.inputs.at(name);
        if (const auto byte = buffer.difference(tensor.data))
            return name + coordinates(std::int64_t(*byte / size_of(tensor.dtype)), tensor.shape);
    }
    return "";
}

// "" or "out[3] = 1, then 2": the outputs on the device beside those that were downloaded before.
std::string ParityChecker::State::changed_output() const {
    for (const auto& [name, tensor] : got) {
        const auto byte = outputs.at(name).difference(tensor.data);
        if (!byte) continue;
        HostTensor again(tensor.dtype, tensor.shape);
        outputs.at(name).download(again.data.data());
        const auto index = std::int64_t(*byte / size_of(tensor.dtype));
        return fmt::format("{}{} = {}, then {}", name, coordinates(index, tensor.shape), tensor.at(index),
                           again.at(index));
    }
    return "";
}

void ParityChecker::State::compute_reference() {
    Config reference = operation.reference_config(device.info());
    std::unique_ptr<Plan> plan = operation.plan(runtime, test_case.problem, &reference);
    GuardedBuffer workspace(device, plan->workspace_bytes());
    poison(workspace);
    std::unique_ptr<Execution> execution = plan->bind(bindings(), workspace.get());
    auto start = std::chrono::steady_clock::now();
    run(*execution);
    download();
    for (auto& [name, tensor] : got) {
        const Expectation& expectation = expected.emplace(name, Expectation(std::move(tensor))).first->second;
        if (expectation.first_nan >= 0)
            throw DeviceError(fmt::format("the reference of {} gives nan at {}{}", test_case.label, name,
                                          coordinates(expectation.first_nan, expectation.tensor.shape)));
    }
    got.clear();
    reference_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    if (std::string name = changed_input(); !name.empty())
        throw DeviceError(fmt::format("the reference of {} changed its input {}", test_case.label, name));
}

CaseOutcome ParityChecker::State::judge() const {
    CaseOutcome outcome;
    outcome.passed = true;
    for (const TensorSpec& spec : test_case.outputs) {
        const HostTensor& tensor = got.at(spec.name);
        const Expectation& want = expected.at(spec.name);
        Difference difference = compare(tensor, want);
        outcome.outputs.push_back({spec.name, difference.error, test_case.tolerance});
        if (!outcome.passed || difference.error <= test_case.tolerance) continue;
        bool unwritten = difference.unwritten >= 0;
        std::int64_t index = unwritten ? difference.unwritten : difference.worst;
        outcome.passed = false;
        outcome.reason = unwritten ? "unwritten" : "mismatch";
        outcome.detail = fmt::format("{}: {}{} = {}, want {:.6g} (relative error {:.3g}, tolerance {:.3g})",
                                     test_case.label, spec.name, coordinates(index, spec.shape), tensor.at(index),
                                     want.tensor.at(index), difference.error, test_case.tolerance);
    }
    return outcome;
}

ParityChecker::ParityChecker(Runtime& runtime, const Operation& operation, TestCase test_case)
    : state_(std::make_unique<State>(runtime, operation, std::move(test_case))) {
    State& s = *state_;
    s.device.make_current();
    s.stream = s.device.create_stream();
    produce_inputs(runtime, operation, s.test_case);
    for (const auto& [name, tensor] : s.test_case.inputs)
        s.inputs.emplace(name, GuardedBuffer(s.device, tensor.data.size()));
    for (const TensorSpec& spec : s.test_case.outputs) {
        std::int64_t elements = 1;
        for (std::int64_t extent : spec.shape) elements *= extent;
        s.outputs.emplace(spec.name, GuardedBuffer(s.device, std::size_t(elements) * size_of(spec.dtype)));
        if (s.test_case.expected.empty()) continue;
        auto found = s.test_case.expected.find(spec.name);
        if (found == s.test_case.expected.end() || found->second.size() != elements)
            throw InvalidArgument("expected", fmt::format("{}: {} is missing or not of shape {}", s.test_case.label,
                                                          spec.name, shape_to_string(spec.shape)));
        s.expected.emplace(spec.name, Expectation(found->second));
    }
    s.upload_inputs();
    if (s.test_case.expected.empty()) s.compute_reference();
}

ParityChecker::~ParityChecker() = default;

const TestCase& ParityChecker::test_case() const {
    return state_->test_case;
}

double ParityChecker::reference_ms() const {
    return state_->reference_ms;
}

std::int64_t ParityChecker::device_bytes() const {
    std::size_t bytes = 0;
    for (const auto* group : {&state_->inputs, &state_->outputs})
        for (const auto& [name, buffer] : *group) bytes += buffer.device_bytes();
    return std::int64_t(bytes);
}

CaseOutcome ParityChecker::check(const Config& config) {
    State& s = *state_;
    s.device.make_current();
    std::unique_ptr<Plan> plan = s.operation.plan(s.runtime, s.test_case.problem, &config);
    GuardedBuffer workspace(s.device, plan->workspace_bytes());
    std::unique_ptr<Execution> execution = plan->bind(s.bindings(), workspace.get());
    if (s.damaged) s.upload_inputs();
    for (auto& [name, buffer] : s.outputs) buffer.restore_canaries();
    s.poison(workspace);
    s.damaged = true;  // until shown otherwise: a run may throw

    s.run(*execution);
    s.download();
    CaseOutcome outcome = s.judge();
    auto fail = [&](const char* reason, const std::string& detail) {
        outcome.passed = false;
        outcome.reason = reason;
        outcome.detail = s.test_case.label + ": " + detail;
    };

    s.poison(workspace);
    s.run(*execution);
    // What damages memory is named before what merely computes wrongly: the second may follow from the first.
    if (std::string where = s.overrun(workspace); !where.empty()) {
        fail("overrun", where);
        return outcome;
    }
    if (std::string name = s.changed_input(); !name.empty()) {
        fail("input_changed", name + " is not what it was before the run");
        return outcome;
    }
    s.damaged = false;
    if (!outcome.passed) return outcome;
    if (std::string what = s.changed_output(); !what.empty()) fail("not_repeatable", what);
    return outcome;
}

CaseOutcome check_case(Runtime& runtime, const Operation& operation, const TestCase& test_case, const Config& config) {
    return ParityChecker(runtime, operation, test_case).check(config);
}

}  // namespace turbotune
