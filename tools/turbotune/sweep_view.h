// What a person sees of a running sweep: a progress line on a terminal, plain lines elsewhere.
#pragma once

#include <chrono>
#include <cstdio>
#include <map>
#include <string>

#include "progress.h"
#include "turbotune/tuner/sweep.h"

namespace turbotune::cli {

class SweepView {
  public:
    // With several devices each line says whose it is. Verbose: a line for every candidate, and each line begins with
    // the seconds since the start.
    SweepView(std::FILE* stream, bool verbose, bool several_devices = false);
    void on(const SweepEvent& event);
    // Ends the progress line and tells why workloads were skipped, one line per reason.
    void finish();

  private:
    std::string place(const SweepEvent& event) const;
    std::string progress_text(const SweepEvent& event) const;
    void candidate(const SweepEvent& event, const char* verb);
    void print(const std::string& line);
    Progress progress_;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
    bool verbose_, several_devices_;
    std::map<std::string, int> skipped_;  // reason -> workloads
};

}  // namespace turbotune::cli
