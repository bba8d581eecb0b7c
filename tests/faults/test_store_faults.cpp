// Every file-system call of the store fails in turn. Images come out whole or not at all, kernels run, nothing half is
// published, and the next process finds a store that works.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>

#include "../kernel/kernel_testing.h"
#include "catch.h"
#include "file_calls.h"
#include "turbotune/base/log.h"
#include "turbotune/device/device.h"
#include "turbotune/kernel/kernel_cache.h"

using namespace turbotune;
using namespace turbotune::testing;
using turbotune::test::Fault;
using turbotune::test::FileCalls;

namespace {

constexpr std::size_t kBytes = 3000;

const int kErrors[] = {EROFS, EACCES, ENOSPC, EINTR, EDQUOT, EIO, EMFILE, ENOENT, ESTALE};

bool is_image(const std::optional<Image>& image, unsigned seed) {
    return !image || (image->bytes == make_image(seed, kBytes).bytes &&
                      image->metadata.kernel_name == make_image(seed, kBytes).metadata.kernel_name);
}

// What a test does with a store while calls fail. Returns false for a wrong image.
using Use = std::function<bool(Store&)>;

bool write_then_read(Store& store) {
    bool right = true;
    for (const unsigned seed : {1u, 2u}) {
        right &= is_image(store.find(make_key(seed)), seed);
        const FileLock lock = store.lock_for_compile(make_key(seed));
        right &= is_image(store.find(make_key(seed)), seed);
        store.put(make_key(seed), make_image(seed, kBytes));
    }
    for (const unsigned seed : {1u, 2u}) right &= is_image(store.find(make_key(seed)), seed);
    return right;
}

void fill(const std::string& folder, std::initializer_list<unsigned> seeds) {
    Store store(options_at(folder));
    for (const unsigned seed : seeds) store.put(make_key(seed), make_image(seed, kBytes));
}

void check_folder(const std::string& folder) {
    // Whatever can be found is whole, and what the next process writes is kept.
    Store next(options_at(folder));
    for (const StoreEntryInfo& entry : next.list(true)) CHECK(entry.problem == "");
    next.put(make_key(9), make_image(9, kBytes));
    const auto found = Store(options_at(folder)).find(make_key(9));
    REQUIRE(found);
    CHECK(is_image(found, 9));
}

// Fails call 1, 2, ... of `use` on a fresh folder each, once and for good, until it makes no more calls.
int fail_each_call(int error, const std::function<void(const std::string&)>& prepare, const Use& use,
                   std::int64_t max_bytes = std::int64_t{1} << 30,
                   const std::function<void(const std::string&, bool)>& afterwards = {}) {
    int calls = 0;
    for (const bool for_good : {false, true})
        for (int at = 1;; ++at) {
            const TempFolder folder;
            const std::string path = folder / "store";
            prepare(path);
            Store::Options options = options_at(path);
            options.max_bytes = max_bytes;
            std::string failed;
            bool right = false, reached = false;
            {
                Store store(options);
                const FileCalls file_calls({path, at, error, for_good});
                right = use(store);
                failed = file_calls.failed();
                reached = file_calls.count() >= at;
                calls = std::max(calls, file_calls.count());
            }
            INFO(std::strerror(error) << (for_good ? " from" : " at") << " call " << at << ": " << failed);
            CHECK(right);
            check_folder(path);
            if (afterwards) afterwards(path, for_good);
            if (!reached) break;
        }
    return calls;
}

void nothing(const std::string&) {}

// Warnings of thousands of faults would fill the screen.
struct Quiet {
    Quiet() { set_log_level(LogLevel::off); }
    ~Quiet() { set_log_level(LogLevel::warn); }
    // Every write is synced, to no disk where that is possible.
    ScopedVariable temp{"TMPDIR", directory_exists("/dev/shm") ? "/dev/shm" : "/tmp"};
};

}  // namespace

TEST_CASE("Any file call may fail while images are written and read: none is wrong, half or lost for the next process",
          "[faults][field-14]") {
    const Quiet quiet;
    for (const int error : kErrors) CHECK(fail_each_call(error, nothing, write_then_read) > 20);
}

TEST_CASE("A call that a signal interrupts is made again: the image is published all the same", "[faults]") {
    const Quiet quiet;
    const auto published = [](const std::string& path, bool for_good) {
        INFO(for_good);
        Store next(options_at(path));
        CHECK(is_image(next.find(make_key(1)), 1));
        CHECK(next.find(make_key(1)).has_value());
        CHECK(next.find(make_key(2)).has_value());
    };
    CHECK(fail_each_call(EINTR, nothing, write_then_read, std::int64_t{1} << 30, published) > 20);
}

TEST_CASE("Any file call may fail while a full store makes room", "[faults][field-09]") {
    const Quiet quiet;
    for (const int error : {EACCES, EROFS, EIO, EINTR})
        CHECK(fail_each_call(
                  error,
                  [](const std::string& folder) {
                      fill(folder, {3, 4, 5});
                  },
                  write_then_read, 3 * kBytes) > 30);
}

TEST_CASE("Any file call may fail while a damaged entry is set aside", "[faults][field-08]") {
    const Quiet quiet;
    const auto damage = [](const std::string& folder) {
        fill(folder, {1, 2});
        for (const StoreEntryInfo& entry : Store(options_at(folder)).list(false)) {
            std::string bytes = read_text(entry.path);
            bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
            write_text(entry.path, bytes);
        }
    };
    // One that could not be renamed stays, and stays a miss: check it before the folder is looked through.
    for (const int error : {EACCES, EROFS, EIO, EINTR})
        for (int at = 1; at < 200; ++at) {
            const TempFolder folder;
            damage(folder / "store");
            Store store(options_at(folder / "store"));
            const FileCalls file_calls({folder / "store", at, error, true});
            CHECK(write_then_read(store));
            if (file_calls.count() < at) break;
            CHECK(at < 199);
        }
}

TEST_CASE("Any file call may fail while a store is listed, verified and cleared", "[faults]") {
    const Quiet quiet;
    const auto look = [](Store& store) {
        bool right = true;
        for (const StoreEntryInfo& entry : store.list(true))
            right &= entry.problem.empty() || entry.metadata.kernel_name.empty();
        store.list(false);
        store.clear();
        return right;
    };
    for (const int error : {EACCES, EROFS, EIO, EINTR})
        CHECK(fail_each_call(
                  error,
                  [](const std::string& folder) {
                      fill(folder, {3, 4});
                  },
                  look) > 10);
}

TEST_CASE("Any file call may fail under a kernel that is compiled and run: the launch succeeds", "[faults][field-14]") {
    const Quiet quiet;
    const TempFolder folder;
    const ScopedVariable templates("TURBOTUNE_TEMPLATE_DIR", folder / "templates");
    write_text(folder / "templates/test/answer.cpp",
               "struct HostBlock;\nextern \"C\" void answer(const HostBlock*, void** p) { **(int**)p[0] = 42; }\n");
    Device& device = open_device("cpu");
    const KernelSpec spec{"test/answer.cpp", "answer", {}, device.info().target()};
    const auto run = [&](const std::string& path, int at, int error) {
        KernelCache cache(options_at(path));
        const FileCalls file_calls({path, at, error, true});
        int result = 0;
        int* pointer = &result;
        void* parameters[] = {&pointer};
        cache.get(device, spec)->launch({}, parameters, nullptr);
        CHECK(result == 42);
        return file_calls.count();
    };
    const int calls = run(folder / "counted", 0, 0);
    CHECK(calls > 10);
    for (const int error : {EROFS, EACCES, ENOSPC, EINTR})
        for (int at = 1; at <= calls; at += error == ENOSPC ? 1 : 3) {  // each costs a compile
            INFO(std::strerror(error) << " from call " << at);
            const std::string path = folder / (std::to_string(error) + "-" + std::to_string(at));
            run(path, at, error);
            for (const StoreEntryInfo& entry : Store(options_at(path)).list(true)) CHECK(entry.problem == "");
        }
}
