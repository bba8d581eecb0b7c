#include "output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>

#include "table.h"
#include "turbotune/base/error.h"
#include "turbotune/kernel/compiler.h"

namespace turbotune::cli {

std::string device_id(const DeviceInfo& info) {
    return info.kind == DeviceKind::cpu ? "cpu" : std::to_string(info.ordinal);
}

std::string device_line(const DeviceInfo& info) {
    return fmt::format("{}: {} ({})", device_id(info), info.name, info.device_class.to_string());
}

Json device_json(const DeviceInfo& info) {
    Json out;
    out["id"] = device_id(info);
    out["kind"] = info.kind == DeviceKind::cpu ? "cpu" : "cuda";
    out["name"] = info.name;
    out["class"] = info.device_class.to_string();
    out["target"] = info.target();
    out["tiers"] = info.tiers();
    return out;
}

std::string compiler_of(const DeviceInfo& info, std::string* why) {
    try {
        return info.kind == DeviceKind::cpu ? host_compiler().identity() : nvrtc_compiler().identity();
    } catch (const CompileError& error) {
        if (why != nullptr) *why = error.what();
        return "";
    }
}

Json workload_json(const Workload& workload) {
    Json out;
    out["operation"] = workload.operation;
    const Json fields = to_json(workload.fields);
    for (const auto& [name, value] : fields.items()) out[name] = value;
    return out;
}

Json latency_json(const Latency& latency) {
    Json out;
    out["min"] = latency.min;
    out["p10"] = latency.p10;
    out["median"] = latency.median;
    out["p90"] = latency.p90;
    out["samples"] = latency.samples;
    return out;
}

Json outputs_json(const std::vector<OutputParity>& outputs) {
    Json out = Json::array();
    for (const OutputParity& each : outputs)
        out.push_back({{"output", each.output}, {"error", each.error}, {"tolerance", each.tolerance}});
    return out;
}

Json entry_json(const ProfileEntry& entry) {
    Json out;
    out["workload"] = workload_json(entry.workload);
    out["config"] = to_json(entry.config);
    out["latency"] = latency_json(entry.latency);
    out["parity"]["outputs"] = outputs_json(entry.parity.outputs);
    out["parity"]["patterns"] = entry.parity.patterns;
    out["registers"] = entry.registers;
    out["local_bytes"] = entry.local_bytes;
    out["shared_bytes"] = entry.shared_bytes;
    out["measured"] = Json::array();
    for (const MeasuredCandidate& each : entry.measured)
        out["measured"].push_back({{"config", to_json(each.config)}, {"latency", latency_json(each.latency)}});
    out["rejected"] = Json::array();
    for (const RejectedCandidate& each : entry.rejected)
        out["rejected"].push_back({{"config", to_json(each.config)}, {"reason", each.reason}, {"detail", each.detail}});
    return out;
}

namespace {

// The output that came nearest to its tolerance: "out 1.2e-03 / 2.0e-02".
std::string worst_parity(const Parity& parity) {
    const OutputParity* worst = nullptr;
    for (const OutputParity& each : parity.outputs)
        if (worst == nullptr || each.error * worst->tolerance > worst->error * each.tolerance) worst = &each;
    return worst == nullptr ? "" : fmt::format("{} {:.1e} of {:.0e}", worst->output, worst->error, worst->tolerance);
}

std::string count(int value) {
    return value < 0 ? "" : std::to_string(value);
}

std::string operation_table(const std::string& operation, const std::vector<const ProfileEntry*>& entries,
                            std::size_t limit) {
    std::vector<Workload> workloads;
    for (const ProfileEntry* entry : entries) workloads.push_back(entry->workload);
    const WorkloadColumns columns(workloads);
    std::vector<std::string> headers = columns.names();
    for (const char* header : {">ms (median)", ">p10", ">p90", "error of tolerance", ">registers", ">shared", ">tried",
                               ">rejected", "config"})
        headers.push_back(header);
    Table table(headers);
    for (std::size_t i = 0; i < entries.size() && i < limit; ++i) {
        const ProfileEntry& entry = *entries[i];
        std::vector<std::string> row = columns.cells(entry.workload);
        row.push_back(milliseconds(entry.latency.median));
        row.push_back(milliseconds(entry.latency.p10));
        row.push_back(milliseconds(entry.latency.p90));
        row.push_back(worst_parity(entry.parity));
        row.push_back(count(entry.registers));
        row.push_back(count(entry.shared_bytes));
        row.push_back(std::to_string(1 + entry.measured.size()));
        row.push_back(std::to_string(entry.rejected.size()));
        row.push_back(entry.config.to_string());
        table.add(row);
    }
    std::string out = operation;
    if (!columns.common().empty()) out += fmt::format(" ({})", columns.common());
    out += '\n' + table.to_string();
    if (entries.size() > limit) out += fmt::format("... and {} more\n", entries.size() - limit);
    return out;
}

}  // namespace

std::string winners_text(const std::vector<ProfileEntry>& entries, std::size_t limit) {
    std::vector<Workload> workloads;
    for (const ProfileEntry& entry : entries) workloads.push_back(entry.workload);
    std::string out;
    for (const std::string& operation : operations_of(workloads)) {
        std::vector<const ProfileEntry*> mine;
        for (const ProfileEntry& entry : entries)
            if (entry.workload.operation == operation) mine.push_back(&entry);
        out += (out.empty() ? "" : "\n") + operation_table(operation, mine, limit);
    }
    return out;
}

void tell_text(std::FILE* stream, const std::string& text) {
    if (stream == stderr)
        std::fputs(text.c_str(), stream);
    else
        fmt::print(stream, "{}", text);
}

void print_json(const Json& value) {
    const std::string text = value.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
    std::fwrite(text.data(), 1, text.size(), stdout);
    flush_output();
}

void flush_output() {
    // errno of an earlier failure may be another's by now.
    const bool failed_before = std::ferror(stdout) != 0;
    if (std::fflush(stdout) != 0)
        throw Error(ErrorCode::store, fmt::format("cannot write to standard output: {}", std::strerror(errno)));
    if (failed_before) throw Error(ErrorCode::store, "cannot write to standard output: an earlier write failed");
}

std::string shell_word(const std::string& word) {
    if (!word.empty() && word.find_first_of(" \t\n'\"\\$`*?&;|<>()[]{}~#!") == std::string::npos) return word;
    std::string out = "'";
    for (char c : word) {
        if (c == '\'')
            out += "'\\''";
        else
            out += c;
    }
    return out + '\'';
}

std::string this_program() {
    char path[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
    if (length <= 0)
        throw Error(ErrorCode::invalid_argument,
                    "/proc/self/exe: cannot tell which program this is; is /proc mounted?");
    return {path, static_cast<std::size_t>(length)};
}

std::vector<std::string> split_list(const std::string& flag, const std::string& text) {
    std::vector<std::string> out;
    std::size_t begin = 0;
    while (true) {
        const std::size_t comma = text.find(',', begin);
        out.push_back(text.substr(begin, comma - begin));
        if (out.back().empty()) throw InvalidArgument(flag, fmt::format("an empty value in '{}'", text));
        if (comma == std::string::npos) return out;
        begin = comma + 1;
    }
}

}  // namespace turbotune::cli
