// A profile: the winners that a tuner measured on one device class, as schema-versioned JSON.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "turbotune/base/fields.h"
#include "turbotune/device/device_info.h"

namespace turbotune {

// The bounded tuning key that a problem falls into.
struct Workload {
    std::string operation;
    Fields fields;

    // "disentangled_attention pass=inference layout=padded length=512 ..."
    std::string to_string() const;
    friend bool operator==(const Workload& a, const Workload& b) {
        return a.operation == b.operation && a.fields == b.fields;
    }
};

// One schedule of an operation for a workload; "tier" is a field of every config.
using Config = Fields;

struct Latency {   // milliseconds of one execution, device time
    double min = 0, p10 = 0, median = 0, p90 = 0;
    int samples = 0;
};

struct OutputParity {
    std::string output;
    double error = 0;       // largest |got - want| over all cases, relative to the largest |want| of its tensor
    double tolerance = 0;
};

struct Parity {
    std::vector<OutputParity> outputs;
    std::vector<std::string> patterns;   // labels of the cases that were run
};

struct RejectedCandidate {
    Config config;
    // Never tried: filtered. Not run: compile_error (the compiler's words are in `detail`), compiler_failed (it said
    // nothing: missing, killed, disk full), launch_error, out_of_memory. Took the process along: fault, timeout; killed
    // (from outside, which says nothing of the candidate). Parity: mismatch, unwritten, overrun (beside a tensor or the
    // workspace), input_changed, not_repeatable.
    std::string reason;
    std::string detail;
};

struct MeasuredCandidate {
    Config config;
    Latency latency;
};

struct ProfileEntry {
    Workload workload;
    Config config;                     // the winner
    Latency latency;
    Parity parity;
    int registers = -1;                // of the slowest-to-fit kernel of the config: the largest
    int local_bytes = -1;
    int shared_bytes = -1;             // dynamic + static, per block
    std::vector<MeasuredCandidate> measured;   // every other candidate that passed parity
    std::vector<RejectedCandidate> rejected;
};

struct Profile {
    static constexpr int kFormat = 1;

    DeviceClass device_class;
    std::string device_name;                     // hint
    std::string compiler;                        // Compiler::identity()
    std::map<std::string, std::string> templates;   // operation -> hex template_digest
    std::map<std::string, std::string> provenance;  // date, command, driver, host, rotated bytes, ...: never compared
    std::vector<ProfileEntry> entries;

    const ProfileEntry* find(const Workload& workload) const;
    // Replaces the entry of the same workload, else appends.
    void put(ProfileEntry entry);
};

// Strict: unknown or missing keys, wrong types, values out of range, duplicate workloads, a newer or
// unknown format are InvalidArgument naming file and JSON path.
Profile parse_profile(const std::string& text, const std::string& name_for_errors);
Profile load_profile(const std::string& path);
std::string to_json_text(const Profile& profile);           // with a trailing newline; parse(to_json_text(p)) == p
void save_profile(const Profile& profile, const std::string& path);   // atomic; throws Error naming path and errno text

enum class Grade { exact, same_class, incompatible };
const char* to_string(Grade grade);   // "exact", "same-class", "incompatible"

struct Compatibility {
    Grade grade = Grade::incompatible;
    std::vector<std::string> differences;   // one line each: "compiler: profile nvrtc-..., here nvrtc-..."
};

// `compiler` and `digest` are what this process has; an empty compiler means there is none here.
Compatibility compare(const Profile& profile, const std::string& operation, const DeviceClass& device_class,
                      const std::string& compiler, const std::string& digest);

}  // namespace turbotune
