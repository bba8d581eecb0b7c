#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/temp_directory.h"
#include "catch.h"
#include "turbotune/base/files.h"

using namespace turbotune;
using turbotune::test::TempDirectory;

namespace {

std::size_t count_entries(const std::string& directory) {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory)) ++count;
    return count;
}

// Sets a variable for the scope and restores it.
class ScopedVariable {
  public:
    ScopedVariable(const char* name, const char* value) : name_(name), old_(environment(name)) {
        value ? ::setenv(name, value, 1) : ::unsetenv(name);
    }
    ~ScopedVariable() { old_ ? ::setenv(name_, old_->c_str(), 1) : ::unsetenv(name_); }

  private:
    const char* name_;
    std::optional<std::string> old_;
};

}  // namespace

TEST_CASE("What is written is read back, byte for byte", "[files]") {
    TempDirectory directory;
    std::string bytes;
    for (int i = 0; i < 300'000; ++i) bytes += static_cast<char>(i * 7);
    for (const std::string& content : {bytes, std::string(), std::string("a\0b", 3)}) {
        REQUIRE(write_file_atomic(directory.file("x"), content) == 0);
        CHECK(read_file(directory.file("x")) == content);
    }
    CHECK(count_entries(directory.path()) == 1);
    struct stat status;
    REQUIRE(::stat(directory.file("x").c_str(), &status) == 0);
    CHECK((status.st_mode & 0777 & ~0644u) == 0);
}

TEST_CASE("A file that cannot be read says why in errno", "[files]") {
    TempDirectory directory;
    CHECK_FALSE(read_file(directory.file("missing")));
    CHECK(errno == ENOENT);
    CHECK_FALSE(read_file(directory.path()));
    CHECK(errno == EISDIR);
    CHECK(read_file("/proc/self/stat").value_or("").find(std::to_string(::getpid())) == 0);
}

TEST_CASE("A failed write leaves the old file and no temporary one", "[files]") {
    TempDirectory directory;
    CHECK(write_file_atomic(directory.file("no/such/x"), "new") == ENOENT);
    // A directory in the target's place lets every step but the rename succeed.
    REQUIRE(make_directories(directory.file("target/child")) == 0);
    const int failed = write_file_atomic(directory.file("target"), "new");
    CHECK((failed == EISDIR || failed == ENOTEMPTY || failed == EEXIST));
    CHECK(count_entries(directory.path()) == 1);
    CHECK(directory_exists(directory.file("target/child")));
    if (::access("/dev/full", W_OK) == 0) CHECK(write_file_atomic("/proc/turbotune", "new") != 0);
}

TEST_CASE("A full disk keeps the old file", "[files]") {
    TempDirectory directory;
    REQUIRE(write_file_atomic(directory.file("x"), "old") == 0);
    // The file size limit fails the write as a full disk would, in a child so that it binds no other test.
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        ::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{4096, 4096};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        ::_exit(write_file_atomic(directory.file("x"), std::string(100'000, 'n')) == EFBIG ? 0 : 1);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(read_file(directory.file("x")) == std::string("old"));
    CHECK(count_entries(directory.path()) == 1);
}

TEST_CASE("Readers see one whole file or the other while writers replace it", "[files]") {
    TempDirectory directory;
    const std::string path = directory.file("x");
    REQUIRE(write_file_atomic(path, std::string(50'000, 'a')) == 0);
    std::atomic<bool> done{false};
    std::atomic<int> torn{0}, failed{0};
    std::vector<std::thread> threads;
    for (char letter : {'b', 'c', 'd'}) {
        threads.emplace_back([&, letter] {
            for (int i = 0; i < 40; ++i) failed += write_file_atomic(path, std::string(50'000, letter)) != 0;
        });
    }
    std::thread reader([&] {
        while (!done) {
            const std::optional<std::string> text = read_file(path);
            torn += !text || text->size() != 50'000 || text->find_first_not_of(text->front()) != std::string::npos;
        }
    });
    for (std::thread& thread : threads) thread.join();
    done = true;
    reader.join();
    CHECK(torn == 0);
    CHECK(failed == 0);
    CHECK(count_entries(directory.path()) == 1);
}

TEST_CASE("Directories are made as deep as needed, and a file in the way is an error", "[files]") {
    TempDirectory directory;
    CHECK(make_directories(directory.file("a/b/c")) == 0);
    CHECK(make_directories(directory.file("a/b/c")) == 0);
    CHECK(make_directories(directory.file("a//b/d/")) == 0);
    CHECK(directory_exists(directory.file("a/b/c")));
    CHECK(directory_exists(directory.file("a/b/d")));
    REQUIRE(write_file_atomic(directory.file("f"), "x") == 0);
    CHECK(make_directories(directory.file("f")) == ENOTDIR);
    CHECK(make_directories(directory.file("f/g")) == ENOTDIR);
    CHECK(make_directories("/") == 0);
    CHECK(make_directories("") == ENOENT);
    CHECK(file_exists(directory.file("f")));
    CHECK_FALSE(file_exists(directory.path()));
    CHECK_FALSE(directory_exists(directory.file("f")));
    REQUIRE(make_directories(directory.file("private"), 0700) == 0);
    struct stat status;
    REQUIRE(::stat(directory.file("private").c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0700);
}

TEST_CASE("An empty variable counts as unset", "[files]") {
    ScopedVariable variable("TURBOTUNE_TEST_VARIABLE", "");
    CHECK_FALSE(environment("TURBOTUNE_TEST_VARIABLE"));
    ::setenv("TURBOTUNE_TEST_VARIABLE", "x", 1);
    CHECK(environment("TURBOTUNE_TEST_VARIABLE") == std::string("x"));
}

TEST_CASE("The home directory is an absolute one other than the root", "[files]") {
    {
        ScopedVariable home("HOME", "/home/somebody");
        CHECK(home_directory() == std::string("/home/somebody"));
    }
    for (const char* useless : {"/", "//", "relative"}) {
        ScopedVariable home("HOME", useless);
        CHECK_FALSE(home_directory());
    }
    ScopedVariable home("HOME", nullptr);
    const std::optional<std::string> from_database = home_directory();
    if (from_database) CHECK((from_database->front() == '/' && *from_database != "/"));
}
