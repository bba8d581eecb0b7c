// Profiles from JSON, strictly: whatever is accepted here is meant as it stands.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <unordered_map>

#include "profile_json.h"
#include "turbotune/base/error.h"
#include "turbotune/base/files.h"
#include "turbotune/profile/profile.h"

namespace turbotune {

namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 50;
constexpr double kMinLatency = 1e-9, kMaxLatency = 1e9;  // ms

void check_format(JsonReader& root) {
    const std::int64_t format =
        root.integer("format", std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max());
    if (format > Profile::kFormat)
        root.fail("format",
                  fmt::format("written by a newer version: format {}, this one reads {}", format, Profile::kFormat));
    if (format < Profile::kFormat)
        root.fail("format", fmt::format("unknown format {}, this one reads {}", format, Profile::kFormat));
}

void check_checksum(JsonReader& root) {
    if (!root.has("checksum")) return;
    const std::string recorded = root.text("checksum");
    Json rest = root.value();
    rest.erase("checksum");
    if (profile_checksum(rest) != recorded)
        root.fail("checksum",
                  "does not match the content: the file was damaged or edited (to accept a deliberate edit, "
                  "delete the checksum line)");
}

std::map<std::string, std::string> read_texts(JsonReader& reader, const std::string& key) {
    std::map<std::string, std::string> texts;
    JsonReader object = reader.object(key);
    for (const auto& [name, value] : object.value().items()) texts[name] = object.text(name);
    return texts;
}

std::map<std::string, std::string> read_templates(JsonReader& root) {
    auto templates = read_texts(root, "templates");
    for (const auto& [operation, digest] : templates) {
        const bool hex = digest.find_first_not_of("0123456789abcdef") == std::string::npos;
        if (digest.size() != 64 || !hex)
            root.object("templates").fail(operation, fmt::format("'{}' is not a SHA-256 in hexadecimal", digest));
    }
    return templates;
}

DeviceClass read_device_class(JsonReader reader) {
    DeviceClass result;
    result.arch = reader.text("arch");
    if (result.arch.empty()) reader.fail("arch", "must not be empty");
    result.sm_count = static_cast<int>(reader.integer("sm_count", 1, kMaxInt));
    result.l2_bytes = reader.integer("l2_bytes", 0, kMaxBytes);
    result.shared_per_block = reader.integer("shared_per_block", 0, kMaxBytes);
    result.bus_width = static_cast<int>(reader.integer("bus_width", 0, kMaxInt));
    reader.finish();
    return result;
}

// Sizes and counts: nothing in a workload or config is negative or beyond 32 bits.
Fields read_fields(JsonReader& parent, const std::string& key, std::int64_t lowest) {
    Fields fields = parent.fields(key);
    for (const auto& [name, value] : fields.entries())
        if (std::holds_alternative<std::int64_t>(value)) parent.object(key).integer(name, lowest, kMaxInt);
    return fields;
}

Workload read_workload(JsonReader& entry) {
    JsonReader object = entry.object("workload");
    Workload workload;
    workload.operation = object.text("operation");
    if (workload.operation.empty()) object.fail("operation", "must not be empty");
    const Fields fields = read_fields(entry, "workload", 1);
    for (const auto& [name, value] : fields.entries())
        if (name != "operation") workload.fields.set(name, value);
    return workload;
}

Config read_config(JsonReader& reader) {
    Config config = read_fields(reader, "config", 0);
    JsonReader object = reader.object("config");
    if (object.text("tier").empty()) object.fail("tier", "must not be empty");
    return config;
}

Latency read_latency(JsonReader reader) {
    Latency latency;
    latency.min = reader.number("min", kMinLatency, kMaxLatency);
    latency.p10 = reader.number("p10", kMinLatency, kMaxLatency);
    latency.median = reader.number("median", kMinLatency, kMaxLatency);
    latency.p90 = reader.number("p90", kMinLatency, kMaxLatency);
    latency.samples = static_cast<int>(reader.integer("samples", 1, kMaxInt));
    if (latency.p10 < latency.min) reader.fail("p10", "is below min");
    if (latency.median < latency.p10) reader.fail("median", "is below p10");
    if (latency.p90 < latency.median) reader.fail("p90", "is below median");
    reader.finish();
    return latency;
}

Parity read_parity(JsonReader reader) {
    constexpr double kMax = std::numeric_limits<double>::max();
    Parity parity;
    for (JsonReader& output : reader.array("outputs")) {
        OutputParity one;
        one.output = output.text("output");
        one.error = output.number("error", 0, kMax);
        one.tolerance = output.number("tolerance", 0, kMax);
        output.finish();
        parity.outputs.push_back(std::move(one));
    }
    parity.patterns = reader.texts("patterns");
    reader.finish();
    return parity;
}

RejectedCandidate read_rejected(JsonReader& reader) {
    RejectedCandidate candidate;
    candidate.config = read_config(reader);
    candidate.reason = reader.text("reason");
    if (candidate.reason.empty() ||
        candidate.reason.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") != std::string::npos)
        reader.fail("reason", fmt::format("'{}' is not a reason", candidate.reason));
    candidate.detail = reader.text("detail");
    reader.finish();
    return candidate;
}

ProfileEntry read_entry(JsonReader& reader) {
    ProfileEntry entry;
    entry.workload = read_workload(reader);
    entry.config = read_config(reader);
    entry.latency = read_latency(reader.object("latency"));
    entry.parity = read_parity(reader.object("parity"));
    entry.registers = static_cast<int>(reader.integer("registers", -1, kMaxInt));
    entry.local_bytes = static_cast<int>(reader.integer("local_bytes", -1, kMaxInt));
    entry.shared_bytes = static_cast<int>(reader.integer("shared_bytes", -1, kMaxInt));
    for (JsonReader& item : reader.array("measured")) {
        MeasuredCandidate candidate;
        candidate.config = read_config(item);
        candidate.latency = read_latency(item.object("latency"));
        item.finish();
        entry.measured.push_back(std::move(candidate));
    }
    for (JsonReader& item : reader.array("rejected")) entry.rejected.push_back(read_rejected(item));
    reader.finish();
    return entry;
}

// Field order does not matter to equality, so it must not matter here.
std::string order_free_key(const Workload& workload) {
    auto fields = workload.fields.entries();
    std::sort(fields.begin(), fields.end());
    Json key = Json::array({workload.operation});
    for (const auto& [name, value] : fields) {
        key.push_back(name);
        std::visit([&](const auto& scalar) { key.push_back(scalar); }, value);
    }
    return canonical_text(key);
}

}  // namespace

Profile parse_profile(const std::string& text, const std::string& name_for_errors) {
    const Json document = parse_json(text, name_for_errors);
    JsonReader root(document, name_for_errors);
    check_format(root);
    check_checksum(root);

    Profile profile;
    JsonReader device = root.object("device");
    profile.device_class = read_device_class(device.object("class"));
    profile.device_name = device.text("name");
    device.finish();
    profile.compiler = root.text("compiler");
    profile.templates = read_templates(root);
    profile.provenance = read_texts(root, "provenance");

    std::unordered_map<std::string, std::size_t> seen;
    for (JsonReader& item : root.array("entries")) {
        ProfileEntry entry = read_entry(item);
        const auto [first, fresh] = seen.emplace(order_free_key(entry.workload), profile.entries.size());
        if (!fresh) item.fail("workload", fmt::format("the same workload as /entries/{}", first->second));
        profile.entries.push_back(std::move(entry));
    }
    root.finish();
    return profile;
}

Profile load_profile(const std::string& path) {
    const auto text = read_file(path);
    if (!text) throw InvalidArgument(path, fmt::format("cannot read the profile: {}", std::strerror(errno)));
    return parse_profile(*text, path);
}

}  // namespace turbotune
