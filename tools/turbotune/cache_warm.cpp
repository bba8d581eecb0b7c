#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "commands.h"
#include "exit_code.h"
#include "interrupts.h"
#include "output.h"
#include "progress.h"
#include "table.h"
#include "turbotune/base/error.h"
#include "turbotune/base/files.h"
#include "turbotune/tuner/model_device.h"
#include "turbotune/tuner/warm.h"
#include "workload_options.h"

namespace turbotune::cli {
namespace {

constexpr std::size_t kFailuresShown = 20;
const char* const kCpu = "cpu";

struct Options {
    WorkloadOptions workloads;
    WarmOptions warm;
    std::string archs, directory;
    std::vector<std::string> profiles;
    bool json = false;
};

std::string arch_names() {
    return fmt::format("{}, {}", fmt::join(model_archs(), ", "), kCpu);
}

// The devices of an arch for which winners are known, and one as sold, for its heuristic. A class stands for itself.
void add_devices(const std::string& arch, const std::vector<LoadedProfile>& profiles,
                 std::vector<DeviceInfo>* devices) {
    const auto add = [&](const DeviceInfo& device) {
        const bool known = std::any_of(devices->begin(), devices->end(), [&](const DeviceInfo& other) {
            return other.device_class == device.device_class;
        });
        if (!known) devices->push_back(device);
    };
    const DeviceInfo& cpu = open_device(kCpu).info();
    if (arch == kCpu || arch == cpu.device_class.to_string()) return add(cpu);
    DeviceInfo device;
    try {
        device = model_device(arch);
    } catch (const InvalidArgument&) {
        throw InvalidArgument(
            "--arch",
            fmt::format("'{}' is none of {}, and no class of a GPU of one of them (kernels for a CPU can be made on "
                        "one of its own class alone: this one is {})",
                        arch, arch_names(), cpu.device_class.to_string()));
    }
    if (device.device_class.to_string() == arch) return add(device);
    for (const LoadedProfile& each : profiles) {
        if (each.profile.device_class.arch != device.device_class.arch) continue;
        DeviceInfo tuned = device;
        tuned.name = each.profile.device_name;
        tuned.device_class = each.profile.device_class;
        add(tuned);
    }
    add(device);
}

WarmOptions warm_options(const Options& options) {
    if (options.warm.jobs < 0 || options.warm.jobs > 1024)
        throw InvalidArgument("--jobs", fmt::format("{} is not a number of threads from 0 to 1024", options.warm.jobs));
    WarmOptions warm = options.warm;
    SweepOptions sweep;
    options.workloads.apply(&sweep);
    warm.query = sweep.query;
    warm.operations = sweep.operations;
    if (!options.directory.empty()) {
        if (const int error = make_directories(options.directory); error != 0)
            throw InvalidArgument("--directory",
                                  fmt::format("{} cannot be made: {}", options.directory, std::strerror(error)));
        warm.store.directory = options.directory;
    }
    warm.profiles = discover_profiles(options.profiles);
    for (const std::string& arch : split_list("--arch", options.archs)) add_devices(arch, warm.profiles, &warm.devices);
    return warm;
}

Json report_json(const Options& options, const WarmReport& report) {
    Json out;
    out["directory"] = report.directory;
    out["preset"] = options.workloads.preset;
    out["devices"] = Json::array();
    for (const WarmDevice& each : report.devices)
        out["devices"].push_back({{"name", each.device.name},
                                  {"class", each.device.device_class.to_string()},
                                  {"target", each.device.target()},
                                  {"from_profiles", each.from_profiles},
                                  {"from_heuristic", each.from_heuristic},
                                  {"unavailable", each.unavailable}});
    out["workloads"] = report.workloads;
    out["kernels"] = report.kernels;
    out["compiled"] = report.compiled;
    out["found"] = report.found;
    out["compile_ms"] = report.compile_ms;
    out["not_kept"] = report.not_kept.empty() ? Json(nullptr) : Json(report.not_kept);
    out["interrupted"] = report.interrupted;
    out["seconds"] = report.seconds;
    out["failures"] = Json::array();
    for (const WarmFailure& each : report.failures)
        out["failures"].push_back({{"kernel", each.kernel}, {"config", each.config}, {"why", each.why}});
    return out;
}

void print_summary(std::FILE* stream, const Options& options, const WarmReport& report) {
    for (const WarmDevice& each : report.devices) {
        tell(stream, "{} ({}): {} with a winner of a profile, {} with the heuristic's config{}\n", each.device.name,
             each.device.device_class.to_string(), counted(each.from_profiles, "workload"), each.from_heuristic,
             options.warm.all_candidates ? ", and every other candidate" : "");
        if (each.unavailable > 0)
            tell(stream, "skipped {}: {}\n", counted(each.unavailable, "workload"), each.why_unavailable);
    }
    for (std::size_t i = 0; i < report.failures.size() && i < kFailuresShown; ++i)
        tell(stream, "failed: {}: {}\n", report.failures[i].kernel, report.failures[i].why);
    if (report.failures.size() > kFailuresShown)
        tell(stream, "... and {} more\n", report.failures.size() - kFailuresShown);
    tell(stream, "{}: {} compiled, {} already there, {} failed, in {}\n{}\n", counted(report.kernels, "kernel"),
         report.compiled, report.found, report.failures.size(), duration(report.seconds), report.directory);
    if (report.interrupted) tell(stream, "interrupted; the same command goes on from here\n");
}

int run_warm(const Options& options) {
    std::FILE* const stream = options.json ? stderr : stdout;
    Progress progress(stream);
    const Interrupts interrupts;
    const WarmReport report = warm_store(
        warm_options(options),
        [&](const WarmProgress& each) {
            progress.update(
                fmt::format("[{}/{}]{}  {}", each.done, each.count,
                            each.eta_s >= 0 ? fmt::format(" {} left", duration(each.eta_s)) : "", each.kernel),
                each.done == each.count);
        },
        interrupts.count());
    progress.clear();
    print_summary(stream, options, report);
    if (options.json) print_json(report_json(options, report));
    if (report.interrupted) return kInterrupted;
    if (report.kernels == 0) {
        tell(stderr, "turbotune: error: none of the {} has a kernel on {}\n", counted(report.workloads, "workload"),
             options.archs);
        return kFailures;
    }
    if (!report.not_kept.empty()) tell(stderr, "turbotune: error: {}\n", report.not_kept);
    return report.failures.empty() && report.not_kept.empty() ? kDone : kFailures;
}

}  // namespace

void add_cache_warm(CLI::App& cache, Action& chosen) {
    auto options = std::make_shared<Options>();
    CLI::App* command = cache.add_subcommand(
        "warm",
        "Compile the kernels of a device that need not be here\n"
        "For an image of a cluster or a container: programs on such a device then compile nothing. Compiled is what "
        "they will run: the winners of the profiles that are found here for that architecture, else the heuristic's "
        "config. It holds for the compiler that is installed here; exit 1 when a kernel fails or cannot be kept.");
    command
        ->add_option("--arch", options->archs,
                     "Architectures: " + arch_names() + "; or device classes, as `turbotune devices` names them")
        ->type_name("A,B")
        ->required();
    options->workloads.add_to(*command, "Which workloads", "quick, standard (default) or exhaustive");
    command->add_option("--profile", options->profiles, "A profile, before those that are found; may be repeated")
        ->type_name("FILE")
        ->allow_extra_args(false);
    command->add_flag("--all-candidates", options->warm.all_candidates,
                      "Every config that fits, too: what tuning there would compile");
    command->add_option("--jobs", options->warm.jobs, "Compile threads; default by cores and memory")->type_name("N");
    command->add_option("--directory", options->directory, "The store; default: the one that programs here use")
        ->type_name("DIR");
    command->add_flag("--json", options->json, "One JSON object; everything else goes to standard error");
    command->footer("Example:\n  turbotune cache warm --arch sm_90 --preset standard --directory /srv/turbotune");
    command->callback([options, &chosen] { chosen = [options] { return run_warm(*options); }; });
}

}  // namespace turbotune::cli
