// Runs one case of this test program in a process of its own, with variables set.
#pragma once

#include <map>
#include <string>

namespace turbotune::test {

struct Finished {
    // The case ran, checked something, and held: a name that matches no case also ends with code 0.
    bool passed() const { return exit_code == 0 && output.find("All tests passed (") != std::string::npos; }

    int exit_code = -1;  // 128 + the signal when it was killed, 124 when it did not end in time
    std::string output;  // standard output and error
};

// Such a case is hidden; a runner that lists every case but a few starts it all the same, and it returns at once.
Finished run_self(const std::string& test_case, const std::map<std::string, std::string>& variables);

// Whether this process was started by run_self.
bool is_child();

// Compiles fake_driver/fake_libcuda.cpp into `directory` as libcuda.so.1; the compiler's output when it failed.
std::string build_fake_driver(const std::string& directory, const std::string& options = "");

}  // namespace turbotune::test
