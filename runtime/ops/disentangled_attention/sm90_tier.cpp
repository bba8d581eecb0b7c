// Hopper (compute capability 9.0): kernel_templates/disentangled_attention/forward_sm90.cu, after expand_positions.cu
// when there are position terms; the backward pass in sm90_backward.cpp.
#include <fmt/format.h>

#include <algorithm>

#include "schedule.h"
#include "sm90_backward.h"
#include "tensor_maps.h"
#include "turbotune/base/error.h"

namespace turbotune::disentangled_attention {

namespace {

constexpr const char* kSm90 = "sm90";

const std::vector<ScheduleAxis> kAxes = {
    {"warpgroups", {1, 2}},          // consumers of 64 query rows each, beside one producer
    {"block_n", {64, 128}},          // keys of a tile
    {"stages", {2, 3, 4}},           // depth of the K and V rings
    {"spare_chunks", {0, 1, 2, 3}},  // distance chunks ahead of the tile at work
    {"contiguous", {0, 1}},          // a block of the grid takes neighbouring items, else every n-th
    {"resident", {0, 1}},            // sequences of one tile: distance chunks stay while the head stays
    {"prefetch", {0, 1}},            // the next item's rows into L2
};

struct Sm90Config {
    int warpgroups, block_n, stages, spare_chunks, contiguous, resident, prefetch;

    bool operator==(const Sm90Config&) const = default;
    int rows() const { return 64 * warpgroups; }
    int threads() const { return 128 * warpgroups + 128; }
};

// Best first for long sequences, as measured on an H200 at head_dim 64.
const std::vector<Sm90Config> kNarrow = {
    {2, 128, 2, 0, 0, 0, 0}, {2, 128, 2, 0, 0, 0, 1}, {2, 128, 2, 0, 1, 0, 0}, {2, 64, 2, 3, 0, 0, 0},
    {2, 64, 3, 1, 0, 0, 0},  {1, 128, 2, 1, 0, 0, 0}, {1, 64, 2, 0, 0, 0, 0},
};
// Without position terms there is room for a deeper ring.
constexpr Sm90Config kPlain = {2, 128, 4, 0, 0, 0, 0};
const std::vector<Sm90Config> kShort = {
    // sequences of one tile
    {2, 128, 2, 0, 1, 1, 0},
    {2, 64, 2, 0, 1, 1, 0},
    {1, 64, 2, 0, 1, 1, 0},
};
// Small blocks, two of which share a multiprocessor.
constexpr Sm90Config kSmall = {1, 64, 2, 0, 0, 0, 0};
const std::vector<Sm90Config> kWide = {
    // head_dim 128: what fits depends on the position terms
    {2, 128, 2, 0, 0, 0, 0}, {2, 64, 2, 0, 0, 0, 0}, {2, 64, 2, 1, 0, 0, 0}, {1, 64, 2, 0, 0, 0, 0},
    {1, 64, 2, 0, 1, 0, 0},  {1, 64, 2, 0, 0, 0, 1}, {1, 64, 2, 1, 0, 0, 0},
};

Sm90Config from_fields(const Config& config) {
    auto integer = [&](const char* name) { return static_cast<int>(config.integer(name)); };
    return {integer("warpgroups"), integer("block_n"),  integer("stages"),  integer("spare_chunks"),
            integer("contiguous"), integer("resident"), integer("prefetch")};
}

Config to_fields(const Sm90Config& c) {
    return make_config(kSm90, kAxes,
                       {c.warpgroups, c.block_n, c.stages, c.spare_chunks, c.contiguous, c.resident, c.prefetch});
}

// The template's own layout (sm90_layout.cuh), name by name; bytes. `ones`: inference in bf16.
std::int64_t shared_bytes(const Sm90Config& c, std::int64_t head_dim, PositionTerms terms, bool mask, bool dropout,
                          bool ones) {
    const bool has_bias = terms.count() > 0;
    const std::int64_t units = c.block_n / 64, ring = c.warpgroups + units + c.spare_chunks;
    const std::int64_t row = 2 * head_dim, chunk = 64 * row * terms.count(), spill = 32;
    const bool shared_t = terms.p2c && c.warpgroups == 2 && units == 2;
    const std::int64_t c_pitch = 2 * (c.block_n + 24), t_pitch = 2 * ((shared_t ? c.rows() : 64) + 24), gap = 16;
    const std::int64_t warp = 16 * (terms.c2p ? std::max(c_pitch, row + 16) : row + 16) + gap;
    const std::int64_t t_groups = terms.p2c ? 4 * units * (shared_t ? 1 : c.warpgroups) : 0;
    const std::int64_t scratch = spill + 4 * c.warpgroups * warp;
    const std::int64_t t = terms.p2c ? spill + t_groups * (16 * t_pitch + gap) : 0;
    const std::int64_t ends = has_bias ? 4 * row : 0, masks = mask ? 16 * c.stages + 16 + 2 * 32 : 0;
    const std::int64_t column = ones && head_dim < 128 ? 32 * head_dim : 0;
    const std::int64_t dropped = dropout ? c.stages * units * 4 * 2 * c.rows() : 0;
    const std::int64_t barriers = 8 * (4 * c.stages + (has_bias ? ring : 0) + 3 + (terms.p2c ? 2 * c.warpgroups : 0) +
                                       (mask ? 4 : 0) + (dropout ? 2 * c.stages : 0));
    return 2 * c.stages * c.block_n * row + ring * chunk + c.rows() * row + column + scratch + t + ends + masks +
           dropped + barriers;
}

// For every type of the workload: the most of them.
std::int64_t shared_bytes(const Sm90Config& c, const Workload& workload) {
    return shared_bytes(c, workload.fields.integer("head_dim"), position_terms(workload),
                        workload.fields.text("layout") == "padded_masked", has_dropout(workload),
                        workload.fields.text("pass") == "inference");
}

// Whether two blocks of one consumer share a multiprocessor: its registers, 216 for a consumer's thread, and its shared
// memory, 228 KiB with 1 KiB for each block (CUDA C++ Programming Guide, "Compute Capability 9.0").
bool is_paired(const Sm90Config& c, std::int64_t head_dim, std::int64_t shared) {
    return c.warpgroups == 1 && c.block_n == 64 && head_dim < 128 && 2 * (shared + 1024) <= 228 * 1024;
}

bool fits_one_tile(const Sm90Config& c, std::int64_t length) {
    return length <= c.rows() && length <= c.block_n;
}

// Resident chunks where they may be: for sequences of one tile, when there are chunks at all. They come after the best
// of the others, which measured faster on an H200.
std::vector<Sm90Config> configs_of(const Workload& workload) {
    const std::int64_t head_dim = workload.fields.integer("head_dim"), length = workload.fields.integer("length");
    const PositionTerms terms = position_terms(workload);
    std::vector<Sm90Config> configs;
    if (length <= 64 && head_dim < 128) configs.push_back(kSmall);
    if (terms.count() == 0 && head_dim < 128) configs.push_back(kPlain);
    for (const Sm90Config& c : head_dim < 128 ? kNarrow : kWide)
        if ((terms.count() > 0 || c.spare_chunks == 0) && !(c == kSmall && length <= 64)) configs.push_back(c);
    if (terms.count() > 0 && head_dim < 128) {
        auto at = configs.begin() + 1;
        for (const Sm90Config& c : kShort)
            if (fits_one_tile(c, length)) at = configs.insert(at, c) + 1;
    }
    return configs;
}

// The axes leave combinations that the template refuses; a profile may name only those that were candidates.
void check_listed(const Workload& workload, const Config& config) {
    check_config(kSm90, kAxes, config);
    for (const Sm90Config& c : configs_of(workload))
        if (to_fields(c) == config) return;
    throw InvalidArgument(
        "config", fmt::format("{} is not a config of the sm90 tier for {}", config.to_string(), workload.to_string()));
}

// Chunks of 64 distances that the expanded tables of one head hold: first_chunk .. last_chunk of sm90_layout.cuh.
std::int64_t chunks_of(const Problem& problem) {
    const int band = make_slot_table(problem.position_buckets, problem.max_relative_positions).band;
    return (band + 63) / 64 + (band + 126) / 64 + 1;
}

// Whether all distances of some tile lie beyond the band, which is then far (key_tiles of sequence.cuh).
bool has_far_tiles(const Problem& problem, const Sm90Config& c) {
    if (!problem.c2p && !problem.p2c) return true;
    const int band = make_slot_table(problem.position_buckets, problem.max_relative_positions).band;
    const int last = std::max(0, problem.length - 1);
    const int high = last / c.rows() * c.rows() - (c.block_n - 1), low = last / c.block_n * c.block_n - (c.rows() - 1);
    return std::max(high, low) >= band;
}

KernelSpec kernel_spec(const Problem& problem, const Sm90Config& c, const DeviceInfo& device) {
    KernelSpec spec;
    spec.parameters = problem_parameters(problem);
    spec.parameters.set("warpgroups", c.warpgroups);
    spec.parameters.set("block_n", c.block_n);
    spec.parameters.set("stages", c.stages);
    spec.parameters.set("spare_chunks", c.spare_chunks);
    spec.parameters.set("contiguous", FieldValue(c.contiguous != 0));
    spec.parameters.set("resident", FieldValue(c.resident != 0));
    spec.parameters.set("prefetch", FieldValue(c.prefetch != 0));
    spec.parameters.set("aligned", FieldValue(has_aligned_rows(problem)));
    spec.parameters.set("boxes", FieldValue(has_tensor_maps(problem)));
    spec.parameters.set("paired", FieldValue(false));
    spec.parameters.set("far", FieldValue(has_far_tiles(problem, c)));
    spec.target = device.target();
    return spec;
}

// The tables in the order of distances. The layout depends on few parameters: one kernel serves every config.
KernelLaunch expansion(const Problem& problem, const DeviceInfo& device) {
    KernelLaunch launch;
    launch.spec = kernel_spec(problem, {1, 64, 2, 0, 0, 0, 0}, device);
    for (const char* name : {"mask", "packed", "lse", "dropout", "boxes"})
        launch.spec.parameters.set(name, FieldValue(false));
    launch.spec.parameters.set("far", FieldValue(true));
    launch.spec.template_path = "disentangled_attention/expand_positions.cu";
    launch.spec.kernel_name = "disentangled_attention_expand_positions";
    launch.shape.grid[0] = static_cast<unsigned>(problem.heads * chunks_of(problem));
    launch.shape.block[0] = 256;
    return launch;
}

class Sm90Tier : public Tier {
  public:
    const char* name() const override { return kSm90; }

    std::string refuse(const Workload& workload) const override {
        const std::string why = refuse_unserved(kSm90, workload, {.dropout = true, .backward = true});
        if (!why.empty()) return why;
        const std::string& precision = workload.fields.text("precision");
        return precision == "half" ? "" : fmt::format("precision {} is not available on the sm90 tier", precision);
    }

    std::vector<Config> candidates(const Workload& workload, const DeviceInfo& device) const override {
        if (is_backward(workload)) return sm90_backward_candidates(workload);
        std::vector<Config> fields;
        for (const Sm90Config& c : configs_of(workload)) {
            if (shared_bytes(c, workload) <= device.device_class.shared_per_block) fields.push_back(to_fields(c));
        }
        return fields;
    }

    Resources resources(const Workload& workload, const Config& config) const override {
        if (is_backward(workload)) return sm90_backward_resources(workload, config);
        check_listed(workload, config);
        const Sm90Config c = from_fields(config);
        Resources resources;
        resources.threads = c.threads();
        resources.shared_bytes = shared_bytes(c, workload);
        resources.registers = registers_per_thread(
            c.threads(), is_paired(c, workload.fields.integer("head_dim"), resources.shared_bytes) ? 2 : 1);
        return resources;
    }

    std::vector<KernelLaunch> launches(const Problem& problem, const Config& config,
                                       const DeviceInfo& device) const override {
        if (problem.pass == Pass::backward) return sm90_backward_launches(problem, config, device);
        check_listed(workload_of_terms(problem), config);
        const Sm90Config c = from_fields(config);
        const std::int64_t shared =
            shared_bytes(c, problem.head_dim, {problem.c2p, problem.p2c}, problem.mask, problem.dropout > 0,
                         problem.pass == Pass::inference && problem.dtype == DType::bf16);
        const bool paired = is_paired(c, problem.head_dim, shared);
        std::vector<KernelLaunch> launches;
        if (problem.c2p || problem.p2c) launches.push_back(expansion(problem, device));
        KernelLaunch launch;
        launch.spec = kernel_spec(problem, c, device);
        launch.spec.parameters.set("shared_bytes", FieldValue(shared));  // checked against the template's own layout
        launch.spec.parameters.set("paired", FieldValue(paired));
        launch.spec.template_path = "disentangled_attention/forward_sm90.cu";
        launch.spec.kernel_name = "disentangled_attention_forward_sm90";
        launch.shape.grid[0] = std::min(blocks_of(problem, c.rows()),
                                        (paired ? 2u : 1u) * static_cast<unsigned>(device.device_class.sm_count));
        launch.shape.block[0] = static_cast<unsigned>(c.threads());
        launch.shape.shared_bytes = static_cast<unsigned>(shared);
        launch.shape.programmatic_launch = !launches.empty();
        launch.tensor_maps = has_tensor_maps(problem);
        launches.push_back(launch);
        return launches;
    }

    // Small blocks where half or more of the last block of 128 rows would be empty: times that of 128 rows at 129 .83,
    // 192 .83, 257 .95, 320 .94 (H200, 2026-12-01; bf16, batch 32, 12 heads of 64). Sequences of packed batches have
    // lengths of their own.
    Config fitted(const Problem& problem, const Config& config) const override {
        if (problem.pass == Pass::backward || problem.layout == Layout::packed || problem.head_dim == 128)
            return config;
        const int blocks = (problem.length + 63) / 64;
        const bool tail = (blocks == 3 || blocks == 5) && (problem.c2p || problem.p2c);
        return tail && from_fields(config).rows() == 128 ? to_fields(kSmall) : config;
    }

    // The expanded tables.
    std::size_t workspace_bytes(const Problem& problem, const Config& config) const override {
        if (problem.pass == Pass::backward) return sm90_backward_workspace_bytes(problem, config);
        const int terms = int{problem.c2p} + int{problem.p2c};
        if (terms == 0) return 0;
        return static_cast<std::size_t>(problem.heads) * static_cast<std::size_t>(chunks_of(problem)) * 64 *
               static_cast<std::size_t>(problem.head_dim) * 2 * static_cast<std::size_t>(terms);
    }

    void fill(const Problem& problem, const Config& config, BackwardParams& params) const override {
        if (problem.pass == Pass::backward) sm90_backward_fill(problem, config, params);
    }

  private:
    // As far as configs depend on it; the length is the problem's own.
    static Workload workload_of_terms(const Problem& problem) {
        Workload workload{"disentangled_attention", {}};
        workload.fields.set("head_dim", problem.head_dim);
        workload.fields.set("length", problem.length);
        const char* relative = problem.c2p ? (problem.p2c ? "c2p_p2c" : "c2p") : (problem.p2c ? "p2c" : "none");
        workload.fields.set("relative", relative);
        return workload;
    }
};

}  // namespace

const Tier& sm90_tier() {
    static const Sm90Tier tier;
    return tier;
}

}  // namespace turbotune::disentangled_attention
