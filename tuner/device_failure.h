// What an exception thrown while a candidate ran says of the candidate.
#pragma once

#include <exception>
#include <string>

#include "turbotune/base/error.h"

namespace turbotune {

struct CandidateFailure {
    std::string reason;  // a reason of RejectedCandidate
    std::string detail;
    bool fatal = false;  // the device context is lost: no further call in this process can succeed
};

// Reasons of the moment, not of the candidate: memory that other work took, a compiler or worker that was killed, a
// full disk. Such candidates are tried again.
bool may_pass(const std::string& reason);
bool is_out_of_memory(const DeviceError& error);
// After such a driver code every later call in the process fails with the same one.
bool is_sticky(int driver_code);
CandidateFailure describe_failure(std::exception_ptr failure);

}  // namespace turbotune
