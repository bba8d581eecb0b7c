#include <fmt/format.h>

#include <memory>

#include "commands.h"
#include "exit_code.h"
#include "output.h"
#include "table.h"
#include "turbotune/tuner/sweep.h"

namespace turbotune::cli {
namespace {

std::string version_text(int version) {
    return version > 0 ? fmt::format("{}.{}", version / 1000, version % 1000 / 10) : "";
}

Json full_json(const DeviceInfo& info) {
    Json out = device_json(info);
    std::string why;
    const std::string compiler = compiler_of(info, &why);
    out["compiler"] = compiler;
    out["no_compiler"] = why;
    out["multiprocessors"] = info.device_class.sm_count;
    out["l2_bytes"] = info.device_class.l2_bytes;
    out["shared_per_block"] = info.device_class.shared_per_block;
    out["memory_bytes"] = info.total_memory;
    out["uuid"] = info.uuid;
    out["driver"] = version_text(info.driver_version);
    out["profile"] = default_profile_path(info);
    return out;
}

void print_text(const std::vector<DeviceInfo>& devices, const std::string& why_no_cuda) {
    for (const DeviceInfo& info : devices) {
        std::string why;
        const std::string compiler = compiler_of(info, &why);
        fmt::print("{}: {}\n", device_id(info), info.name);
        const auto line = [](const char* name, const std::string& value) {
            if (!value.empty()) fmt::print("  {:<10}{}\n", name, value);
        };
        line("class", info.device_class.to_string());
        line("target", info.target());
        line("tiers", fmt::format("{}", fmt::join(info.tiers(), ", ")));
        line("memory", byte_count(info.total_memory));
        line("driver", version_text(info.driver_version));
        line("compiler", compiler.empty() ? "none: " + why : compiler);
        line("profile", default_profile_path(info));
    }
    if (!why_no_cuda.empty()) fmt::print("no GPU: {}\n", why_no_cuda);
}

int list(bool json) {
    std::string why_no_cuda;
    const std::vector<DeviceInfo> devices = list_devices(&why_no_cuda);
    if (!json) {
        print_text(devices, why_no_cuda);
        return kDone;
    }
    Json out;
    out["devices"] = Json::array();
    for (const DeviceInfo& info : devices) out["devices"].push_back(full_json(info));
    out["no_cuda"] = why_no_cuda;
    print_json(out);
    return kDone;
}

}  // namespace

void add_devices(CLI::App& app, Action& chosen) {
    auto json = std::make_shared<bool>(false);
    CLI::App* command = app.add_subcommand("devices",
                                           "List the devices that kernels can run on\n"
                                           "With each: its class (the devices for which one profile holds), the "
                                           "kernel tiers that serve it, its compiler, and where its profile lies.");
    command->add_flag("--json", *json, "One JSON object with a list `devices`");
    command->footer("Example:\n  turbotune devices");
    command->callback([json, &chosen] { chosen = [json] { return list(*json); }; });
}

}  // namespace turbotune::cli
