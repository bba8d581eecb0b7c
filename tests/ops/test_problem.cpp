#include "catch.h"
#include "turbotune/base/error.h"
#include "turbotune/ops/disentangled_attention/problem.h"

using namespace turbotune;
using namespace turbotune::disentangled_attention;

namespace {

Problem valid() {
    Problem problem;
    problem.batch = 2;
    problem.heads = 3;
    problem.length = 40;
    return problem;
}

template <class Change>
std::string argument_at_fault(Change change) {
    Problem problem = valid();
    change(problem);
    try {
        problem.validate();
    } catch (const InvalidArgument& error) {
        return error.argument();
    }
    return "accepted";
}

}  // namespace

TEST_CASE("the slots of DeBERTa-v3 clamp at -512 and 506 and are one per distance up to 128", "[problem]") {
    const SlotTable table = make_slot_table(256, 512);
    CHECK(table.slot(0) == 256);
    for (int delta = -128; delta <= 128; ++delta) REQUIRE(table.slot(delta) == delta + 256);
    CHECK(table.slot(505) == 510);
    CHECK(table.slot(506) == 511);
    CHECK(table.slot(100000) == 511);
    CHECK(table.slot(-511) == 1);
    CHECK(table.slot(-512) == 0);
    CHECK(table.slot(-100000) == 0);
    CHECK(table.band == 512);
    int longest = 0, run = 0;
    for (int delta = -510; delta <= 505; ++delta) {
        REQUIRE(table.slot(delta) >= table.slot(delta - 1));
        run = table.slot(delta) == table.slot(delta - 1) ? run + 1 : 1;
        longest = std::max(longest, run);
    }
    CHECK(longest == 6);
}

TEST_CASE("without buckets every distance has a slot of its own up to the span", "[problem]") {
    const SlotTable table = make_slot_table(0, 40);
    for (int delta = -40; delta < 40; ++delta) REQUIRE(table.slot(delta) == delta + 40);
    CHECK(table.slot(40) == 79);
    CHECK(table.slot(41) == 79);
    CHECK(table.slot(-41) == 0);
    CHECK(table.band == 40);
}

TEST_CASE("slots stay within the table for every small choice of buckets", "[problem]") {
    for (int buckets = 2; buckets <= 64; ++buckets)
        for (int most : {buckets / 2 + 2, buckets + 3, 4 * buckets}) {
            const SlotTable table = make_slot_table(buckets, most);
            REQUIRE(table.slots.size() == 2 * static_cast<std::size_t>(table.band) + 1);
            for (std::int32_t slot : table.slots) {
                REQUIRE(slot >= 0);
                REQUIRE(slot < 2 * buckets);
            }
            // Beyond the band nothing changes: compare with a table computed for far distances.
            CHECK(table.slot(table.band) == table.slots.back());
            CHECK(table.slot(-table.band - 5) == table.slots.front());
        }
}

TEST_CASE("a problem survives the way through its fields", "[problem]") {
    Problem problem = valid();
    problem.layout = Layout::packed;
    problem.tokens = 70;
    problem.dtype = DType::f16;
    problem.c2p = false;
    problem.position_buckets = -1;
    const Problem back = Problem::from_fields(problem.to_fields());
    CHECK(back.to_fields() == problem.to_fields());
    CHECK(back.tokens == 70);
    CHECK_FALSE(back.c2p);
}

TEST_CASE("a mistake in a problem names the field", "[problem]") {
    CHECK(argument_at_fault([](Problem&) {}) == "accepted");
    CHECK(argument_at_fault([](Problem& p) { p.length = 0; }) == "length");
    CHECK(argument_at_fault([](Problem& p) { p.batch = 0; }) == "batch");
    CHECK(argument_at_fault([](Problem& p) { p.heads = -1; }) == "heads");
    CHECK(argument_at_fault([](Problem& p) { p.math = Math::fast; }) == "math");
    CHECK(argument_at_fault([](Problem& p) { p.max_relative_positions = 0; }) == "max_relative_positions");
    CHECK(argument_at_fault([](Problem& p) { p.max_relative_positions = 129; }) == "max_relative_positions");
    CHECK(argument_at_fault([](Problem& p) { p.position_buckets = 1; }) == "position_buckets");
    CHECK(argument_at_fault([](Problem& p) { p.tokens = 3; }) == "tokens");
    CHECK(argument_at_fault([](Problem& p) { p.pass = Pass(99); }) == "pass");
    CHECK(argument_at_fault([](Problem& p) { p.math = Math(7); }) == "math");
    CHECK(argument_at_fault([](Problem& p) { p.layout = Layout(5); }) == "layout");
    CHECK(argument_at_fault([](Problem& p) { p.v = {0, INT64_MAX, 64}; }) == "v");
    CHECK(argument_at_fault([](Problem& p) { p.q.row = -4; }) == "q");
    CHECK(argument_at_fault([](Problem& p) { p.k.head = 64; }) == "k");
    CHECK(argument_at_fault([](Problem& p) { p.layout = Layout::packed, p.tokens = 81; }) == "tokens");
    CHECK(argument_at_fault([](Problem& p) { p.layout = Layout::packed, p.mask = true; }) == "mask");
    // Heads 32 apart while each is 64 wide; rows that repeat.
    CHECK(argument_at_fault([](Problem& p) { p.out = {40 * 192, 192, 32}; }) == "out");
    CHECK(argument_at_fault([](Problem& p) { p.out = {40, 1, 64}; }) == "out");
    CHECK(argument_at_fault([](Problem& p) { p.out = {40 * 192, 192, 64}; }) == "accepted");
    CHECK(argument_at_fault([](Problem& p) { p.out = {3 * 40 * 64, 64, 40 * 64}; }) == "accepted");
}

TEST_CASE("a problem outside the envelope is refused by the rule's name", "[problem]") {
    Problem problem = valid();
    problem.head_dim = 48;
    REQUIRE_THROWS_AS(problem.validate(), Unsupported);
    problem = valid();
    problem.dtype = DType::f64;
    REQUIRE_THROWS_AS(problem.validate(), Unsupported);
    problem = valid();
    problem.heads = 70000;
    REQUIRE_THROWS_AS(problem.validate(), Unsupported);
}

TEST_CASE("unknown words in fields are refused with the words that are known", "[problem]") {
    Fields fields = valid().to_fields();
    fields.set("pass", "inferense");
    REQUIRE_THROWS_AS(Problem::from_fields(fields), InvalidArgument);
    fields = valid().to_fields();
    fields.set("length", "12");
    REQUIRE_THROWS_AS(Problem::from_fields(fields), InvalidArgument);
}

TEST_CASE("buckets whose ends lie out of reach are refused by name", "[problem]") {
    Problem problem = valid();
    problem.position_buckets = 5;
    problem.max_relative_positions = 70000;
    REQUIRE_THROWS_AS(problem.validate(), Unsupported);
    CHECK(make_slot_table(5, 512).band > 512);
}
