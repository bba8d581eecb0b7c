// In place of libFuzzer, where there is none: each argument is an input, or a folder of them.
#include <algorithm>
#include <filesystem>
#include <vector>

#include "fuzz.h"
#include "turbotune/base/files.h"

int main(int argc, char** argv) {
    std::vector<std::string> paths;
    for (int i = 1; i < argc; ++i) {
        if (!std::filesystem::is_directory(argv[i])) {
            paths.emplace_back(argv[i]);
            continue;
        }
        for (const auto& each : std::filesystem::directory_iterator(argv[i])) paths.push_back(each.path().string());
    }
    std::sort(paths.begin(), paths.end());
    for (const std::string& path : paths) {
        const auto bytes = turbotune::read_file(path);
        if (!bytes) {
            std::fprintf(stderr, "%s cannot be read\n", path.c_str());
            return 2;
        }
        std::fprintf(stderr, "%s\n", path.c_str());
        // In a block of its own size, so that a read beyond its end is one beyond the block.
        const std::vector<std::uint8_t> exact(bytes->begin(), bytes->end());
        LLVMFuzzerTestOneInput(exact.data(), exact.size());
    }
    std::printf("%zu inputs\n", paths.size());
    return paths.empty() ? 1 : 0;
}
