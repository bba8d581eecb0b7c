// Profiles to JSON: for people to read and compare line by line, hence as many values on a line as fit.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "directories.h"
#include "profile_json.h"
#include "turbotune/base/error.h"
#include "turbotune/base/files.h"
#include "turbotune/profile/profile.h"
#include "turbotune/profile/selection.h"

namespace turbotune {

namespace {

constexpr std::size_t kColumns = 120;

// JSON has no NaN: what cannot be written back exactly must not be written at all.
double finite(double value, const char* what) {
    if (!std::isfinite(value)) throw InvalidArgument(what, fmt::format("{} cannot be saved in a profile", value));
    return value;
}

Json to_json(const Workload& workload) {
    if (workload.fields.contains("operation")) throw InvalidArgument("workload", "a field may not be named operation");
    Json json = {{"operation", workload.operation}};
    json.update(turbotune::to_json(workload.fields));
    return json;
}

Json to_json(const Latency& latency) {
    return {{"min", finite(latency.min, "latency.min")},
            {"p10", finite(latency.p10, "latency.p10")},
            {"median", finite(latency.median, "latency.median")},
            {"p90", finite(latency.p90, "latency.p90")},
            {"samples", latency.samples}};
}

Json to_json(const Parity& parity) {
    Json outputs = Json::array();
    for (const OutputParity& one : parity.outputs)
        outputs.push_back({{"output", one.output},
                           {"error", finite(one.error, "parity.error")},
                           {"tolerance", finite(one.tolerance, "parity.tolerance")}});
    return {{"outputs", std::move(outputs)}, {"patterns", parity.patterns}};
}

Json to_json(const ProfileEntry& entry) {
    Json measured = Json::array(), rejected = Json::array();
    for (const MeasuredCandidate& one : entry.measured)
        measured.push_back({{"config", turbotune::to_json(one.config)}, {"latency", to_json(one.latency)}});
    for (const RejectedCandidate& one : entry.rejected)
        rejected.push_back(
            {{"config", turbotune::to_json(one.config)}, {"reason", one.reason}, {"detail", one.detail}});
    return {{"workload", to_json(entry.workload)}, {"config", turbotune::to_json(entry.config)},
            {"latency", to_json(entry.latency)},   {"parity", to_json(entry.parity)},
            {"registers", entry.registers},        {"local_bytes", entry.local_bytes},
            {"shared_bytes", entry.shared_bytes},  {"measured", std::move(measured)},
            {"rejected", std::move(rejected)}};
}

Json to_json(const std::map<std::string, std::string>& texts) {
    Json json = Json::object();
    for (const auto& [name, text] : texts) json[name] = text;
    return json;
}

Json to_json(const DeviceClass& device) {
    return {{"arch", device.arch},
            {"sm_count", device.sm_count},
            {"l2_bytes", device.l2_bytes},
            {"shared_per_block", device.shared_per_block},
            {"bus_width", device.bus_width}};
}

// Most texts need no escaping; the library's dump sets up a serializer for each.
void write_text(const std::string& text, std::string& out) {
    const auto plain = [](unsigned char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; };
    if (!std::all_of(text.begin(), text.end(), plain)) {
        out += canonical_text(text);
        return;
    }
    out.append(1, '"').append(text).append(1, '"');
}

void write_scalar(const Json& value, std::string& out) {
    if (value.is_string())
        write_text(value.get_ref<const std::string&>(), out);
    else if (value.is_number_integer())
        out += fmt::format_int(value.get<std::int64_t>()).str();
    else
        out += canonical_text(value);
}

// On one line, `{"a": 1, "b": [2, 3]}`; gives up (false) beyond `room` characters.
bool write_inline(const Json& value, std::size_t room, std::string& out) {
    const std::size_t begin = out.size();
    const auto fits = [&] { return out.size() - begin <= room; };
    if (!value.is_structured()) {
        write_scalar(value, out);
        return fits();
    }
    out += value.is_object() ? '{' : '[';
    bool first = true;
    for (auto item = value.begin(); item != value.end(); ++item) {
        if (!first) out += ", ";
        first = false;
        if (value.is_object()) {
            write_text(item.key(), out);
            out += ": ";
        }
        if (!fits() || !write_inline(*item, room - (out.size() - begin), out)) return false;
    }
    out += value.is_object() ? '}' : ']';
    return fits();
}

// `used`: columns already taken on the line.
void write_pretty(const Json& value, std::size_t indent, std::size_t used, std::string& out) {
    const std::size_t begin = out.size();
    if (!value.is_structured()) return write_scalar(value, out);
    if (value.empty()) {
        out += canonical_text(value);
        return;
    }
    // The top level is always spread out.
    if (indent > 0 && used < kColumns && write_inline(value, kColumns - used, out)) return;
    out.resize(begin);
    out += value.is_object() ? "{\n" : "[\n";
    for (auto item = value.begin(); item != value.end(); ++item) {
        if (item != value.begin()) out += ",\n";
        const std::size_t line = out.size();
        out.append(indent + 2, ' ');
        if (value.is_object()) {
            write_text(item.key(), out);
            out += ": ";
        }
        write_pretty(*item, indent + 2, out.size() - line, out);
    }
    out += '\n' + std::string(indent, ' ') + (value.is_object() ? '}' : ']');
}

}  // namespace

std::string to_json_text(const Profile& profile) {
    Json document = {{"format", Profile::kFormat}};
    document["device"] = {{"class", to_json(profile.device_class)}, {"name", profile.device_name}};
    document["compiler"] = profile.compiler;
    document["templates"] = to_json(profile.templates);
    document["provenance"] = to_json(profile.provenance);
    document["entries"] = Json::array();
    for (const ProfileEntry& entry : profile.entries) document["entries"].push_back(to_json(entry));

    // On a line of its own that is not the last, so that it can simply be deleted.
    Json signed_document = {{"format", Profile::kFormat}, {"checksum", profile_checksum(document)}};
    for (auto& [name, value] : document.items()) signed_document[name] = std::move(value);

    std::string text;
    write_pretty(signed_document, 0, 0, text);
    return text + '\n';
}

void save_profile(const Profile& profile, const std::string& path) {
    const std::string text = to_json_text(profile);
    // A file that could not be read back would cost the user the whole sweep.
    parse_profile(text, path);
    if (const std::string why = prepare_profile_parent(path); !why.empty())
        throw StoreError(fmt::format("cannot write the profile {}: {}", path, why));
    if (const int error = write_file_atomic(path, text))
        throw StoreError(fmt::format("cannot write the profile {}: {}", path, std::strerror(error)));
}

}  // namespace turbotune
