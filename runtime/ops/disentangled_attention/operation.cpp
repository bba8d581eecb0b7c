#include <fmt/format.h>

#include <algorithm>

#include "cases.h"
#include "fitting.h"
#include "tier.h"
#include "turbotune/base/error.h"
#include "turbotune/ops/disentangled_attention/attention.h"
#include "workload.h"

namespace turbotune::disentangled_attention {

namespace {

class BoundAttention : public Execution {
  public:
    BoundAttention(const AttentionPlan& plan, const Buffers& buffers) : plan_(plan), buffers_(buffers) {}
    void execute(StreamHandle stream) override { plan_.execute(buffers_, stream); }

  private:
    const AttentionPlan& plan_;
    Buffers buffers_;
};

class GenericPlan : public Plan {
  public:
    explicit GenericPlan(AttentionPlan plan) : plan_(std::move(plan)), workload_(workload_of(plan_.problem())) {}
    const Workload& workload() const override { return workload_; }
    const Config& config() const override { return plan_.selection().config; }
    const Selection& selection() const override { return plan_.selection(); }
    std::vector<KernelMetadata> kernels() const override { return plan_.kernels(); }
    std::size_t workspace_bytes() const override { return plan_.workspace_bytes(); }

    std::unique_ptr<Execution> bind(const Bindings& tensors, DevicePointer workspace) const override {
        const Problem& problem = plan_.problem();
        auto need = [&](const char* name) {
            const auto found = tensors.find(name);
            if (found == tensors.end() || !found->second) throw InvalidArgument(name, "missing or null tensor");
            return found->second;
        };
        Buffers buffers;
        buffers.q = need("q");
        buffers.k = need("k");
        buffers.v = need("v");
        if (problem.c2p) buffers.position_key = need("position_key");
        if (problem.p2c) buffers.position_query = need("position_query");
        if (problem.mask) buffers.mask = static_cast<const std::uint8_t*>(need("mask"));
        if (problem.layout == Layout::packed) buffers.cu_seqlens = static_cast<const std::int32_t*>(need("cu_seqlens"));
        buffers.out = need("out");
        if (problem.pass != Pass::inference) buffers.lse = static_cast<float*>(need("lse"));
        if (problem.pass == Pass::backward) {
            buffers.dout = need("dout");
            buffers.dq = need("dq");
            buffers.dk = need("dk");
            buffers.dv = need("dv");
            if (problem.c2p) buffers.d_position_key = need("d_position_key");
            if (problem.p2c) buffers.d_position_query = need("d_position_query");
        }
        buffers.dropout_seed = kCaseDropoutSeed;
        buffers.dropout_offset = kCaseDropoutOffset;
        buffers.workspace = workspace;
        return std::make_unique<BoundAttention>(plan_, buffers);
    }

  private:
    AttentionPlan plan_;
    Workload workload_;
};

// Tiers of the device that have kernels of this operation, best first.
std::vector<const Tier*> tiers_of(const DeviceInfo& device) {
    std::vector<const Tier*> tiers;
    for (const std::string& name : device.tiers())
        for (const Tier* tier : {&sm90_tier(), &mma_tier(), &simt_tier(), &host_tier()})
            if (name == tier->name()) tiers.push_back(tier);
    return tiers;
}

double rows_of(const Problem& problem) {
    return problem.layout == Layout::packed ? double(problem.tokens) : double(problem.batch) * problem.length;
}

class DisentangledAttention : public Operation {
  public:
    const std::string& name() const override {
        static const std::string text = kName;
        return text;
    }

    std::vector<Workload> workloads(const WorkloadQuery& query) const override { return enumerate_workloads(query); }
    std::vector<std::pair<std::string, std::string>> axes() const override { return workload_axes(); }

    std::string unavailable(const Workload& workload, const DeviceInfo& device) const override {
        std::string why;
        for (const Tier* tier : tiers_of(device)) {
            const std::string refusal = tier->refuse(workload);
            if (refusal.empty()) return "";
            why = refusal;
        }
        return why.empty() ? fmt::format("no tier of this operation runs on {}", device.device_class.arch) : why;
    }

    // Every config of the best tier that serves the workload, and the first one of each other tier.
    std::vector<Config> candidates(const Workload& workload, const DeviceInfo& device) const override {
        std::vector<Config> all;
        for (const Tier* tier : tiers_of(device)) {
            if (!tier->refuse(workload).empty()) continue;
            const std::vector<Config> configs = tier->candidates(workload, device);
            if (all.empty()) {
                all = configs;
                continue;
            }
            const auto fitting = std::find_if(configs.begin(), configs.end(), [&](const Config& config) {
                return filter(workload, config, device).fits;
            });
            if (fitting != configs.end()) all.push_back(*fitting);
        }
        return all;
    }

    Verdict filter(const Workload& workload, const Config& config, const DeviceInfo& device) const override {
        Verdict verdict;
        const Tier& tier = find_tier(config.text("tier"));
        const std::vector<std::string> names = device.tiers();
        if (&tier != &reference_tier() && std::find(names.begin(), names.end(), tier.name()) == names.end()) {
            verdict.reason = fmt::format("tier {} does not run on {}", tier.name(), device.device_class.arch);
            return verdict;
        }
        verdict.reason = tier.refuse(workload);
        if (!verdict.reason.empty()) return verdict;
        verdict.resources = tier.resources(workload, config);
        if (device.kind == DeviceKind::cuda) {
            const Resources& need = verdict.resources;
            if (need.shared_bytes > device.device_class.shared_per_block)
                verdict.reason = fmt::format("needs {} bytes of shared memory per block, the device has {}",
                                             need.shared_bytes, device.device_class.shared_per_block);
            else if (std::int64_t{need.registers} * need.threads > device.registers_per_sm)
                verdict.reason = fmt::format("needs {} registers per block, the device has {}",
                                             std::int64_t{need.registers} * need.threads, device.registers_per_sm);
        }
        verdict.fits = verdict.reason.empty();
        return verdict;
    }

    Config heuristic(const Workload& workload, const DeviceInfo& device) const override {
        const std::string why = unavailable(workload, device);
        if (!why.empty()) throw Unsupported(why);
        std::string last;
        for (const Config& config : candidates(workload, device)) {
            const Verdict verdict = filter(workload, config, device);
            if (verdict.fits) return config;
            last = verdict.reason;
        }
        throw Unsupported(fmt::format("no config of {} fits this device: {}", workload.to_string(), last));
    }

    std::vector<Workload> neighbours(const Workload& workload) const override { return workload_neighbours(workload); }

    std::optional<Workload> shared_winner(const Workload& workload) const override {
        return disentangled_attention::shared_winner(workload);
    }

    Workload workload_of(const Fields& problem) const override {
        return disentangled_attention::workload_of(Problem::from_fields(problem));
    }

    std::vector<KernelSpec> kernels(const Fields& problem, const Config& config,
                                    const DeviceInfo& device) const override {
        std::vector<KernelSpec> specs;
        for (const KernelLaunch& launch :
             find_tier(config.text("tier")).launches(Problem::from_fields(problem), config, device))
            specs.push_back(launch.spec);
        return specs;
    }

    std::vector<Fields> problems(const Workload& workload, const DeviceInfo&) const override {
        std::vector<Fields> problems;
        for (DType dtype : dtypes_of(workload)) {
            const Problem own = problem_of(workload, dtype);
            problems.push_back(own.to_fields());
            // Parity cases are short, or have narrow bands: without far tiles, or with them.
            Problem brief = own, narrow = own;
            brief.length = std::min(33, own.length);
            narrow.position_buckets = 16, narrow.max_relative_positions = 32;
            problems.push_back(brief.to_fields());
            problems.push_back(narrow.to_fields());
        }
        return problems;
    }

    std::vector<Fields> producers(const Workload& workload, const DeviceInfo& device) const override {
        return producers_of(workload, device);
    }

    std::vector<std::pair<Fields, Config>> exceptions(const Workload& workload, const Config& config,
                                                      const DeviceInfo& device) const override {
        const auto family = static_cast<int>(workload.fields.integer("length"));
        // One length of each row block of 64 tells all: tiers tile by no less.
        std::vector<int> lengths = {family};
        for (int length = 33; length <= std::min(family, 512); length += 64)
            if (length_family(length) == family) lengths.push_back(length);
        std::vector<std::pair<Fields, Config>> exceptions;
        for (DType dtype : dtypes_of(workload))
            for (int length : lengths) {
                Problem problem = problem_of(workload, dtype);
                problem.length = length;
                problem.batch = 1;
                if (problem.layout == Layout::packed) problem.tokens = length;
                const Fitted fitted = fit(problem, workload, config, device);
                if (!fitted.why.empty()) exceptions.push_back({problem.to_fields(), fitted.config});
            }
        return exceptions;
    }

    std::vector<TestCase> parity_cases(const Workload& workload, const DeviceInfo& device,
                                       std::uint64_t seed) const override {
        return make_parity_cases(workload, device, seed);
    }
    TestCase timing_case(const Workload& workload, const DeviceInfo& device, std::uint64_t seed) const override {
        return make_timing_case(workload, device, seed);
    }
    Fields example_problem() const override {  // DeBERTa-v3-base
        Problem problem;
        problem.batch = 8;
        problem.heads = 12;
        problem.length = 512;
        return problem.to_fields();
    }
    TestCase problem_case(const Fields& problem, std::uint64_t seed) const override {
        return make_problem_case(Problem::from_fields(problem), seed);
    }
    Config reference_config(const DeviceInfo&) const override {
        return Config{{"tier", FieldValue(std::string("reference"))}};
    }

    // Forward: two products of L^2 D, and one of L (2 span) D for each position table (at most 2L - 1 distances are
    // there). Backward: five and, for each table, three.
    double flops(const Fields& fields) const override {
        const Problem problem = Problem::from_fields(fields);
        // Of packed sequences only the number of rows is known: the least work is that of equal lengths.
        const double length = problem.layout == Layout::packed ? rows_of(problem) / problem.batch : problem.length;
        const double slots = std::min(2.0 * problem.span(), std::max(0.0, 2.0 * length - 1));
        const double tables = int(problem.c2p) + int(problem.p2c);
        const bool backward = problem.pass == Pass::backward;
        return rows_of(problem) * problem.heads * problem.head_dim *
               ((backward ? 10.0 : 4.0) * length + (backward ? 6.0 : 2.0) * slots * tables);
    }

    // Forward: q, k, v, out, the tables, the mask, lse. Backward: also dout and the gradients.
    double bytes(const Fields& fields) const override {
        const Problem problem = Problem::from_fields(fields);
        const double rows = rows_of(problem);
        const double width = double(problem.heads) * problem.head_dim * double(size_of(problem.dtype));
        const double tables = int(problem.c2p) + int(problem.p2c);
        const bool backward = problem.pass == Pass::backward;
        return (backward ? 8 : 4) * rows * width + (backward ? 2 : 1) * 2.0 * problem.span() * width * tables +
               (problem.mask ? rows : 0) + (problem.pass == Pass::inference ? 0 : 4 * rows * problem.heads);
    }

    std::vector<TestCase> golden_cases(const SafetensorsFile& file,
                                       std::vector<std::pair<std::string, std::string>>* skipped) const override {
        return make_golden_cases(file, skipped);
    }

    std::unique_ptr<Plan> plan(Runtime& runtime, const Fields& problem, const Config* config,
                               StreamHandle stream) const override {
        return std::make_unique<GenericPlan>(
            AttentionPlan::create(runtime, Problem::from_fields(problem), config, stream));
    }
};

}  // namespace

const Operation& operation() {
    static const DisentangledAttention instance;
    return instance;
}

}  // namespace turbotune::disentangled_attention
