// Where profiles are found, and which config serves a workload: a pure function of the profiles,
// the workload and the device class, so that every rank of a job picks the same.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "turbotune/profile/profile.h"

namespace turbotune {

enum class Policy { automatic, heuristic, autotune, fixed, profile_only };
const char* to_string(Policy policy);          // "auto", "heuristic", ...
Policy parse_policy(const std::string& name);  // throws InvalidArgument listing the names

struct LoadedProfile {
    std::string path;
    Profile profile;
};

// Explicit paths first (these throw when broken), then the directories of profile_directories(): every *.json in
// them by name order; broken ones are skipped with one warning each.
std::vector<LoadedProfile> discover_profiles(const std::vector<std::string>& explicit_paths, bool search_directories = true);

// TURBOTUNE_PROFILE_DIR, else the user cache's turbotune/profiles; then the profiles that ship
// (TURBOTUNE_SHIPPED_PROFILES, else the installed or source directory known at build time).
std::vector<std::string> profile_directories();
// Where the tuner writes by default: the first of them.
std::string user_profile_directory();
// Creates the folder of a profile that is about to be written. Empty, or why it cannot be used.
std::string prepare_profile_parent(const std::string& profile_path);

struct Selection {
    Config config;
    std::string origin;      // "profile" | "heuristic" | "autotune" | "fixed"
    Grade grade = Grade::incompatible;   // of the profile, when origin is "profile"
    std::string profile_path;
    Workload matched;        // the workload whose entry was taken (a neighbour, or the one asked for)
    std::string note;        // why nothing better was there; empty for an exact match
};

struct SelectionQuery {
    Workload workload;
    std::vector<Workload> neighbours;    // other workloads whose winner may serve, nearest first
    DeviceClass device_class;
    std::string compiler, digest;
    bool exact_only = false;             // profile_only
    // Empty string when the config may run for this workload on this device; else the reason.
    std::function<std::string(const Workload&, const Config&)> refuse;
};

// Order: the workload itself in exact profiles, then in same-class ones, then each neighbour likewise. A config that
// `refuse` turns down is passed over with a warning. Nothing: nullopt, with the reasons (one line per profile) in `why`.
std::optional<Selection> select_from_profiles(const std::vector<LoadedProfile>& profiles, const SelectionQuery& query,
                                              std::string* why);

}  // namespace turbotune
