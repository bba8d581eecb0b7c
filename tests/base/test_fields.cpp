#include "catch.h"
#include "turbotune/base/error.h"
#include "turbotune/base/fields.h"

using namespace turbotune;

TEST_CASE("Fields keep their order and print stably", "[fields]") {
    Fields fields;
    fields.set("block_m", 64).set("masked", true).set("kind", "c2p").set("stages", std::int64_t{2});
    CHECK(fields.to_string() == "block_m=64 masked=true kind=c2p stages=2");
    fields.set("masked", false);
    CHECK(fields.to_string() == "block_m=64 masked=false kind=c2p stages=2");
    CHECK(fields.entries().size() == 4);
}

TEST_CASE("Integers of every width keep their value, and booleans stay booleans", "[fields]") {
    Fields fields;
    fields.set("big", std::int64_t{1} << 40).set("size", std::size_t{7}).set("negative", short{-3}).set("on", true);
    CHECK(fields.integer("big") == std::int64_t{1} << 40);
    CHECK(fields.integer("size") == 7);
    CHECK(fields.integer("negative") == -3);
    CHECK(fields.boolean("on"));
    fields.set("big", FieldValue(std::string("x"))).set("on", std::string("y"));
    CHECK(fields.text("big") == "x");
    CHECK(fields.text("on") == "y");
}

TEST_CASE("A text literal becomes a text, not a boolean", "[fields]") {
    Fields fields{{"a", "x"}, {"b", true}, {"c", std::int64_t{3}}};
    CHECK(fields.text("a") == "x");
    CHECK(fields.boolean("b"));
    CHECK(fields.integer("c") == 3);
    fields.set("a", "y");
    CHECK(fields.text("a") == "y");
}

TEST_CASE("A missing field and one of another type are named", "[fields]") {
    const Fields fields{{"a", std::int64_t{7}}};
    REQUIRE_THROWS_AS(fields.integer("b"), InvalidArgument);
    REQUIRE_THROWS_AS(fields.text("a"), InvalidArgument);
    try {
        fields.boolean("a");
        FAIL("an integer passed for a boolean");
    } catch (const InvalidArgument& error) {
        CHECK(error.argument() == "a");
        CHECK(std::string(error.what()) == "a: expected a boolean, got an integer (7)");
    }
    CHECK(fields.find("b") == nullptr);
    CHECK(fields.contains("a"));
}

TEST_CASE("Fields are equal whatever their order, and differ by value, type, name and number", "[fields]") {
    const Fields a{{"x", std::int64_t{1}}, {"y", "z"}};
    CHECK(a == Fields{{"y", "z"}, {"x", std::int64_t{1}}});
    CHECK(a != Fields{{"x", std::int64_t{2}}, {"y", "z"}});
    CHECK(a != Fields{{"x", "1"}, {"y", "z"}});
    CHECK(a != Fields{{"x", std::int64_t{1}}, {"w", "z"}});
    CHECK(a != Fields{{"x", std::int64_t{1}}});
    CHECK(Fields{{"x", std::int64_t{1}}} != a);
    CHECK(Fields{} == Fields{});
}

TEST_CASE("What a Fields prints is read back with the same types", "[fields]") {
    const Fields fields{{"tier", "simt"}, {"block_m", std::int64_t{64}}, {"shift", std::int64_t{-3}}, {"pad", false}};
    CHECK(parse_fields(fields.to_string(), "config") == fields);
    CHECK(parse_fields("  a=1\t b=x2 ", "config") == Fields{{"a", std::int64_t{1}}, {"b", "x2"}});
    CHECK(parse_fields("", "config").empty());
}

TEST_CASE("A word that is no name=value is refused with the argument's name", "[fields]") {
    for (const char* text : {"block_m", "=3", "a=", "a=1 a=2"}) {
        INFO(text);
        CHECK_THROWS_AS(parse_fields(text, "config"), InvalidArgument);
    }
    try {
        parse_fields("tier=simt block_m", "--config");
    } catch (const InvalidArgument& error) {
        CHECK(error.argument() == "--config");
        CHECK(std::string(error.what()).find("\"block_m\"") != std::string::npos);
    }
}
