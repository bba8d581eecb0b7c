#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <sstream>

#include "commands.h"
#include "exit_code.h"
#include "output.h"
#include "suggest.h"
#include "table.h"
#include "turbotune/base/error.h"
#include "turbotune/kernel/kernel_spec.h"
#include "turbotune/tuner/sweep.h"

namespace turbotune::cli {
namespace {

struct InspectOptions {
    std::string path, workload, compare_path;
    bool json = false;
};

// The device here that the profile is about: one of its class, else of its kind, else the best one.
DeviceInfo device_for(const Profile& profile) {
    const std::vector<DeviceInfo> devices = list_devices();
    for (const DeviceInfo& info : devices)
        if (info.device_class == profile.device_class) return info;
    const bool about_gpu = profile.device_class.arch.rfind("sm_", 0) == 0;
    for (const DeviceInfo& info : devices)
        if ((info.kind == DeviceKind::cuda) == about_gpu) return info;
    return devices.front();
}

std::string digest_of(const std::string& operation) {
    try {
        return to_hex(template_digest(operation));
    } catch (const InvalidArgument&) {
        return "";  // an operation that this build does not have
    }
}

// The worst grade over the profile's operations, and every difference once.
Compatibility grade(const Profile& profile, const DeviceInfo& device) {
    const std::string compiler = compiler_of(device);
    Compatibility worst{Grade::exact, {}};
    std::set<std::string> operations;
    for (const ProfileEntry& entry : profile.entries) operations.insert(entry.workload.operation);
    for (const auto& [operation, digest] : profile.templates) operations.insert(operation);
    if (operations.empty()) operations.insert("");  // an empty profile still has a device and a compiler
    for (const std::string& operation : operations) {
        const Compatibility each = compare(profile, operation, device.device_class, compiler, digest_of(operation));
        worst.grade = std::max(worst.grade, each.grade);
        for (const std::string& difference : each.differences)
            if (std::find(worst.differences.begin(), worst.differences.end(), difference) == worst.differences.end())
                worst.differences.push_back(difference);
    }
    return worst;
}

// Why the runtime would pass the entry's config over on this device; empty when it would take it.
std::string refusal(const ProfileEntry& entry, const DeviceInfo& device) {
    try {
        return find_operation(entry.workload.operation).filter(entry.workload, entry.config, device).reason;
    } catch (const Error& error) {
        return error.what();
    }
}

std::vector<std::string> words_of(const std::string& filter) {
    std::istringstream stream(filter);
    return {std::istream_iterator<std::string>(stream), {}};
}

bool has_word(const Workload& workload, const std::string& word) {
    // "length=64" must not find length=640.
    const std::string wanted = word.find('=') == std::string::npos ? word : ' ' + word + ' ';
    return (' ' + workload.to_string() + ' ').find(wanted) != std::string::npos;
}

// Values of one field are alternatives: no workload has two of them.
std::vector<ProfileEntry> filtered(const Profile& profile, const std::string& filter) {
    std::map<std::string, std::vector<std::string>> wanted;  // by field; a word without one is for itself
    for (const std::string& word : words_of(filter)) wanted[word.substr(0, word.find('='))].push_back(word);
    std::vector<ProfileEntry> entries = profile.entries;
    std::erase_if(entries, [&](const ProfileEntry& entry) {
        return std::any_of(wanted.begin(), wanted.end(), [&](const auto& field) {
            return std::none_of(field.second.begin(), field.second.end(),
                                [&](const std::string& word) { return has_word(entry.workload, word); });
        });
    });
    return entries;
}

// A word that no workload has is a mistake: what its field has instead, or which fields there are.
void check_words(const std::string& filter, const std::vector<const Profile*>& profiles) {
    for (const std::string& word : words_of(filter)) {
        bool known = false;
        std::set<std::string> fields;
        std::set<FieldValue> values;
        const std::string field = word.substr(0, word.find('='));
        for (const Profile* profile : profiles)
            for (const ProfileEntry& entry : profile->entries) {
                known = known || has_word(entry.workload, word);
                for (const auto& [name, value] : entry.workload.fields.entries()) {
                    fields.insert(name);
                    if (name == field) values.insert(value);
                }
            }
        if (known || fields.empty()) continue;
        std::string hint = fmt::format("the fields are {}", fmt::join(fields, ", "));
        if (const std::string near = nearest(field, {fields.begin(), fields.end()}); !near.empty() && near != field)
            hint = fmt::format("did you mean {}?", near);
        std::vector<std::string> texts;
        for (const FieldValue& value : values) texts.push_back(to_string(value));
        if (!values.empty()) hint = fmt::format("{} is {}", field, fmt::join(texts, ", "));
        throw InvalidArgument("--workload", fmt::format("no workload of the profile has {}; {}", word, hint));
    }
}

struct Comparison {
    Workload workload;
    const ProfileEntry* here = nullptr;
    const ProfileEntry* there = nullptr;
    double ratio() const { return here->latency.median / there->latency.median; }
};

std::vector<Comparison> compare_entries(const std::vector<ProfileEntry>& here, const std::vector<ProfileEntry>& there) {
    std::vector<Comparison> out;
    const auto find = [](const std::vector<ProfileEntry>& list, const Workload& workload) -> const ProfileEntry* {
        for (const ProfileEntry& entry : list)
            if (entry.workload == workload) return &entry;
        return nullptr;
    };
    for (const ProfileEntry& entry : here) out.push_back({entry.workload, &entry, find(there, entry.workload)});
    for (const ProfileEntry& entry : there)
        if (find(here, entry.workload) == nullptr) out.push_back({entry.workload, nullptr, &entry});
    return out;
}

Json comparison_json(const std::vector<Comparison>& rows) {
    Json out = Json::array();
    for (const Comparison& row : rows) {
        Json each;
        each["workload"] = workload_json(row.workload);
        each["median"] = row.here ? Json(row.here->latency.median) : Json(nullptr);
        each["other_median"] = row.there ? Json(row.there->latency.median) : Json(nullptr);
        each["ratio"] = row.here && row.there ? Json(row.ratio()) : Json(nullptr);
        each["same_config"] = row.here && row.there && row.here->config == row.there->config;
        out.push_back(each);
    }
    return out;
}

std::string comparison_text(const std::vector<Comparison>& rows) {
    Table table({"workload", ">ms", ">other ms", ">ratio", "config"});
    for (const Comparison& row : rows) {
        const bool both = row.here && row.there;
        std::string config = !row.here ? "only in the other" : !row.there ? "only here" : "same";
        if (both && row.here->config != row.there->config)
            config = fmt::format("{} | {}", row.here->config.to_string(), row.there->config.to_string());
        table.add({row.workload.to_string(), row.here ? milliseconds(row.here->latency.median) : "",
                   row.there ? milliseconds(row.there->latency.median) : "",
                   both ? fmt::format("{:.3f}", row.ratio()) : "", config});
    }
    return table.to_string();
}

Json profile_json(const std::string& path, const Profile& profile, const std::vector<ProfileEntry>& entries,
                  const DeviceInfo& device) {
    const Compatibility compatibility = grade(profile, device);
    Json out;
    out["path"] = path;
    out["format"] = Profile::kFormat;
    out["device"] = {{"name", profile.device_name}, {"class", profile.device_class.to_string()}};
    out["compiler"] = profile.compiler;
    out["grade"] = to_string(compatibility.grade);
    out["graded_against"] = device_json(device);
    out["differences"] = compatibility.differences;
    out["templates"] = profile.templates;
    out["provenance"] = profile.provenance;
    out["entries"] = Json::array();
    const bool judged = compatibility.grade != Grade::incompatible;
    for (const ProfileEntry& entry : entries) {
        Json each = entry_json(entry);
        each["refused"] = judged ? Json(refusal(entry, device)) : Json(nullptr);
        out["entries"].push_back(each);
    }
    return out;
}

std::string rejected_text(const std::vector<ProfileEntry>& entries) {
    std::map<std::string, int> reasons;
    for (const ProfileEntry& entry : entries)
        for (const RejectedCandidate& each : entry.rejected) ++reasons[each.reason];
    std::string out;
    for (const auto& [reason, times] : reasons) out += fmt::format("{}{} {}", out.empty() ? "" : ", ", times, reason);
    return out;
}

void print_text(const std::string& path, const Profile& profile, const std::vector<ProfileEntry>& entries,
                const DeviceInfo& device) {
    const Compatibility compatibility = grade(profile, device);
    fmt::print("{}\n", path);
    const auto line = [](const std::string& name, const std::string& value) {
        if (!value.empty()) fmt::print("  {:<{}}{}\n", name, std::max<std::size_t>(10, name.size() + 1), value);
    };
    line("device", fmt::format("{} ({})", profile.device_name, profile.device_class.to_string()));
    line("compiler", profile.compiler);
    for (const auto& [name, value] : profile.provenance) line(name, value);
    line("grade", fmt::format("{} on {}", to_string(compatibility.grade), device_line(device)));
    for (const std::string& difference : compatibility.differences) line("", "- " + difference);
    if (compatibility.grade == Grade::same_class && device.device_class == list_devices().front().device_class)
        line("", "turbotune retarget checks it and makes it exact here");
    line("rejected", rejected_text(entries));
    fmt::print("\n{}", entries.empty() ? "no entries\n" : winners_text(entries, entries.size()));
    if (compatibility.grade == Grade::incompatible) return;
    for (const ProfileEntry& entry : entries)
        if (const std::string why = refusal(entry, device); !why.empty())
            fmt::print("refused here, the heuristic serves instead: {}: {}\n", entry.workload.to_string(), why);
}

int inspect(InspectOptions options) {
    if (options.path.empty()) {
        options.path = default_profile_path(open_device().info());
        if (!file_exists(options.path))
            throw InvalidArgument(options.path, "this device has no profile yet; run turbotune, or name a profile");
    }
    const Profile profile = load_profile(options.path);
    const Profile other = options.compare_path.empty() ? Profile() : load_profile(options.compare_path);
    check_words(options.workload, {&profile, &other});
    const std::vector<ProfileEntry> entries = filtered(profile, options.workload);
    const DeviceInfo device = device_for(profile);
    const std::vector<ProfileEntry> others = filtered(other, options.workload);
    const std::vector<Comparison> comparison = compare_entries(entries, others);
    if (options.json) {
        Json out = profile_json(options.path, profile, entries, device);
        if (!options.compare_path.empty()) {
            out["compared_with"] = options.compare_path;
            out["compared_device"] = other.device_class.to_string();
            out["compared_compiler"] = other.compiler;
            out["comparison"] = comparison_json(comparison);
        }
        print_json(out);
        return kDone;
    }
    print_text(options.path, profile, entries, device);
    if (options.compare_path.empty()) return kDone;
    fmt::print("\nagainst {} ({}, {}); ratio: these latencies over those\n", options.compare_path, other.device_name,
               other.device_class.to_string());
    if (!(other.device_class == profile.device_class))
        fmt::print("they are of another device class: what the ratios compare is devices\n");
    else if (other.compiler != profile.compiler)
        fmt::print("they are of another compiler: {}\n", other.compiler);
    fmt::print("{}", comparison_text(comparison));
    return kDone;
}

}  // namespace

void add_inspect(CLI::App& app, Action& chosen) {
    auto options = std::make_shared<InspectOptions>();
    CLI::App* command = app.add_subcommand(
        "inspect",
        "Read a profile: winners, latencies, errors, and whether it fits this machine\n"
        "The grade says how far the profile holds here: exact (same device class, compiler and kernel templates), "
        "same-class (usable; compiled anew), incompatible (another device), with one line for each difference.");
    command->add_option("FILE", options->path, "The profile; default: the one of this machine's best device");
    command
        ->add_option(
            "--workload", options->workload,
            "Only workloads that contain every word of TEXT, such as \"length=512 half\" (of several values of a field "
            "one); a word that none has is an error")
        ->type_name("TEXT");
    command->add_option("--compare", options->compare_path, "Set the latencies of another profile beside these")
        ->type_name("FILE2");
    command->add_flag("--json", options->json, "One JSON object with a list `entries`");
    command->footer(
        "Examples:\n"
        "  turbotune inspect\n"
        "  turbotune inspect mine.json --workload \"pass=inference length=512\"\n"
        "  turbotune inspect new.json --compare old.json --json");
    command->callback([options, &chosen] { chosen = [options] { return inspect(*options); }; });
}

}  // namespace turbotune::cli
