#include <cstdio>

#include "turbotune/turbotune.hpp"

int main() {
    turbotune::RuntimeOptions options;
    options.device = "cpu";
    turbotune::Runtime runtime(options);
    std::printf("%s\n", runtime.device().info().name.c_str());
}
