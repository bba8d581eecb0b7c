// File-system calls that fail when told. This program defines open, write, rename and so on itself, in front of the C
// library's, so that whatever is linked into it can be made to see a full disk at any single call.
#pragma once

#include <string>

namespace turbotune::test {

struct Fault {
    std::string folder;     // calls on paths below it, and on files opened there, count
    int at = 0;             // the call that fails, 1-based; 0: none, calls are only counted
    int error = 0;          // errno
    bool for_good = false;  // every call from there on that could meet such a fault, too; EINTR: the next four
};

// While it lives the calls of every thread count, and fail as told. One at a time.
class FileCalls {
  public:
    explicit FileCalls(Fault fault);
    ~FileCalls();
    FileCalls(const FileCalls&) = delete;
    FileCalls& operator=(const FileCalls&) = delete;

    int count() const;           // calls so far
    std::string failed() const;  // the first call that was made to fail: "rename PATH"; empty: none
};

}  // namespace turbotune::test
