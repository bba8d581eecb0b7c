// Several processes on one folder.
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <thread>

#include "catch.h"
#include "kernel_testing.h"
#include "turbotune/base/log.h"
#include "turbotune/device/device.h"
#include "turbotune/kernel/kernel_cache.h"

using namespace turbotune;
using namespace turbotune::testing;
using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

namespace {

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

bool wait_for_file(const std::string& path, double seconds) {
    const auto start = Clock::now();
    while (!fs::exists(path)) {
        if (seconds_since(start) > seconds) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
}

// A compiler that writes a line for each run, and can be told to stall.
std::string make_compiler(const TempFolder& folder) {
    const std::string path = folder / "compiler";
    write_text(path,
               "#!/bin/sh\n"
               "echo run >> '" +
                   folder / "runs" +
                   "'\n"
                   "if [ -e '" +
                   folder / "stall" + "' ]; then echo $$ > '" + folder / "stalled.tmp" + "'; mv '" +
                   folder / "stalled.tmp" + "' '" + folder / "stalled" +
                   "'; exec sleep 300; fi\n"
                   "exec /usr/bin/c++ \"$@\"\n",
               0755);
    return path;
}

int lines_of(const std::string& path) {
    const std::string text = read_text(path);
    return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

Variables cache_variables(const TempFolder& folder) {
    write_templates(folder / "templates");
    fs::create_directories(folder / "temp");  // where a killed compile leaves its source
    return {{"TMPDIR", folder / "temp"},
            {"TURBOTUNE_CACHE_DIR", folder / "store"},
            {"TURBOTUNE_TEMPLATE_DIR", folder / "templates"},
            {"CXX", make_compiler(folder)},
            {"TURBOTUNE_COMPILE_WAIT_S", ""},
            {"TURBOTUNE_CPU_THREADS", "2"}};
}

}  // namespace

TEST_CASE("child: gets and runs a host kernel", "[.][child]") {
    if (!is_child()) return;
    Device& device = open_device("cpu");
    KernelCache cache{Store::Options{}};
    KernelOrigin origin{};
    const auto kernel = cache.get(device, axpy_host_spec(device.info().target()), &origin);
    std::vector<float> x(1000, 2.0f), y(1000, 1.0f), out(1000, -1.0f);
    const float *px = x.data(), *py = y.data();
    float* pout = out.data();
    int n = 1000;
    void* parameters[] = {&px, &py, &pout, &n};
    LaunchShape shape;
    shape.grid[0] = 16;
    kernel->launch(shape, parameters, nullptr);
    CHECK(out == std::vector<float>(1000, 7.0f));
    const std::string expected = variable("EXPECT_ORIGIN");
    if (!expected.empty()) CHECK(to_string(origin) == expected);
    CHECK_FALSE(nvrtc_loaded());
}

TEST_CASE("child: writes and reads 200 keys", "[.][child]") {
    if (!is_child()) return;
    Store store(options_at(variable("STORE")));
    const unsigned start = static_cast<unsigned>(std::stoul(variable("START")));
    int wrong = 0;
    for (unsigned i = 0; i < 200; ++i) {
        const unsigned seed = (start + i) % 200;
        if (!store.find(make_key(seed))) store.put(make_key(seed), make_image(seed, 2000));
        const auto found = store.find(make_key(seed));
        wrong += found && found->bytes == make_image(seed, 2000).bytes ? 0 : 1;
    }
    CHECK(wrong == 0);
    CHECK(store.statistics().bad == 0);
}

TEST_CASE("32 processes write 200 keys into one folder", "[store][field-01]") {
    TempFolder folder;
    std::vector<std::unique_ptr<Child>> children;
    for (int i = 0; i < 32; ++i)
        children.push_back(
            std::make_unique<Child>("child: writes and reads 200 keys",
                                    Variables{{"STORE", folder.path()}, {"START", std::to_string(i / 4 * 25)}}));
    for (auto& child : children) {
        const int code = child->wait();
        INFO(child->output());
        CHECK(code == 0);
    }
    const auto entries = Store(options_at(folder.path())).list(true);
    CHECK(entries.size() == 200);
    for (const StoreEntryInfo& entry : entries) CHECK(entry.problem.empty());
    for (const std::string& file : files_below(folder.path())) CHECK(file.find(".tmp") == std::string::npos);
}

TEST_CASE("Eviction is safe beside readers", "[store][field-09]") {
    TempFolder folder;
    Store::Options options = options_at(folder.path());
    options.max_bytes = 200000;
    std::vector<std::thread> readers;
    std::atomic<bool> done{false};
    std::atomic<int> wrong{0}, right{0};
    for (unsigned r = 0; r < 3; ++r) {
        readers.emplace_back([&, r] {
            Store reader(options);
            for (unsigned i = r; !done; i += 7) {
                const auto found = reader.find(make_key(i % 100));
                if (found) (found->bytes == make_image(i % 100, 5000).bytes ? right : wrong)++;
            }
            wrong += static_cast<int>(reader.statistics().bad);
        });
    }
    Store writer(options);
    for (unsigned i = 0; i < 200; ++i) writer.put(make_key(i % 100), make_image(i % 100, 5000));
    done = true;
    for (std::thread& reader : readers) reader.join();
    CHECK(wrong == 0);
    CHECK(right > 0);
    CHECK(writer.statistics().evictions > 0);
}

TEST_CASE("child: holds the lock and stops", "[.][child]") {
    if (!is_child()) return;
    Store store(options_at(variable("STORE")));
    const FileLock lock = store.lock_for_compile(make_key(1));
    REQUIRE(lock.held());
    write_text(variable("STORE") + "/holding", "");
    ::raise(SIGSTOP);
}

TEST_CASE("A stopped holder is named after five seconds and not waited for beyond the bound", "[store][field-02]") {
    TempFolder folder;
    Child holder("child: holds the lock and stops", {{"STORE", folder.path()}});
    REQUIRE(wait_for_file(folder / "holding", 60));
    ScopedVariable wait("TURBOTUNE_COMPILE_WAIT_S", "6.5");
    std::vector<std::string> said;
    set_log_sink([&](LogLevel, const std::string& text) { said.push_back(text); });
    Store store(options_at(folder.path()));
    const auto start = Clock::now();
    const FileLock lock = store.lock_for_compile(make_key(1));
    const double waited = seconds_since(start);
    set_log_sink({});
    CHECK_FALSE(lock.held());
    CHECK(waited >= 6.4);
    CHECK(waited < 20);
    REQUIRE(said.size() == 1);
    CHECK(said[0].find("process " + std::to_string(holder.pid())) != std::string::npos);
    store.put(make_key(1), make_image(1, 100));  // compiled here as well
    CHECK(store.find(make_key(1)));
}

TEST_CASE("A builder killed during a compile leaves nothing to clean up", "[store][field-03]") {
    TempFolder folder;
    Variables variables = cache_variables(folder);
    write_text(folder / "stall", "");
    {
        Child builder("child: gets and runs a host kernel", variables);
        REQUIRE(wait_for_file(folder / "stalled", 60));
    }                                                                               // kill -9
    ::kill(static_cast<pid_t>(std::stoi(read_text(folder / "stalled"))), SIGKILL);  // the compiler, now an orphan
    fs::remove(folder / "stall");
    variables["EXPECT_ORIGIN"] = "compiled";
    const auto start = Clock::now();
    Child next("child: gets and runs a host kernel", variables);
    const int code = next.wait();
    INFO(next.output());
    CHECK(code == 0);
    CHECK(next.output().find("holds") == std::string::npos);
    CHECK(seconds_since(start) < 100);  // far below the wait for a held lock
}

TEST_CASE("16 processes on a cold store compile once", "[store][field-04]") {
    TempFolder folder;
    const Variables variables = cache_variables(folder);
    std::vector<std::unique_ptr<Child>> children;
    for (int i = 0; i < 16; ++i)
        children.push_back(std::make_unique<Child>("child: gets and runs a host kernel", variables));
    for (auto& child : children) {
        const int code = child->wait();
        INFO(child->output());
        CHECK(code == 0);
    }
    CHECK(lines_of(folder / "runs") == 1);
    CHECK(Store(options_at(folder / "store")).list(true).size() == 1);
}

TEST_CASE("A fresh process that hits the store runs no compiler and no NVRTC", "[cache][host]") {
    TempFolder folder;
    Variables variables = cache_variables(folder);
    for (const char* origin : {"compiled", "store", "store"}) {
        variables["EXPECT_ORIGIN"] = origin;
        Child child("child: gets and runs a host kernel", variables);
        const int code = child.wait();
        INFO(child.output());
        CHECK(code == 0);
    }
    CHECK(lines_of(folder / "runs") == 1);
}

TEST_CASE("One changed byte of a template misses, however old the file claims to be", "[cache][field-07]") {
    TempFolder folder;
    Variables variables = cache_variables(folder);
    Child(std::string("child: gets and runs a host kernel"), variables).wait();
    const std::string path = folder / "templates/test/axpy.cpp";
    const auto time = fs::last_write_time(path);
    std::string text = read_text(path);
    text.replace(text.find("+ y[i]"), 6, "+ y[i] ");
    write_text(path, text);
    fs::last_write_time(path, time - std::chrono::hours(1000));
    variables["EXPECT_ORIGIN"] = "compiled";
    Child child("child: gets and runs a host kernel", variables);
    CHECK(child.wait() == 0);
    // Another compiler build is another key as well.
    write_text(folder / "compiler", read_text(folder / "compiler") + "# another build\n", 0755);
    Child other("child: gets and runs a host kernel", variables);
    CHECK(other.wait() == 0);
    CHECK(lines_of(folder / "runs") == 3);
}

TEST_CASE("A damaged entry is compiled anew and the kernel runs", "[cache][field-08]") {
    TempFolder folder;
    Variables variables = cache_variables(folder);
    Child(std::string("child: gets and runs a host kernel"), variables).wait();
    const auto entries = Store(options_at(folder / "store")).list(true);
    REQUIRE(entries.size() == 1);
    std::string bytes = read_text(entries[0].path);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
    write_text(entries[0].path, bytes);
    variables["EXPECT_ORIGIN"] = "compiled";
    Child child("child: gets and runs a host kernel", variables);
    const int code = child.wait();
    INFO(child.output());
    CHECK(code == 0);
    CHECK(child.output().find("compiled anew") != std::string::npos);
    variables["EXPECT_ORIGIN"] = "store";
    CHECK(Child("child: gets and runs a host kernel", variables).wait() == 0);
}

TEST_CASE("A disk that fills up while an entry is written does not fail the kernel", "[cache][field-14]") {
    TempFolder folder;
    Variables variables = cache_variables(folder);
    fs::create_directories(folder / "small");
    // Only root may mount; the refused write is tested for everybody in test_store_directory.cpp.
    const std::string mount = "mount -t tmpfs -o size=16k,mode=755 none '" + folder / "small" + "' 2>/dev/null";
    if (::geteuid() != 0 || std::system(mount.c_str()) != 0) return;
    write_text(folder / "small/filler", std::string(8192, 'x'));
    variables["TURBOTUNE_CACHE_DIR"] = folder / "small";
    variables["EXPECT_ORIGIN"] = "compiled";
    Child child("child: gets and runs a host kernel", variables);
    const int code = child.wait();
    const std::string output = child.output();
    const auto left = files_below(folder / "small");
    const int unmounted = std::system(("umount '" + folder / "small" + "'").c_str());
    INFO(output);
    CHECK(code == 0);
    CHECK(output.find("No space left on device") != std::string::npos);
    for (const std::string& file : left)
        CHECK((file.ends_with("/filler") || file.find("/locks/") != std::string::npos));
    CHECK(unmounted == 0);
}
