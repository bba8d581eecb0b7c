#include "suggest.h"

#include "catch.h"

using namespace turbotune::cli;

TEST_CASE("edit_distance counts insertions, deletions and replacements", "[suggest]") {
    CHECK(edit_distance("", "abc") == 3);
    CHECK(edit_distance("kitten", "sitting") == 3);
    CHECK(edit_distance("--preset", "--preset") == 0);
}

TEST_CASE("nearest finds a slip of the finger and a name cut short", "[suggest]") {
    const std::vector<std::string> names = {"--preset", "--lengths", "--layouts", "inspect", "devices"};
    CHECK(nearest("--prset", names) == "--preset");
    CHECK(nearest("--lengt", names) == "--lengths");
    CHECK(nearest("inspct", names) == "inspect");
}

TEST_CASE("nearest says nothing when nothing is near", "[suggest]") {
    CHECK(nearest("--frobnicate", {"--preset", "--lengths"}).empty());
    CHECK(nearest("x", {"inspect"}).empty());
}
