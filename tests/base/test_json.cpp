#include <cstdint>
#include <limits>
#include <random>

#include "catch.h"
#include "turbotune/base/error.h"
#include "turbotune/base/json.h"

using namespace turbotune;

namespace {

const std::string kDocument = R"({"version": 2, "name": "a\u00e9\ud83d\ude00\n", "ratio": -1.5e-3, "on": true,
 "config": {"block_m": 64, "kind": "c2p", "causal": false}, "list": [1, [], {}, null, "x"],
 "entries": [{"median": 0.25}, {"median": 1}], "words": ["a", "b"]})";

std::string message_of(const std::string& text) {
    try {
        parse_json(text, "f.json");
    } catch (const InvalidArgument& error) {
        return error.what();
    }
    return "";
}

template <typename Read>
std::string failure_of(Read&& read) {
    try {
        read();
    } catch (const InvalidArgument& error) {
        return error.what();
    }
    return "no error";
}

}  // namespace

TEST_CASE("A document is read with its order and types", "[json]") {
    const Json document = parse_json(kDocument, "f.json");
    CHECK(document.begin().key() == "version");
    CHECK(document == Json::parse(kDocument));
    CHECK(document.dump() == Json::parse(kDocument).dump());
    for (const char* text : {"1", "\"x\"", "null", "[]", "{}", "[[[[]]]]", " true ", "[1,2,3]", "-0", "1e5"}) {
        CHECK(parse_json(text, "f") == Json::parse(text));
    }
}

TEST_CASE("Text that is not JSON is refused", "[json]") {
    for (const char* text :
         {"",       " ",          "{",           "}",        "[1,]",         "{\"a\":1,}", "{a:1}",   "{'a':1}",
          "NaN",    "[Infinity]", "-Infinity",   "nan",      "[1e999]",      "[-1e999]",   "01",      "+1",
          ".5",     "1.",         "0x10",        "[1] 2",    "{} {}",        "{}x",        "// c\n1", "/* c */ 1",
          "\"\n\"", "\"\\x\"",    "\"\\ud800\"", "\"\xff\"", "\"\xc0\x80\"", "tru",        "[1 2]",   "{\"a\" 1}",
          "\"abc",  "[\"a\":1]"}) {
        INFO(text);
        REQUIRE_THROWS_AS(parse_json(text, "f.json"), InvalidArgument);
        CHECK(message_of(text).rfind("f.json: ", 0) == 0);
        CHECK(message_of(text).find("json.exception") == std::string::npos);
    }
    REQUIRE_THROWS_AS(parse_json(std::string("1\0", 2), "f.json"), InvalidArgument);
}

TEST_CASE("Duplicate keys are refused at every level, equal keys of siblings are not", "[json]") {
    CHECK(message_of(R"({"a": 1, "b": 2, "a": 1})") == "f.json: duplicate key \"a\"");
    CHECK(message_of(R"([{"x": {"a": 1, "\u0061": 2}}])") == "f.json: duplicate key \"a\"");
    CHECK(message_of(R"({"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 2}]})").empty());
}

TEST_CASE("Depth is bounded", "[json]") {
    const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
    CHECK(message_of(nested(128)).empty());
    CHECK(message_of(nested(129)) == "f.json: nested deeper than 128 levels");
    CHECK_FALSE(message_of(std::string(1'000'000, '[')).empty());
    std::string objects;
    for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
    CHECK_FALSE(message_of(objects).empty());
}

TEST_CASE("Every truncation of a document is refused", "[json]") {
    for (std::size_t size = 0; size < kDocument.size(); ++size) {
        REQUIRE_THROWS_AS(parse_json(kDocument.substr(0, size), "f.json"), InvalidArgument);
    }
}

TEST_CASE("Damaged documents are read or refused, never anything else", "[json]") {
    std::mt19937 random(11);
    int refused = 0, accepted = 0;
    for (int round = 0; round < 20'000; ++round) {
        std::string text = kDocument;
        for (unsigned edits = 1 + random() % 3; edits > 0; --edits) {
            const std::size_t at = random() % text.size();
            switch (random() % 4) {
                case 0:
                    text[at] = static_cast<char>(random());
                    break;
                case 1:
                    text.erase(at, 1 + random() % 5);
                    break;
                case 2:
                    text.insert(at, 1, "{}[],:\"\\0"[random() % 9]);
                    break;
                default:
                    text[at] = static_cast<char>(text[at] ^ (1 << random() % 8));
            }
            if (text.empty()) text = " ";
        }
        try {
            parse_json(text, "f.json");
            ++accepted;
        } catch (const InvalidArgument&) {
            ++refused;
        }
    }
    CHECK(refused > 1000);
    CHECK(accepted > 1000);
}

TEST_CASE("A large flat object is read in linear time", "[json]") {
    std::string text = "{";
    for (int i = 0; i < 200'000; ++i) text += "\"key" + std::to_string(i) + "\":" + std::to_string(i) + ",";
    text.back() = '}';
    CHECK(parse_json(text, "f.json").size() == 200'000);
}

TEST_CASE("A reader hands out values of the asked type", "[json]") {
    const Json document = parse_json(kDocument, "f.json");
    JsonReader reader(document, "f.json");
    CHECK(reader.integer("version", 1, 3) == 2);
    CHECK(reader.text("name") == "a\u00e9\U0001F600\n");
    CHECK(reader.number("ratio", -1, 1) == -1.5e-3);
    CHECK(reader.boolean("on"));
    CHECK(reader.fields("config") == Fields{{"block_m", std::int64_t{64}}, {"kind", "c2p"}, {"causal", false}});
    CHECK(reader.fields("config").to_string() == "block_m=64 kind=c2p causal=false");
    CHECK(reader.texts("words") == std::vector<std::string>{"a", "b"});
    std::vector<JsonReader> entries = reader.array("entries");
    REQUIRE(entries.size() == 2);
    CHECK(entries[0].number("median", 0, 10) == 0.25);
    CHECK(entries[1].number("median", 0, 10) == 1);
    CHECK(reader.has("list"));
    CHECK_FALSE(reader.has("lists"));
    CHECK(failure_of([&] { reader.finish(); }) == "f.json: /list: unknown key");
    CHECK(reader.array("list").size() == 5);
    REQUIRE_NOTHROW(reader.finish());
    REQUIRE_NOTHROW(entries[0].finish());
}

TEST_CASE("Errors carry the file, the path and the value", "[json]") {
    const Json document = parse_json(kDocument, "p.json");
    JsonReader reader(document, "p.json");
    std::vector<JsonReader> entries = reader.array("entries");
    CHECK(failure_of([&] {
              reader.integer("name", 1, 8192);
          }).rfind("p.json: /name: expected an integer in [1, 8192], got \"a", 0) == 0);
    CHECK(failure_of([&] { reader.integer("version", 3, 9); }) ==
          "p.json: /version: expected an integer in [3, 9], got 2");
    CHECK(failure_of([&] { reader.integer("ratio", 0, 9); }) ==
          "p.json: /ratio: expected an integer in [0, 9], got -0.0015");
    CHECK(failure_of([&] { entries[0].integer("median", INT64_MIN, INT64_MAX); }) ==
          "p.json: /entries/0/median: expected an integer, got 0.25");
    CHECK(failure_of([&] { entries[1].number("median", 2, 3); }) ==
          "p.json: /entries/1/median: expected a number in [2, 3], got 1");
    CHECK(failure_of([&] { entries[1].number("mean", 2, 3); }) == "p.json: /entries/1/mean: missing key");
    CHECK(failure_of([&] { reader.text("on"); }) == "p.json: /on: expected a text, got true");
    CHECK(failure_of([&] { reader.boolean("version"); }) == "p.json: /version: expected true or false, got 2");
    CHECK(failure_of([&] { reader.object("list"); }) == "p.json: /list: expected an object, got an array");
    CHECK(failure_of([&] { reader.array("config"); }) == "p.json: /config: expected an array, got an object");
    CHECK(failure_of([&] { reader.texts("list"); }) == "p.json: /list/0: expected a text, got 1");
    CHECK(failure_of([&] { reader.object("config").integer("kind", 0, INT64_MAX); }) ==
          "p.json: /config/kind: expected an integer of at least 0, got \"c2p\"");
    try {
        reader.fail("x/y~z", "odd");
    } catch (const InvalidArgument& error) {
        CHECK(error.argument() == "p.json: /x~1y~0z");
    }
}

TEST_CASE("A reader of something that is no object says so", "[json]") {
    const Json array = parse_json("[1]", "a.json");
    JsonReader reader(array, "a.json");
    CHECK_FALSE(reader.has("x"));
    CHECK(failure_of([&] { reader.text("x"); }) == "a.json: /: expected an object, got an array");
    CHECK(failure_of([&] { reader.finish(); }) == "a.json: /: expected an object, got an array");
}

TEST_CASE("Integers keep all 64 bits and those beyond are refused", "[json]") {
    const Json document =
        parse_json(R"({"max": 9223372036854775807, "min": -9223372036854775808, "big": 9223372036854775808,
                       "huge": 99999999999999999999, "float": 3.0, "fields": {"x": 9223372036854775808}})",
                   "f");
    JsonReader reader(document, "f");
    CHECK(reader.integer("max", INT64_MIN, INT64_MAX) == INT64_MAX);
    CHECK(reader.integer("min", INT64_MIN, INT64_MAX) == INT64_MIN);
    REQUIRE_THROWS_AS(reader.integer("big", INT64_MIN, INT64_MAX), InvalidArgument);
    REQUIRE_THROWS_AS(reader.integer("huge", INT64_MIN, INT64_MAX), InvalidArgument);
    REQUIRE_THROWS_AS(reader.integer("float", INT64_MIN, INT64_MAX), InvalidArgument);
    REQUIRE_THROWS_AS(reader.fields("fields"), InvalidArgument);
    CHECK(reader.number("max", 0, 1e30) == Approx(9.223372036854775807e18));
}

TEST_CASE("Fields survive the way through JSON", "[json]") {
    const Fields fields{{"a", std::int64_t{-5}}, {"b", "text \"quoted\""}, {"c", true}, {"d", ""}};
    const Json document = parse_json("{\"f\": " + to_json(fields).dump() + "}", "f");
    CHECK(JsonReader(document, "f").fields("f") == fields);
    CHECK(to_json(fields).dump() == R"({"a":-5,"b":"text \"quoted\"","c":true,"d":""})");
    CHECK(to_json(Fields{}).dump() == "{}");
    const Json nested = parse_json(R"({"f": {"a": [1]}, "g": {"x": 1.5}, "h": {"x": null}})", "f");
    JsonReader reader(nested, "f");
    CHECK(failure_of([&] { reader.fields("f"); }) == "f: /f/a: expected a boolean, an integer or a text, got an array");
    REQUIRE_THROWS_AS(reader.fields("g"), InvalidArgument);
    REQUIRE_THROWS_AS(reader.fields("h"), InvalidArgument);
}
