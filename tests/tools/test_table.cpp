#include "table.h"

#include "catch.h"
#include "output.h"
#include "turbotune/base/error.h"

using namespace turbotune;
using namespace turbotune::cli;

TEST_CASE("Table aligns columns and leaves empty ones out", "[table]") {
    Table table({"name", ">ms", "note"});
    table.add({"short", "1.5", ""});
    table.add({"a longer one", "12.25"});
    CHECK(table.to_string() ==
          "name             ms\n"
          "------------  -----\n"
          "short           1.5\n"
          "a longer one  12.25\n");
}

TEST_CASE("Table counts letters, not bytes", "[table]") {
    Table table({"a", "b"});
    table.add({"é", "x"});
    table.add({"zz", "y"});
    CHECK(table.to_string() == "a   b\n--  -\né   x\nzz  y\n");
}

TEST_CASE("Table without rows still shows its header", "[table]") {
    CHECK(Table({"a", "b"}).to_string() == "a  b\n-  -\n");
}

TEST_CASE("WorkloadColumns says shared fields once and keeps the others as columns", "[table]") {
    const Workload first{"op", {{"layout", std::string("padded")}, {"length", std::int64_t{64}}, {"dropout", false}}};
    const Workload second{"op", {{"layout", std::string("padded")}, {"length", std::int64_t{128}}, {"dropout", true}}};
    const WorkloadColumns columns({first, second});
    CHECK(columns.common() == "layout=padded");
    CHECK(columns.names() == std::vector<std::string>{"length", "dropout"});
    CHECK(columns.cells(second) == std::vector<std::string>{"128", turbotune::to_string(FieldValue(true))});
}

TEST_CASE("WorkloadColumns keeps a field that only some workloads have", "[table]") {
    const Workload first{"op", {{"length", std::int64_t{64}}}};
    const Workload second{"op", {{"length", std::int64_t{64}}, {"head_dim", std::int64_t{32}}}};
    const WorkloadColumns columns({first, second});
    CHECK(columns.common() == "length=64");
    CHECK(columns.cells(first) == std::vector<std::string>{""});
    CHECK(columns.cells(second) == std::vector<std::string>{"32"});
}

TEST_CASE("WorkloadColumns of one workload shows every field", "[table]") {
    const Workload only{"op", {{"length", std::int64_t{64}}}};
    CHECK(WorkloadColumns({only}).names() == std::vector<std::string>{"length"});
}

TEST_CASE("operations_of keeps the order of appearance", "[table]") {
    CHECK(operations_of({{"b", {}}, {"a", {}}, {"b", {}}}) == std::vector<std::string>{"b", "a"});
}

TEST_CASE("milliseconds shows four figures at every scale", "[table]") {
    CHECK(milliseconds(0.01234) == "0.01234");
    CHECK(milliseconds(0.5) == "0.5000");
    CHECK(milliseconds(1.23456) == "1.235");
    CHECK(milliseconds(123.456) == "123.5");
    CHECK(milliseconds(98765.4) == "98765");
    CHECK(milliseconds(0) == "0");
}

TEST_CASE("duration, counted and byte_count pick their unit or form", "[table]") {
    CHECK(duration(0.4) == "0 s");
    CHECK(duration(59.4) == "59 s");
    CHECK(duration(61) == "1 min 01 s");
    CHECK(duration(3 * 3600 + 5 * 60 + 59) == "3 h 05 min");
    CHECK(counted(1, "workload") == "1 workload");
    CHECK(counted(0, "workload") == "0 workloads");
    CHECK(counted(2, "entry", "entries") == "2 entries");
    CHECK(byte_count(1023) == "1023 B");
    CHECK(byte_count(1536) == "1.5 KiB");
    CHECK(byte_count(std::int64_t{3} << 30) == "3.0 GiB");
}

TEST_CASE("shell_word quotes what a shell would take apart", "[table]") {
    CHECK(shell_word("a/b-c.json") == "a/b-c.json");
    CHECK(shell_word("") == "''");
    CHECK(shell_word("a b") == "'a b'");
    CHECK(shell_word("it's $x") == "'it'\\''s $x'");
}

TEST_CASE("split_list refuses empty elements by the flag's name", "[table]") {
    CHECK(split_list("--ops", "a,b") == std::vector<std::string>{"a", "b"});
    for (const char* text : {"", ",", "a,", ",a", "a,,b"})
        REQUIRE_THROWS_AS(split_list("--ops", text), InvalidArgument);
}
