// Re-issues a profile of this device's class for the compiler and the templates that are here: every config is checked
// anew, nothing is timed.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "turbotune/ops/operation.h"

namespace turbotune {

struct RetargetOptions {
    std::string input, output;
    std::string device = "auto";
    int jobs = 0;  // compile threads; 0: compile_jobs()
    std::string worker_program, command_line;
    Store::Options store;
};

struct DroppedEntry {
    Workload workload;
    Config config;
    std::string reason, detail;  // as of a RejectedCandidate, or "unknown_operation", "unavailable"
};

struct RetargetReport {
    DeviceInfo device;
    std::vector<std::string> differences;  // between the input and what is here; empty: it was exact already
    int entries = 0, kept = 0;
    int already = 0;                    // in the output before, which is left as it is
    int configs = 0;                    // checked, winners and others
    int configs_turned_down = 0;        // of those that were not winners
    std::vector<DroppedEntry> dropped;  // their winner does not pass here
    bool interrupted = false;
    std::string profile_path;
    double seconds = 0;
};

struct RetargetProgress {
    int index = 0, count = 0;  // 1-based
    Workload workload;
    std::string text;  // "kept", or why not
};
using RetargetListener = std::function<void(const RetargetProgress&)>;

// An entry stays when its winner passes the operation's filter and parity here; its other configs that do not are
// recorded as rejected. Latencies are those of the input, which the provenance says. What was rejected there is
// forgotten, unless the filter turns it down here, too, so that the next sweep tries it. Saved as it goes; the same
// call again goes on. Throws InvalidArgument (broken input, another device class, output and input are one file),
// DeviceError, CompileError when there is no compiler, and Error when the output cannot be written.
RetargetReport retarget(const RetargetOptions& options, const RetargetListener& listener,
                        const std::atomic<int>* interrupts = nullptr,
                        const std::vector<const Operation*>& known = operations());

}  // namespace turbotune
