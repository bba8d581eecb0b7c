#include <cmath>
#include <limits>
#include <set>

#include "catch.h"
#include "kernel_testing.h"
#include "turbotune/base/error.h"
#include "turbotune/device/device.h"
#include "turbotune/kernel/compiler.h"
#include "turbotune/kernel/loaded_kernel.h"

using namespace turbotune;
using namespace turbotune::testing;
namespace fs = std::filesystem;

namespace {

const char* const kHostBlock =
    "struct HostBlock { unsigned x, y, z, grid_x, grid_y, grid_z, thread, threads; void* scratch; };\n";

CompileRequest request(const std::string& body) {
    return {kHostBlock + body, "k", open_device("cpu").info().target(), "test/k.cpp"};
}

std::shared_ptr<LoadedKernel> load(const std::string& body) {
    return load_kernel(open_device("cpu"), host_compiler().compile(request(body)));
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("Every block of a three-dimensional grid runs once", "[host]") {
    const auto kernel = load(R"(
extern "C" void k(const HostBlock* b, void** p) {
    int* out = *static_cast<int**>(p[0]);
    out[(b->z * b->grid_y + b->y) * b->grid_x + b->x] += 1 + int(b->x + 10 * b->y + 100 * b->z);
})");
    std::vector<int> out(4 * 3 * 2, 0);
    int* pointer = out.data();
    void* parameters[] = {&pointer};
    LaunchShape shape;
    shape.grid[0] = 4;
    shape.grid[1] = 3;
    shape.grid[2] = 2;
    kernel->launch(shape, parameters, nullptr);
    for (int z = 0; z < 2; ++z)
        for (int y = 0; y < 3; ++y)
            for (int x = 0; x < 4; ++x)
                CHECK(out[static_cast<std::size_t>((z * 3 + y) * 4 + x)] == 1 + x + 10 * y + 100 * z);
    CHECK(kernel->metadata().kernel_name == "k");
    CHECK(kernel->metadata().registers == -1);
    CHECK(kernel->blocks_per_sm(shape) == 1);
}

TEST_CASE("Each worker has aligned scratch of its own", "[host]") {
    const auto kernel = load(R"(
#include <cstdint>
#include <cstring>
extern "C" void k(const HostBlock* b, void** p) {
    int* out = *static_cast<int**>(p[0]);
    const int bytes = *static_cast<const int*>(p[1]);
    unsigned char* scratch = static_cast<unsigned char*>(b->scratch);
    std::memset(scratch, int(b->x & 255), bytes);
    bool whole = reinterpret_cast<std::uintptr_t>(scratch) % 64 == 0 && b->thread < b->threads;
    for (int i = 0; i < bytes; ++i) whole = whole && scratch[i] == (b->x & 255);
    out[b->x] = whole;
})");
    std::vector<int> out(500, 0);
    int* pointer = out.data();
    int bytes = 20000;
    void* parameters[] = {&pointer, &bytes};
    LaunchShape shape;
    shape.grid[0] = 500;
    shape.shared_bytes = 20000;
    kernel->allow_shared_memory(shape.shared_bytes);
    kernel->launch(shape, parameters, nullptr);
    CHECK(out == std::vector<int>(500, 1));
}

TEST_CASE("Infinities and NaN come out as elsewhere", "[host]") {
    const auto kernel = load(R"(
#include <cmath>
#include <limits>
extern "C" void k(const HostBlock*, void** p) {
    float* x = *static_cast<float**>(p[0]);
    for (int i = 0; i < 64; ++i) x[i] = std::isnan(x[i]) ? 1.0f : std::isinf(x[i]) ? 2.0f : std::exp(-x[i] / 0.0f);
})");
    std::vector<float> x(64, 5.0f);
    x[3] = std::numeric_limits<float>::quiet_NaN();
    x[7] = -std::numeric_limits<float>::infinity();
    float* pointer = x.data();
    void* parameters[] = {&pointer};
    kernel->launch({}, parameters, nullptr);
    CHECK(x[3] == 1.0f);
    CHECK(x[7] == 2.0f);
    CHECK(x[0] == 0.0f);
}

TEST_CASE("Two images under the same symbol are two kernels", "[host]") {
    std::vector<std::shared_ptr<LoadedKernel>> kernels;
    for (int round = 0; round < 3; ++round) {  // descriptor numbers come again
        for (int i = 0; i < 3; ++i)
            kernels.push_back(load("extern \"C\" void k(const HostBlock*, void** p) { *static_cast<int*>(p[0]) = " +
                                   std::to_string(10 * round + i) + "; }"));
        if (round == 0) kernels.erase(kernels.begin());
    }
    std::set<int> values;
    for (const auto& kernel : kernels) {
        int value = -1;
        void* parameters[] = {&value};
        kernel->launch({}, parameters, nullptr);
        values.insert(value);
    }
    CHECK(values == std::set<int>{1, 2, 10, 11, 12, 20, 21, 22});
}

TEST_CASE("A host compile error carries the log, the options and the source", "[host]") {
    TempFolder temp;
    ScopedVariable variable("TMPDIR", temp.path());
    try {
        host_compiler().compile(
            request("#line 7 \"op/k.cpp\"\nextern \"C\" void k(const HostBlock*, void**) { unknown_name; }\n"));
        FAIL("compiled");
    } catch (const CompileError& error) {
        INFO(error.what());
        CHECK(contains(error.what(), "op/k.cpp:7"));
        CHECK(contains(error.log(), "unknown_name"));
        CHECK(contains(error.options(), "-O3"));
        CHECK(contains(read_text(error.source_path()), "unknown_name"));
    }
    REQUIRE_THROWS_AS(host_compiler().compile(request("extern \"C\" void other(const HostBlock*, void**) {}")),
                      CompileError);
    REQUIRE_THROWS_AS(host_compiler().compile(
                          request("void missing(); extern \"C\" void k(const HostBlock*, void**) { missing(); }")),
                      CompileError);
}

TEST_CASE("Bytes that are no shared object, or lack the symbol, are a typed error", "[host]") {
    Image image;
    image.bytes = "not a library";
    image.metadata.kernel_name = "k";
    REQUIRE_THROWS_AS(load_kernel(open_device("cpu"), image), DeviceError);
    image = host_compiler().compile(request("extern \"C\" void k(const HostBlock*, void**) {}"));
    image.metadata.kernel_name = "l";
    REQUIRE_THROWS_AS(load_kernel(open_device("cpu"), image), DeviceError);
}

TEST_CASE("child: has no C++ compiler", "[.][child]") {
    if (!is_child()) return;
    try {
        host_compiler().identity();
        FAIL("found one");
    } catch (const CompileError& error) {
        CHECK(contains(error.what(), "no C++ compiler: looked for $CXX, c++, g++, clang++ along PATH"));
    }
    REQUIRE_THROWS_AS(host_compiler().compile(request("")), CompileError);
}

TEST_CASE("No C++ compiler is a typed error that says what was looked for", "[host]") {
    TempFolder folder;
    for (const std::string& cxx : {std::string(), folder / "nothing", std::string("no-such-compiler -m64")}) {
        Child child("child: has no C++ compiler", {{"PATH", folder.path()}, {"CXX", cxx}});
        const int code = child.wait();
        INFO(child.output());
        CHECK(code == 0);
    }
}

TEST_CASE("child: tells the host compiler's identity", "[.][child]") {
    if (!is_child()) return;
    write_text(variable("IDENTITY_FILE"), host_compiler().identity());
    CHECK_FALSE(host_compiler().identity().empty());
    if (!variable("COMPILES").empty())
        CHECK_FALSE(host_compiler().compile(request("extern \"C\" void k(const HostBlock*, void**) {}")).bytes.empty());
}

TEST_CASE("$CXX may hold spaces and arguments, and its file's bytes are its identity", "[host][field-07][field-10]") {
    TempFolder folder("mit Leerzeichen é");
    const auto identity = [&](const std::string& cxx, const std::string& path, bool compiles) {
        Child child("child: tells the host compiler's identity", {{"CXX", cxx},
                                                                  {"PATH", path},
                                                                  {"IDENTITY_FILE", folder / "identity"},
                                                                  {"COMPILES", compiles ? "1" : ""},
                                                                  {"TMPDIR", folder.path()}});
        const int code = child.wait();
        INFO(child.output());
        CHECK(code == 0);
        return read_text(folder / "identity");
    };
    const std::string path = "/usr/local/bin:/usr/bin:/bin", script = folder / "my compiler";
    write_text(script, "#!/bin/sh\nexec /usr/bin/c++ \"$@\"\n", 0755);
    const std::string first = identity(script, path, true);
    write_text(script, "#!/bin/sh\nexec /usr/bin/c++  \"$@\"\n", 0755);
    const std::string second = identity(script, path, false);
    const std::string plain = identity("c++", path, false), with_argument = identity("c++ -m64", path, true);
    CHECK(first.starts_with("my compiler+"));
    CHECK(std::set<std::string>{first, second, plain, with_argument}.size() == 4);
    CHECK(with_argument == plain + " -m64");
    CHECK(identity("", path, false) == plain);
    CHECK(identity("/nonexistent/compiler", path, false) == plain);
    for (const std::string& file : files_below(folder.path())) CHECK_FALSE(contains(file, "kernel.so"));
}
