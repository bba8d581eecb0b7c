#include <sys/stat.h>

#include "catch.h"
#include "kernel_testing.h"
#include "turbotune/base/log.h"

using namespace turbotune;
using namespace turbotune::testing;
namespace fs = std::filesystem;

namespace {

std::string path_of(const TempFolder& folder, const StoreKey& key) {
    return folder / key.hex().substr(0, 2) + "/" + key.hex();
}

void check_same(const std::optional<Image>& got, const Image& want) {
    REQUIRE(got);
    CHECK(got->bytes == want.bytes);
    CHECK(got->metadata.kernel_name == want.metadata.kernel_name);
    CHECK(got->metadata.registers == want.metadata.registers);
    CHECK(got->metadata.compile_ms == want.metadata.compile_ms);
}

std::int64_t bytes_below(const std::string& root) {
    std::int64_t bytes = 0;
    for (const std::string& file : files_below(root)) bytes += static_cast<std::int64_t>(fs::file_size(file));
    return bytes;
}

void set_age(const std::string& path, std::chrono::seconds age) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - age);
}

}  // namespace

TEST_CASE("What was put is found, by this store and the next", "[store]") {
    TempFolder folder;
    Image image = make_image(1, 5000);
    image.metadata.local_bytes = 8;
    image.metadata.spill_store_bytes = 4;
    image.log = "a log is not kept";
    Store store(options_at(folder.path()));
    CHECK_FALSE(store.find(make_key(1)));
    store.put(make_key(1), image);
    check_same(store.find(make_key(1)), image);
    Store next(options_at(folder.path()));
    check_same(next.find(make_key(1)), image);
    CHECK(next.find(make_key(1))->metadata.local_bytes == 8);
    CHECK(next.find(make_key(1))->log.empty());
    CHECK_FALSE(next.find(make_key(2)));
    CHECK(store.statistics().misses == 1);
    CHECK(store.statistics().hits == 1);
    CHECK(store.statistics().writes == 1);
    CHECK(store.directory() == folder.path());
    CHECK(store.reason() == "explicit");
}

TEST_CASE("Making a store, and looking into an empty one, leaves no file", "[store]") {
    TempFolder folder;
    Store store(options_at(folder / "not/yet"));
    CHECK_FALSE(store.find(make_key(1)));
    CHECK(store.list(true).empty());
    CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("A memory-only store keeps images and no files", "[store]") {
    Store::Options options;
    options.memory_only = true;
    Store store(options);
    store.put(make_key(1), make_image(1, 100));
    check_same(store.find(make_key(1)), make_image(1, 100));
    CHECK(store.directory().empty());
    CHECK(store.list(false).size() == 1);
    CHECK_FALSE(store.lock_for_compile(make_key(1)).held());
    CHECK(store.clear() == 1);
    CHECK_FALSE(store.find(make_key(1)));
}

TEST_CASE("Every damaged entry is a miss, is set aside and can be written again", "[store][field-08]") {
    TempFolder folder;
    const Image image = make_image(3, 3000);
    const StoreKey key = make_key(3);
    const std::string path = path_of(folder, key);
    Store(options_at(folder.path())).put(key, image);
    const std::string good = read_text(path);
    const auto refused = [&](const std::string& bytes) {
        write_text(path, bytes);
        Store store(options_at(folder.path()));
        const bool verified_bad = !store.list(true).at(0).problem.empty();
        const bool missed = !store.find(key);
        const bool aside = fs::exists(path + ".bad") && !fs::exists(path) && store.statistics().bad == 1;
        store.put(key, image);
        const auto again = store.find(key);
        return verified_bad && missed && aside && again && again->bytes == image.bytes;
    };
    SECTION("one flipped bit, anywhere: 60 of 60") {
        int count = 0;
        for (int i = 0; i < 60; ++i) {
            std::string bytes = good;
            const std::size_t at =
                i < 30 ? static_cast<std::size_t>(i) * 10 : bytes.size() * static_cast<std::size_t>(i - 29) / 31;
            bytes[at] = static_cast<char>(bytes[at] ^ (1 << (i % 8)));
            count += refused(bytes) ? 1 : 0;
        }
        CHECK(count == 60);
    }
    SECTION("every bit of the fixed part") {
        int count = 0;
        for (std::size_t bit = 0; bit < 8 * 124; ++bit) {
            std::string bytes = good;
            bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
            write_text(path, bytes);
            Store store(options_at(folder.path()));
            count += store.find(key) ? 0 : 1;
        }
        CHECK(count == 8 * 124);
    }
    SECTION("truncated") {
        for (const std::size_t size :
             {std::size_t{1}, std::size_t{60}, std::size_t{124}, std::size_t{200}, good.size() / 2, good.size() - 1})
            CHECK(refused(good.substr(0, size)));
    }
    SECTION("a tail of zeros") {
        std::string bytes = good;
        std::fill(bytes.end() - 512, bytes.end(), '\0');
        CHECK(refused(bytes));
    }
    SECTION("something behind the end") {
        CHECK(refused(good + "x"));
    }
    SECTION("empty") {
        CHECK(refused(""));
    }
    SECTION("something else") {
        CHECK(refused("not an entry at all, but long enough to hold a header: " + std::string(200, 'x')));
    }
}

TEST_CASE("An entry of another schema is a miss that says so, and is made anew", "[store][field-23]") {
    TempFolder folder;
    const StoreKey key = make_key(3);
    const std::string path = path_of(folder, key);
    for (const char schema : {0, 2}) {
        Store(options_at(folder.path())).put(key, make_image(3, 3000));
        std::string bytes = read_text(path);
        bytes[8] = schema;
        write_text(path, bytes);
        Store store(options_at(folder.path()));
        CHECK(store.list(true).at(0).problem == "its schema is " + std::to_string(int(schema)) + ", not 1");
        CHECK_FALSE(store.find(key));
        store.put(key, make_image(3, 3000));
        check_same(store.find(key), make_image(3, 3000));
    }
}

TEST_CASE("Two entries that changed places are both refused", "[store][field-08]") {
    TempFolder folder;
    Store store(options_at(folder.path()));
    store.put(make_key(1), make_image(1, 500));
    store.put(make_key(2), make_image(2, 500));
    const std::string one = path_of(folder, make_key(1)), two = path_of(folder, make_key(2));
    fs::rename(one, folder / "third");
    fs::rename(two, one);
    fs::rename(folder / "third", two);
    CHECK_FALSE(store.find(make_key(1)));
    CHECK_FALSE(store.find(make_key(2)));
    CHECK(store.statistics().bad == 2);
}

TEST_CASE("Many bad entries give one warning for one reason", "[store][field-08]") {
    TempFolder folder;
    std::vector<std::string> warnings;
    set_log_sink([&](LogLevel level, const std::string& text) {
        if (level == LogLevel::warn) warnings.push_back(text);
    });
    {
        Store store(options_at(folder.path()));
        for (unsigned i = 0; i < 20; ++i) {
            store.put(make_key(i), make_image(i, 100));
            write_text(path_of(folder, make_key(i)),
                       "a foreign file of more than a hundred and twenty four bytes " + std::string(100, 'y'));
            CHECK_FALSE(store.find(make_key(i)));
        }
    }
    set_log_sink({});
    CHECK(warnings.size() <= 1);  // none when an earlier test of this process met the same reason
}

TEST_CASE("A bounded store ends under its bound and keeps what was used last", "[store][slow][field-09]") {
    TempFolder folder;
    Store::Options options = options_at(folder.path());
    options.max_bytes = 10'000'000;
    Store store(options);
    const unsigned hot = 10;
    for (unsigned i = 0; i < 1000; ++i) {
        store.put(make_key(i), make_image(i, 30000));
        if (i < hot || i % 20 != 0) continue;
        for (unsigned h = 0; h < hot; ++h) {  // long unused, then used
            set_age(path_of(folder, make_key(h)), std::chrono::hours(2));
            REQUIRE(store.find(make_key(h)));
        }
    }
    CHECK(bytes_below(folder.path()) <= options.max_bytes);
    for (unsigned i = 0; i < hot; ++i) check_same(store.find(make_key(i)), make_image(i, 30000));
    for (unsigned i = 980; i < 1000; ++i) check_same(store.find(make_key(i)), make_image(i, 30000));
    CHECK_FALSE(store.find(make_key(500)));
    const StoreStatistics statistics = store.statistics();
    CHECK(statistics.evictions + statistics.entries == 1000);
    CHECK(statistics.bytes <= options.max_bytes);
    for (const StoreEntryInfo& entry : store.list(true)) CHECK(entry.problem.empty());
}

TEST_CASE("Files set aside and temporaries of killed writers do not pile up", "[store][field-09]") {
    TempFolder folder;
    Store::Options options = options_at(folder.path());
    options.max_bytes = 20000;
    Store store(options);
    write_text(folder / "ab/.tmp-1-2-3-4", "left behind");
    set_age(folder / "ab/.tmp-1-2-3-4", std::chrono::hours(3));
    for (unsigned i = 0; i < 60; ++i) {
        store.put(make_key(i), make_image(i, 1000));
        write_text(path_of(folder, make_key(i)), "torn");
        CHECK_FALSE(store.find(make_key(i)));
    }
    for (unsigned i = 100; i < 130; ++i) store.put(make_key(i), make_image(i, 1000));
    int aside = 0;
    for (const std::string& file : files_below(folder.path())) aside += file.ends_with(".bad") ? 1 : 0;
    CHECK(aside <= 16);
    CHECK_FALSE(fs::exists(folder / "ab/.tmp-1-2-3-4"));
}

TEST_CASE("An entry larger than the bound stays in memory", "[store][field-09]") {
    TempFolder folder;
    Store::Options options = options_at(folder.path());
    options.max_bytes = 1000;
    Store store(options);
    store.put(make_key(1), make_image(1, 5000));
    CHECK(files_below(folder.path()).empty());
    check_same(store.find(make_key(1)), make_image(1, 5000));
}

TEST_CASE("A store lives in a path of spaces and other letters", "[store][field-10]") {
    TempFolder folder("caché de núcleos 核 'quoted'");
    Store store(options_at(folder.path()));
    store.put(make_key(1), make_image(1, 100));
    check_same(Store(options_at(folder.path())).find(make_key(1)), make_image(1, 100));
    CHECK(store.lock_for_compile(make_key(1)).held());
}

TEST_CASE("Clear removes every entry, list tells what is there", "[store]") {
    TempFolder folder;
    Store store(options_at(folder.path()));
    for (unsigned i = 0; i < 5; ++i) store.put(make_key(i), make_image(i, 100));
    const auto entries = store.list(false);
    REQUIRE(entries.size() == 5);
    for (const StoreEntryInfo& entry : entries) {
        CHECK(entry.problem.empty());
        CHECK(entry.key.size() == 64);
        CHECK(entry.metadata.kernel_name.starts_with("kernel_"));
        CHECK(entry.bytes == static_cast<std::int64_t>(fs::file_size(entry.path)));
    }
    CHECK(store.clear() == 5);
    CHECK(store.list(false).empty());
    CHECK(store.statistics().entries == 0);
}

TEST_CASE("A folder or entry that others could write is refused", "[store][trust]") {
    TempFolder folder;
    const std::string directory = folder / "store";
    Store(options_at(directory)).put(make_key(1), make_image(1, 100));
    const std::string path = directory + "/" + make_key(1).hex().substr(0, 2) + "/" + make_key(1).hex();
    SECTION("an entry") {
        ::chmod(path.c_str(), 0666);
        Store store(options_at(directory));
        CHECK(store.list(true).at(0).problem.find("written by others") != std::string::npos);
        CHECK_FALSE(store.find(make_key(1)));
        CHECK(store.statistics().bad == 1);
    }
    SECTION("the folder: memory only, with the reason") {
        for (const unsigned mode : {0775u, 0757u, 0777u}) {
            ::chmod(directory.c_str(), mode);
            Store store(options_at(directory));
            CHECK_FALSE(store.find(make_key(1)));
            CHECK(store.directory().empty());
            CHECK(store.reason().find("written by others") != std::string::npos);
            store.put(make_key(2), make_image(2, 100));
            check_same(store.find(make_key(2)), make_image(2, 100));
        }
        CHECK(files_below(directory).size() == 1);
    }
    SECTION("the folder of the entry") {
        ::chmod(fs::path(path).parent_path().c_str(), 0777);
        CHECK_FALSE(Store(options_at(directory)).find(make_key(1)));
        for (const bool verify : {false, true})
            CHECK(Store(options_at(directory)).list(verify).at(0).problem.find("its folder can be written by others") ==
                  0);
    }
    SECTION("a link in the entry's place") {
        fs::rename(path, folder / "elsewhere");
        fs::create_symlink(folder / "elsewhere", path);
        CHECK_FALSE(Store(options_at(directory)).find(make_key(1)));
    }
    SECTION("owned by somebody else") {
        if (::geteuid() == 0) {
            REQUIRE(::chown(path.c_str(), 12345, 12345) == 0);
            CHECK_FALSE(Store(options_at(directory)).find(make_key(1)));
            Store(options_at(directory)).put(make_key(1), make_image(1, 100));
            REQUIRE(::chown(directory.c_str(), 12345, 12345) == 0);
            Store store(options_at(directory));
            CHECK_FALSE(store.find(make_key(1)));
            CHECK(store.reason().find("12345") != std::string::npos);
        }
    }
}
