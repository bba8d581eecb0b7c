// A sweep of the toy operation on the CPU device in a folder of its own.
#pragma once

#include <algorithm>
#include <sstream>

#include "scratch.h"
#include "toy_operation.h"
#include "turbotune/tuner/sweep.h"

namespace turbotune {

struct SweepBench {
    Scratch scratch;
    ToyOperation toy;
    SweepOptions options;
    std::vector<SweepEvent> events;
    std::atomic<int> interrupts{0};
    std::function<void(const SweepEvent&)> on_event;

    explicit SweepBench(std::vector<Config> configs, Preset preset = Preset::exhaustive) : toy(std::move(configs)) {
        options.query.preset = preset;
        options.query.axes["length"] = {"64"};
        options.device = "cpu";
        options.output = scratch.file("profile.json");
        options.worker_program = toy_worker(scratch.path());
        options.command_line = "turbotune --test";
        options.store.memory_only = true;
    }

    SweepReport run() {
        events.clear();
        return sweep(options,
                     [this](const SweepEvent& event) {
                         events.push_back(event);
                         if (on_event) on_event(event);
                     },
                     &interrupts, {&toy});
    }

    int count(SweepEvent::Kind kind) const {
        return int(std::count_if(events.begin(), events.end(), [&](const SweepEvent& e) { return e.kind == kind; }));
    }
    Profile profile() const { return load_profile(options.output); }
    ProfileEntry entry() const { return profile().entries.at(0); }
    // Of every worker that was ever started.
    std::vector<int> worker_pids() const {
        std::istringstream lines(slurp(scratch.file("pids")));
        std::vector<int> pids;
        for (int pid; lines >> pid;) pids.push_back(pid);
        return pids;
    }
};

inline std::string reason_of(const ProfileEntry& entry, const std::string& kind) {
    for (const RejectedCandidate& candidate : entry.rejected)
        if (candidate.config.text("kind") == kind) return candidate.reason;
    return "";
}

}  // namespace turbotune
