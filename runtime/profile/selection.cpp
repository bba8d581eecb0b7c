#include "turbotune/profile/selection.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <mutex>
#include <set>

#include "turbotune/base/error.h"
#include "turbotune/base/log.h"

namespace turbotune {

namespace {

constexpr Policy kPolicies[] = {Policy::automatic, Policy::heuristic, Policy::autotune, Policy::fixed,
                                Policy::profile_only};

struct Graded {
    const LoadedProfile* profile;
    Compatibility compatibility;
    std::string refusal;  // why its config for a workload was turned down

    bool serves(bool exact_only) const {
        return compatibility.grade == Grade::exact || (compatibility.grade == Grade::same_class && !exact_only);
    }
};

void warn_refused_once(const LoadedProfile& profile, const Workload& workload, const std::string& reason) {
    static std::mutex mutex;
    static std::set<std::string> warned;
    const std::string where = fmt::format("{}: {}", profile.path, workload.to_string());
    {
        const std::lock_guard lock(mutex);
        if (!warned.insert(where).second) return;
    }
    log(LogLevel::warn, fmt::format("the profile's config is passed over: {}: {}", where, reason));
}

std::string why_not(const Graded& graded, const SelectionQuery& query) {
    const std::string& path = graded.profile->path;
    const Compatibility& compatibility = graded.compatibility;
    if (!graded.serves(query.exact_only))
        return fmt::format("{}: {}: {}", path, to_string(compatibility.grade),
                           fmt::join(compatibility.differences, "; "));
    if (!graded.refusal.empty()) return fmt::format("{}: {}", path, graded.refusal);
    return fmt::format("{}: no entry for {}{}", path, query.workload.to_string(),
                       query.neighbours.empty() ? "" : " or a neighbour");
}

std::string note_of(const Graded& graded, const Workload& matched, const SelectionQuery& query) {
    std::vector<std::string> notes;
    if (!(matched == query.workload)) notes.push_back(fmt::format("tuned for {}", matched.to_string()));
    for (const std::string& difference : graded.compatibility.differences) notes.push_back(difference);
    return fmt::format("{}", fmt::join(notes, "; "));
}

// The first profile of that grade whose entry for `wanted` may run.
std::optional<Selection> take(std::vector<Graded>& graded, Grade grade, const Workload& wanted,
                              const SelectionQuery& query) {
    for (Graded& one : graded) {
        if (one.compatibility.grade != grade) continue;
        const ProfileEntry* entry = one.profile->profile.find(wanted);
        if (!entry) continue;
        const std::string reason = query.refuse ? query.refuse(query.workload, entry->config) : std::string();
        if (!reason.empty()) {
            one.refusal = fmt::format("config {} of {}: {}", entry->config.to_string(), wanted.to_string(), reason);
            warn_refused_once(*one.profile, wanted, fmt::format("{} ({})", reason, entry->config.to_string()));
            continue;
        }
        return Selection{entry->config, "profile", grade, one.profile->path, wanted, note_of(one, wanted, query)};
    }
    return std::nullopt;
}

}  // namespace

const char* to_string(Policy policy) {
    switch (policy) {
        case Policy::automatic:
            return "auto";
        case Policy::heuristic:
            return "heuristic";
        case Policy::autotune:
            return "autotune";
        case Policy::fixed:
            return "fixed";
        case Policy::profile_only:
            return "profile_only";
    }
    return "unknown";
}

Policy parse_policy(const std::string& name) {
    std::vector<std::string> names;
    for (const Policy policy : kPolicies) {
        if (name == to_string(policy)) return policy;
        names.push_back(to_string(policy));
    }
    throw InvalidArgument("policy", fmt::format("'{}' is none of {}", name, fmt::join(names, ", ")));
}

std::optional<Selection> select_from_profiles(const std::vector<LoadedProfile>& profiles, const SelectionQuery& query,
                                              std::string* why) {
    std::vector<Graded> graded;
    for (const LoadedProfile& loaded : profiles)
        graded.push_back(
            {&loaded,
             compare(loaded.profile, query.workload.operation, query.device_class, query.compiler, query.digest),
             {}});

    std::vector<Workload> wanted = {query.workload};
    wanted.insert(wanted.end(), query.neighbours.begin(), query.neighbours.end());
    for (const Workload& workload : wanted) {
        for (const Grade grade : {Grade::exact, Grade::same_class}) {
            if (grade == Grade::same_class && query.exact_only) continue;
            if (auto selection = take(graded, grade, workload, query)) return selection;
        }
    }

    if (why) {
        std::vector<std::string> lines;
        for (const Graded& one : graded) lines.push_back(why_not(one, query));
        *why = lines.empty() ? "no profile was found" : fmt::format("{}", fmt::join(lines, "\n"));
    }
    return std::nullopt;
}

}  // namespace turbotune
