// What a person sees of a running sweep: a progress line on a terminal, plain lines elsewhere.
#pragma once

#include <cstdio>
#include <map>
#include <string>

#include "progress.h"
#include "turbotune/tuner/sweep.h"

namespace turbotune::cli {

class SweepView {
  public:
    SweepView(std::FILE* stream, bool verbose);
    void on(const SweepEvent& event);
    // Ends the progress line and tells why workloads were skipped, one line per reason.
    void finish();

  private:
    std::string progress_text(const SweepEvent& event) const;
    void candidate(const SweepEvent& event, const char* verb);
    Progress progress_;
    bool verbose_;
    std::map<std::string, int> skipped_;  // reason -> workloads
};

}  // namespace turbotune::cli
