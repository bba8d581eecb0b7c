// Ctrl-C while tuning. The first asks the sweep to finish the current measurement and save; the second asks it to
// return at once, and ends the process with 130 a moment later wherever it stands (everything measured is in the
// journal by then).
#pragma once

#include <atomic>

namespace turbotune::cli {

class Interrupts {
  public:
    Interrupts();   // takes SIGINT, SIGTERM and, unless it is ignored, SIGHUP
    ~Interrupts();  // gives them back
    const std::atomic<int>* count() const;
};

}  // namespace turbotune::cli
