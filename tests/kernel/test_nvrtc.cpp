// Compiles with NVRTC; needs no GPU. Skipped, by saying so, where there is no NVRTC.
#include <algorithm>

#include "catch.h"
#include "kernel_testing.h"
#include "turbotune/base/error.h"
#include "turbotune/base/log.h"
#include "turbotune/device/device_info.h"
#include "turbotune/kernel/compiler.h"
#include "turbotune/kernel/kernel_cache.h"

using namespace turbotune;
using namespace turbotune::testing;
namespace fs = std::filesystem;

namespace {

bool have_nvrtc() {
    try {
        nvrtc_compiler().identity();
        return true;
    } catch (const CompileError& error) {
        WARN(error.what());
        return false;
    }
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

CompileRequest request(const std::string& source, const std::string& target = "sm_90a", const std::string& name = "k") {
    return {source, name, target, "test/k.cu"};
}

const char* const kSpilling = R"(
extern "C" __global__ void __launch_bounds__(1024, 2) k(float* p) {
    __shared__ float s[64];
    float a[96];
    s[threadIdx.x % 64] = p[threadIdx.x];
#pragma unroll
    for (int i = 0; i < 96; ++i) a[i] = p[i * 1024 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 96; ++i) p[i * 1024 + threadIdx.x] = a[i] * a[(i * 37) % 96] + s[i % 64];
})";

// The accumulator is touched while the product is in flight.
const char* const kSerialised = R"(
extern "C" __global__ void __launch_bounds__(128) k(float* p, unsigned long long da, unsigned long long db, int n) {
    float d[4];
    for (int i = 0; i < 4; i++) d[i] = p[i];
    for (int i = 0; i < n; i++) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        asm volatile("{wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;}"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(da + i), "l"(db));
        d[0] += p[i];
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < 4; i++) p[i] = d[i];
})";

}  // namespace

TEST_CASE("A source becomes a cubin, with its numbers", "[nvrtc]") {
    if (!have_nvrtc()) return;
    const Image image = nvrtc_compiler().compile(request(kSpilling));
    CHECK(image.bytes.substr(0, 4) ==
          "\x7f"
          "ELF");
    CHECK(image.metadata.kernel_name == "k");
    CHECK(image.metadata.registers == 32);  // what the launch bounds leave
    CHECK(image.metadata.spill_store_bytes > 0);
    CHECK(image.metadata.spill_load_bytes > 0);
    CHECK(image.metadata.local_bytes >= image.metadata.spill_store_bytes / 2);
    CHECK(image.metadata.static_shared_bytes == 256);
    CHECK(image.metadata.compile_ms > 0);
    const Image plain = nvrtc_compiler().compile(request("extern \"C\" __global__ void k(float* p) { p[0] = 1; }"));
    CHECK(plain.metadata.spill_store_bytes == 0);
    CHECK(plain.metadata.local_bytes == 0);
    CHECK(plain.metadata.static_shared_bytes == 0);
}

TEST_CASE("The numbers are those of the kernel asked for", "[nvrtc]") {
    TempFolder temp;
    ScopedVariable variable("TMPDIR", temp.path());
    if (!have_nvrtc()) return;
    const std::string source =
        "extern \"C\" __global__ void a(float* p) { __shared__ float s[32]; s[threadIdx.x] = p[0]; __syncthreads(); "
        "p[1] = s[31 - threadIdx.x]; }\n"
        "extern \"C\" __global__ void b(float* p) { p[0] = 2; }\n";
    CHECK(nvrtc_compiler().compile(request(source, "sm_80", "a")).metadata.static_shared_bytes == 128);
    CHECK(nvrtc_compiler().compile(request(source, "sm_80", "b")).metadata.static_shared_bytes == 0);
    REQUIRE_THROWS_AS(nvrtc_compiler().compile(request(source, "sm_80", "c")), CompileError);
}

TEST_CASE("child: compiles twice in an empty home", "[.][child]") {
    if (!is_child()) return;
    const Image first = nvrtc_compiler().compile(request(kSpilling)),
                second = nvrtc_compiler().compile(request(kSpilling));
    CHECK(first.metadata.registers == second.metadata.registers);
    CHECK(first.metadata.registers > 0);
    CHECK(first.metadata.local_bytes == second.metadata.local_bytes);
    CHECK(first.metadata.spill_store_bytes == second.metadata.spill_store_bytes);
    CHECK(first.metadata.spill_load_bytes == second.metadata.spill_load_bytes);
    CHECK(first.metadata.static_shared_bytes == second.metadata.static_shared_bytes);
    CHECK(contains(second.log, "Compiling entry function 'k'"));
    CHECK(first.bytes == second.bytes);
}

TEST_CASE("Two compiles report alike, and nothing is kept in the home directory", "[nvrtc][field-13]") {
    if (!have_nvrtc()) return;
    TempFolder folder;
    for (int run = 0; run < 2; ++run) {
        Child child("child: compiles twice in an empty home",
                    {{"HOME", folder.path()}, {"XDG_CACHE_HOME", ""}, {"CUDA_CACHE_PATH", ""}});
        const int code = child.wait();
        INFO(child.output());
        CHECK(code == 0);
    }
    CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("child: compiles with nothing around it", "[.][child]") {
    if (!is_child()) return;
    REQUIRE(::chdir("/") == 0);
    KernelCache cache{Store::Options{}};
    KernelOrigin origin{};
    for (const char* target : {"sm_80", "sm_90a", "sm_100a", "sm_120a"}) {
        const KernelMetadata metadata = cache.prepare(axpy_cuda_spec(target), &origin);
        CHECK(origin == KernelOrigin::compiled);
        CHECK(metadata.registers > 0);
    }
}

TEST_CASE("Compiling needs no include path, no toolkit folder and no program", "[nvrtc][field-11]") {
    if (!have_nvrtc()) return;
    TempFolder folder("mit Leerzeichen é");
    write_templates(folder / "templates");
    Child child("child: compiles with nothing around it", {{"PATH", "/nonexistent"},
                                                           {"CPATH", ""},
                                                           {"CUDA_HOME", ""},
                                                           {"CUDA_PATH", ""},
                                                           {"HOME", folder / "none"},
                                                           {"TURBOTUNE_TEMPLATE_DIR", folder / "templates"},
                                                           {"TURBOTUNE_CACHE_DIR", folder / "store"}});
    const int code = child.wait();
    INFO(child.output());
    CHECK(code == 0);
}

TEST_CASE("child: compiles without the builtins library", "[.][child]") {
    if (!is_child()) return;
    CHECK_FALSE(nvrtc_compiler().identity().empty());
    try {
        nvrtc_compiler().compile(
            request("extern \"C\" __global__ void k(float* p) { p[0] = __fdividef(p[1], p[2]); }"));
        FAIL("compiled without its builtins");
    } catch (const CompileError& error) {
        INFO(error.what());
        CHECK(contains(error.what(), "libnvrtc-builtins.so."));
        CHECK(contains(error.what(), "looked in " + variable("LIBRARY_FOLDER")));
    }
}

TEST_CASE("A libnvrtc without its builtins names the file and the folder", "[nvrtc][field-11]") {
    if (!have_nvrtc()) return;
    fs::path library;
    for (const char* folder :
         {"/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib", "/usr/lib/x86_64-linux-gnu"}) {
        for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12"}) {
            if (library.empty() && fs::exists(fs::path(folder) / name))
                library = fs::canonical(fs::path(folder) / name);
        }
    }
    if (library.empty()) return;
    TempFolder folder;
    const std::string copy = folder / "libnvrtc.so.13";
    std::error_code error;
    fs::create_hard_link(library, copy, error);  // 100 MB otherwise
    if (error) fs::copy_file(library, copy);
    Child child("child: compiles without the builtins library",
                {{"TURBOTUNE_NVRTC", copy}, {"LIBRARY_FOLDER", folder.path()}});
    const int code = child.wait();
    INFO(child.output());
    CHECK(code == 0);
}

TEST_CASE("child: looks for an NVRTC that is not there", "[.][child]") {
    if (!is_child()) return;
    try {
        nvrtc_compiler().identity();
        FAIL("found one");
    } catch (const CompileError& error) {
        CHECK(contains(error.what(), variable("TURBOTUNE_NVRTC")));
    }
    REQUIRE_THROWS_AS(nvrtc_compiler().compile(request("")), CompileError);
}

TEST_CASE("No NVRTC is an error that says where it was looked for", "[nvrtc]") {
    TempFolder folder;
    Child child("child: looks for an NVRTC that is not there", {{"TURBOTUNE_NVRTC", folder / "libnvrtc.so.13"}});
    const int code = child.wait();
    INFO(child.output());
    CHECK(code == 0);
}

TEST_CASE("Each arch compiles under the name that its features need", "[nvrtc][field-12]") {
    if (!have_nvrtc()) return;
    const auto known = nvrtc_targets();
    const std::string source = "extern \"C\" __global__ void k(float* p) { p[0] = 1; }";
    for (const auto& [major, minor] : {std::pair{8, 0}, std::pair{9, 0}, std::pair{10, 0}, std::pair{12, 0}}) {
        const std::string target = cuda_target(major, minor);
        INFO(target);
        REQUIRE(std::find(known.begin(), known.end(), target) != known.end());
        CHECK_FALSE(nvrtc_compiler().compile(request(source, target)).bytes.empty());
    }
    CHECK(cuda_target(9, 0) == "sm_90a");
    CHECK(cuda_target(10, 0) == "sm_100a");
    CHECK(cuda_target(12, 0) == "sm_120a");
}

TEST_CASE("An arch that this NVRTC does not know gives the list of those it knows", "[nvrtc][field-12]") {
    if (!have_nvrtc()) return;
    for (const char* target : {"sm_77", "sm_999a", "nonsense"}) {
        try {
            nvrtc_compiler().compile(request("extern \"C\" __global__ void k() {}", target));
            FAIL("compiled for " << target);
        } catch (const CompileError& error) {
            INFO(error.what());
            CHECK(contains(error.what(), std::string("does not know ") + target));
            CHECK(contains(error.what(), "sm_90a"));
        }
    }
}

TEST_CASE("Every arch on the list compiles", "[nvrtc][field-12]") {
    if (!have_nvrtc()) return;
    for (const std::string& target : nvrtc_targets()) {
        INFO(target);
        CHECK_FALSE(nvrtc_compiler().compile(request("extern \"C\" __global__ void k() {}", target)).bytes.empty());
    }
}

TEST_CASE("Serialised wgmma is an error", "[nvrtc]") {
    TempFolder temp;
    ScopedVariable variable("TMPDIR", temp.path());
    if (!have_nvrtc()) return;
    try {
        nvrtc_compiler().compile(request(kSerialised));
        FAIL("accepted");
    } catch (const CompileError& error) {
        CHECK(contains(error.what(), "wgmma is serialised"));
        CHECK(contains(error.log(), "C751"));
    }
}

TEST_CASE("A compile error carries the log, the options, the source and the template's line", "[nvrtc]") {
    if (!have_nvrtc()) return;
    TempFolder folder, temp;
    ScopedVariable templates("TURBOTUNE_TEMPLATE_DIR", folder.path()), temporary("TMPDIR", temp.path());
    write_text(folder / "common/a.h", "#pragma once\n__device__ int fine();\n");
    write_text(
        folder / "op/k.cu",
        "#include \"config\"\n#include \"common/a.h\"\nextern \"C\" __global__ void k() {\n    unknown_name;\n}\n");
    const KernelSpec spec{"op/k.cu", "k", Fields{{"block_m", std::int64_t{64}}}, "sm_80"};
    try {
        KernelCache(Store::Options{"", 1 << 20, true}).prepare(spec);
        FAIL("compiled");
    } catch (const CompileError& error) {
        INFO(error.what());
        CHECK(contains(error.what(), spec.to_string()));
        CHECK(contains(error.what(), "op/k.cu(4): error"));
        CHECK(contains(error.log(), "unknown_name"));
        CHECK(contains(error.options(), "--gpu-architecture=sm_80"));
        CHECK(read_text(error.source_path()) == render(spec));
    }
}

TEST_CASE("child: tells the compiler's identity", "[.][child]") {
    if (!is_child()) return;
    CHECK(nvrtc_compiler().identity() == variable("EXPECT_IDENTITY"));
    CHECK_FALSE(nvrtc_loaded());
}

TEST_CASE("The identity is read from the file, build id included, without loading it", "[nvrtc][field-07]") {
    TempFolder folder("mit Leerzeichen é");
    // A library that only has what the identity is read from.
    write_text(folder / "fake.cpp",
               "extern \"C\" const char text[] = \"Cuda compilation tools, release 13.1, V13.1.5\";\n");
    for (const char* id : {"0123456789abcdef0123456789abcdef", "0123456789abcdee0123456789abcdef"}) {
        const std::string library = folder / "libnvrtc.so.13";
        const std::string command = "c++ -shared -fPIC -Wl,--build-id=0x" + std::string(id) + " -o '" + library +
                                    "' '" + folder / "fake.cpp" + "'";
        if (std::system(command.c_str()) != 0) return;
        const std::string identity = "nvrtc-13.1.5+" + std::string(id).substr(0, 16);
        Child named("child: tells the compiler's identity",
                    {{"TURBOTUNE_NVRTC", library}, {"EXPECT_IDENTITY", identity}});
        const int code = named.wait();
        INFO(named.output());
        CHECK(code == 0);
        Child found("child: tells the compiler's identity", {{"TURBOTUNE_NVRTC", ""},
                                                             {"LD_LIBRARY_PATH", "/nonexistent:" + folder.path()},
                                                             {"EXPECT_IDENTITY", identity}});
        CHECK(found.wait() == 0);
    }
}

TEST_CASE("The identity is the same before and after loading", "[nvrtc]") {
    if (!have_nvrtc()) return;
    const std::string before = nvrtc_compiler().identity();
    nvrtc_targets();
    CHECK(nvrtc_loaded());
    CHECK(nvrtc_compiler().identity() == before);
    CHECK(before.starts_with("nvrtc-1"));
    CHECK(before.find('+') == before.size() - 17);
}

TEST_CASE("child: finds a CUDA image in the store", "[.][child]") {
    if (!is_child()) return;
    KernelCache cache{Store::Options{}};
    KernelOrigin origin{};
    const KernelMetadata metadata = cache.prepare(axpy_cuda_spec(), &origin);
    CHECK(to_string(origin) == variable("EXPECT_ORIGIN"));
    CHECK(metadata.kernel_name == "axpy");
    CHECK(nvrtc_loaded() == (origin == KernelOrigin::compiled));
}

TEST_CASE("A store hit never loads NVRTC", "[nvrtc][cache]") {
    if (!have_nvrtc()) return;
    TempFolder folder;
    write_templates(folder / "templates");
    for (const char* origin : {"compiled", "store"}) {
        Child child("child: finds a CUDA image in the store", {{"EXPECT_ORIGIN", origin},
                                                               {"TURBOTUNE_CACHE_DIR", folder / "store"},
                                                               {"TURBOTUNE_TEMPLATE_DIR", folder / "templates"}});
        const int code = child.wait();
        INFO(child.output());
        CHECK(code == 0);
    }
}
