#include "turbotune/tuner/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "turbotune/base/error.h"
#include "turbotune/base/json.h"
#include "turbotune/tuner/parity.h"

namespace turbotune {
namespace {

std::vector<std::filesystem::path> case_files(const std::string& directory) {
    std::error_code error;
    std::vector<std::filesystem::path> files;
    for (std::filesystem::directory_iterator each(directory, error), end; !error && each != end; each.increment(error))
        if (each->path().extension() == ".safetensors") files.push_back(each->path());
    if (error) throw InvalidArgument(directory, error.message());
    if (files.empty()) throw InvalidArgument(directory, "holds no case (*.safetensors)");
    std::sort(files.begin(), files.end());
    return files;
}

// The operation's name, from the metadata. Throws InvalidArgument for a file that does not say.
std::string operation_name(const SafetensorsFile& file, const std::string& path) {
    const auto entry = file.metadata.find("case");
    if (entry == file.metadata.end()) throw InvalidArgument(path, "no metadata entry `case`");
    const Json description = parse_json(entry->second, path + ": case");
    if (!description.is_object() || !description.contains("op") || !description["op"].is_string())
        throw InvalidArgument(path, "metadata entry `case` names no operation in `op`");
    return description["op"].get<std::string>();
}

const Operation* find_or_null(const std::string& name) {
    for (const Operation* operation : operations())
        if (operation->name() == name) return operation;
    return nullptr;
}

std::string field_text(const Fields& fields, const char* name) {
    const FieldValue* value = fields.find(name);
    return value == nullptr ? "" : to_string(*value);
}

// What the tier would run first: its best guess that fits the device.
std::optional<Config> first_config(const Operation& operation, const Workload& workload, const DeviceInfo& device,
                                   const std::string& tier) {
    for (const Config& config : operation.candidates(workload, device))
        if (field_text(config, "tier") == tier && operation.filter(workload, config, device).fits) return config;
    return std::nullopt;
}

RuntimeOptions runtime_options(const ValidateOptions& options) {
    RuntimeOptions out;
    out.device = options.device;
    out.policy = Policy::heuristic;
    out.discover_profiles = false;
    out.store = options.store;
    return out;
}

class Validation {
  public:
    Validation(const ValidateOptions& options, const std::function<void(const ValidatedCase&)>& finished,
               const std::atomic<int>* interrupts)
        : runtime_(runtime_options(options)), finished_(finished), interrupts_(interrupts) {
        report_.device = runtime_.device().info();
        tiers_ = report_.device.tiers();
        if (options.tier.empty()) return;
        if (std::find(tiers_.begin(), tiers_.end(), options.tier) == tiers_.end())
            throw InvalidArgument(
                "--tier", fmt::format("the device has no tier {}; it has {}", options.tier, fmt::join(tiers_, ", ")));
        tiers_ = {options.tier};
    }

    // Also asked after a failure, which the interrupt may have caused: it reaches the compiler, too.
    bool interrupted() {
        if (interrupts_ && interrupts_->load() > 0) report_.interrupted = true;
        return report_.interrupted;
    }

    void run_file(const std::filesystem::path& path) {
        ValidatedCase row;
        row.name = path.stem().string();
        try {
            const SafetensorsFile file = read_safetensors(path.string());
            row.operation = operation_name(file, path.string());
            const Operation* operation = find_or_null(row.operation);
            if (operation == nullptr) return skip(row, "no operation of this name in this build");
            std::vector<std::pair<std::string, std::string>> absent;
            const std::vector<TestCase> cases = operation->golden_cases(file, &absent);
            for (const TestCase& each : cases)
                for (const std::string& tier : tiers_) run_case(row, *operation, each, tier);
            for (const auto& [pass, reason] : absent) {
                row.pass = pass;
                skip(row, reason);
            }
        } catch (const Unsupported& error) {
            skip(row, error.what());
        } catch (const Error& error) {
            fail(row, error.what());
        }
    }

    ValidateReport take() { return std::move(report_); }

  private:
    void run_case(ValidatedCase row, const Operation& operation, const TestCase& test_case, const std::string& tier) {
        if (interrupted()) return;
        row.pass = field_text(test_case.problem, "pass");
        row.dtype = field_text(test_case.problem, "dtype");
        row.tier = tier;
        try {
            const Workload workload = operation.workload_of(test_case.problem);
            const std::string unavailable = operation.unavailable(workload, report_.device);
            if (!unavailable.empty()) return skip(row, unavailable);
            const std::optional<Config> config = first_config(operation, workload, report_.device, tier);
            if (!config) return skip(row, "this tier has no kernel for it");
            row.config = *config;
            for (const auto& [name, tensor] : test_case.expected)
                for (std::int64_t i = 0; i < tensor.size(); ++i)
                    if (std::isnan(tensor.at(i)))
                        return fail(row, fmt::format("malformed: the expected {} is no number at [{}]", name, i));
            const CaseOutcome outcome = check_case(runtime_, operation, test_case, *config);
            row.outputs = outcome.outputs;
            if (!outcome.passed) return fail(row, fmt::format("{}: {}", outcome.reason, outcome.detail));
            row.passed = true;
            ++report_.passed;
            add(std::move(row));
        } catch (const Unsupported& error) {
            skip(row, error.what());
        } catch (const Error& error) {
            fail(row, error.what());
        }
    }

    void fail(ValidatedCase row, const std::string& reason) {
        if (interrupted()) return;
        row.reason = reason;
        ++report_.failed;
        add(std::move(row));
    }

    void skip(ValidatedCase row, const std::string& reason) {
        row.skipped = true;
        row.reason = reason;
        ++report_.skipped;
        add(std::move(row));
    }

    void add(ValidatedCase row) {
        report_.cases.push_back(std::move(row));
        if (finished_) finished_(report_.cases.back());
    }

    Runtime runtime_;
    const std::function<void(const ValidatedCase&)>& finished_;
    const std::atomic<int>* interrupts_;
    ValidateReport report_;
    std::vector<std::string> tiers_;
};

}  // namespace

ValidateReport validate(const ValidateOptions& options, const std::function<void(const ValidatedCase&)>& finished,
                        const std::atomic<int>* interrupts) {
    const std::vector<std::filesystem::path> files = case_files(options.directory);
    Validation validation(options, finished, interrupts);
    for (const std::filesystem::path& file : files) {
        if (validation.interrupted()) break;
        validation.run_file(file);
    }
    return validation.take();
}

}  // namespace turbotune
