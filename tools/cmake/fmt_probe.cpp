// Links only when fmt_library.cpp gives all that formatting needs.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

int main(int argc, char**) {
    const std::vector<std::string> words = {"a", "b"};
    fmt::print("{} {:5.2f} {:08x} {:>8} {:g} {} {:L}\n", argc, 1.5 * argc, 255u, "y", 1.5f, fmt::join(words, ", "), 1234567);
    fmt::print(stderr, "{:%Y}\n", fmt::gmtime(std::time_t{0}));
}
