// Which candidate is fastest, from samples that carry noise. Works against any timer, so that a simulated one can
// show how often the search errs.
#pragma once

#include <string>
#include <vector>

#include "turbotune/profile/profile.h"

namespace turbotune {

// What the search asks the device: one interleaved round.
class CandidateTimer {
  public:
    virtual ~CandidateTimer() = default;
    // `samples` samples in milliseconds of each candidate (by its index in the search), taking turns, so that the
    // i-th samples of all were taken close together. Fewer than two samples: the candidate failed and is out.
    virtual std::vector<std::vector<double>> round(const std::vector<int>& candidates, int samples) = 0;
    // Asked between rounds; true: stop with what is known.
    virtual bool interrupted() { return false; }
};

struct SearchCandidate {
    int registers = -1;      // of its largest kernel; -1: not known
    double estimate_ms = 0;  // from an earlier, separate measurement; 0: none
    bool incumbent = false;  // the winner of an earlier sweep: judged in the final, whatever came before
};

struct SearchOptions {
    int first_samples = 8;      // of each candidate in the first round; later rounds double them ...
    int rounds = 4;             // ... this often; at most half of the budget goes into them
    int finalists = 3;          // at least so many enter the paired final
    int final_samples = 40;     // of each finalist at least ...
    int most_samples = 1000;    // ... and at most, while the final is not yet precise
    double precision = 0.0007;  // standard error of a paired ratio at which the final ends
    // Candidates this much slower by a separate measurement are not compared at all. Two measurements minutes apart
    // differ by a tenth at times.
    double hopeless = 0.30;
    // Nothing within this of the best is dropped before the final.
    double near = 0.02;
    // A tie: what the final cannot tell apart (three standard errors), yet at least the first and at most the second.
    // The first bounds what the fixed rule may cost, so that a winner lies within 1 % of the best.
    double tie_least = 0.0075, tie_most = 0.02;
    double stay = 0.01;       // for an incumbent in place of the first
    double budget_ms = 4000;  // of timed execution; a round that would pass it takes fewer samples
};

struct SearchResult {
    int winner = -1;                 // -1: none could be timed
    std::vector<Latency> latencies;  // per candidate; samples == 0: not timed, or failed
    bool interrupted = false;
};

// Interleaved rounds drop the slower half, except what is near the best; a paired final follows; ties go to the
// incumbent, then to fewer registers, then to the earlier candidate.
SearchResult search_fastest(CandidateTimer& timer, const std::vector<SearchCandidate>& candidates,
                            const SearchOptions& options = {});

}  // namespace turbotune
