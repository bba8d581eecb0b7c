#include "turbotune/ops/operation.h"

#include "catch.h"
#include "profile/fixtures.h"
#include "turbotune/base/error.h"

using namespace turbotune;
using namespace turbotune::test;

TEST_CASE("Operations are found by name, and an unknown name lists them", "[operation]") {
    REQUIRE(operations().size() >= 1);
    for (const Operation* operation : operations()) REQUIRE(&find_operation(operation->name()) == operation);
    REQUIRE(find_operation("disentangled_attention").name() == "disentangled_attention");
    REQUIRE_THROWS_AS(find_operation("convolution"), InvalidArgument);
    REQUIRE_THROWS_WITH(find_operation("convolution"),
                        ContainsSubstring("'convolution' is none of disentangled_attention"));
}

TEST_CASE("Presets have names, and an unknown one lists them", "[operation]") {
    for (const Preset preset : {Preset::quick, Preset::standard, Preset::exhaustive})
        REQUIRE(parse_preset(to_string(preset)) == preset);
    REQUIRE_THROWS_AS(parse_preset("full"), InvalidArgument);
    REQUIRE_THROWS_WITH(parse_preset("full"), ContainsSubstring("quick, standard, exhaustive"));
}
