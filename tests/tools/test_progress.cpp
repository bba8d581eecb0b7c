#include <chrono>
#include <cstdio>
#include <string>
#include <utility>

#include "progress.h"

#include "catch.h"
#include "program.h"

using namespace turbotune;

namespace {

// What a Progress writes, as text.
template <class Body>
std::string written(bool terminal, int columns, Body body) {
    const test::TempDir dir;
    std::FILE* stream = std::fopen((dir / "out").c_str(), "w");
    REQUIRE(stream != nullptr);
    {
        cli::Progress progress(stream, terminal, columns);
        body(progress);
    }
    std::fclose(stream);
    return test::read_text(dir / "out");
}

}  // namespace

TEST_CASE("Progress prints only plain lines where there is no terminal", "[progress]") {
    const std::string text = written(false, 80, [](cli::Progress& progress) {
        progress.update("1/2", true);
        progress.print("a line");
        progress.update("2/2", true);
        progress.clear();
    });
    CHECK(text == "a line\n");
}

TEST_CASE("Progress of long work shows up in a log now and then", "[progress]") {
    for (const auto& [quiet, expected] : {std::pair{0, "1/9\n2/9\n"}, {3600, ""}}) {
        std::FILE* stream = std::tmpfile();
        REQUIRE(stream);
        {
            cli::Progress progress(stream, false, 80, std::chrono::seconds(quiet));
            progress.update("1/9");
            progress.update("2/9");
        }
        std::rewind(stream);
        char text[64] = {};
        [[maybe_unused]] const std::size_t read = std::fread(text, 1, sizeof text - 1, stream);
        std::fclose(stream);
        CHECK(std::string(text) == expected);
    }
}

TEST_CASE("Progress redraws in place and is gone at the end", "[progress]") {
    const std::string text = written(true, 80, [](cli::Progress& progress) { progress.update("1/2", true); });
    CHECK(text == "\r1/2\x1b[K\r\x1b[K");
}

TEST_CASE("Progress lets lines scroll above it", "[progress]") {
    const std::string text = written(true, 80, [](cli::Progress& progress) {
        progress.update("1/2", true);
        progress.print("a line");
    });
    CHECK(text == "\r1/2\x1b[K\r\x1b[Ka line\n\r1/2\x1b[K\r\x1b[K");
}

TEST_CASE("Progress is cut to the terminal's width", "[progress]") {
    const std::string text =
        written(true, 10, [](cli::Progress& progress) { progress.update("0123456789abcdef", true); });
    CHECK(text == "\r012345678\x1b[K\r\x1b[K");
}

TEST_CASE("Progress does not redraw faster than a person reads", "[progress]") {
    const std::string text = written(true, 80, [](cli::Progress& progress) {
        for (int i = 0; i < 1000; ++i) progress.update("x");
    });
    CHECK(text.size() < 200);  // a thousand redraws would be 5000
}
