// Joins the profiles that shards or machines of one class measured, and tells what is still missing.
#pragma once

#include <string>
#include <vector>

#include "turbotune/profile/selection.h"
#include "turbotune/tuner/sweep.h"

namespace turbotune {

struct MergeSource {
    std::string path;
    int entries = 0, kept = 0;
};

// Two sources hold different entries of one workload.
struct MergeConflict {
    Workload workload;
    std::string kept, dropped;  // paths
    double kept_ms = 0, dropped_ms = 0;
    bool same_config = false;
};

struct MergeReport {
    Profile profile;
    std::vector<MergeSource> sources;
    std::vector<MergeConflict> conflicts;
};

// The entry with the lower median wins; of equal ones the first named. Entries come in the order in which their
// workloads are first named. Provenance that differs is joined. Throws InvalidArgument naming the file and every
// difference when device class, compiler or an operation's templates are not those of the first.
MergeReport merge_profiles(const std::vector<LoadedProfile>& inputs);

// Reads, joins and saves. A profile that `output` already holds counts as the first input: nothing is lost, and the
// same merge again changes nothing. Throws InvalidArgument also for what cannot be read.
MergeReport merge_files(const std::string& output, const std::vector<std::string>& inputs);

struct MissingWorkload {
    Workload workload;
    std::string shard;  // "3/8": whose it was, as far as the profile knows of shards; else empty
};

struct Coverage {
    int workloads = 0, held = 0;
    int unavailable = 0;  // no kernel serves them on this class
    std::vector<MissingWorkload> missing;
};

// Of the workloads that a sweep of these options visits, all shards together. No device of the class need be here.
Coverage coverage(const Profile& profile, const SweepOptions& options,
                  const std::vector<const Operation*>& known = operations());

// The device here of this class; where there is none, as much as the class says of it.
DeviceInfo device_of_class(const DeviceClass& device_class);

}  // namespace turbotune
