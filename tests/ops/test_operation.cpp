#include "turbotune/ops/operation.h"

#include "catch.h"
#include "profile/fixtures.h"
#include "turbotune/base/error.h"
#include "turbotune/ops/disentangled_attention/attention.h"

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

TEST_CASE("A problem's tokens are spread over its sequences, the first of full length", "[operation]") {
    const Operation& operation = disentangled_attention::operation();
    const auto bounds = [&](int batch, int length, int tokens) {
        Fields problem = operation.example_problem();
        problem.set("layout", "packed").set("heads", 1).set("head_dim", 32);
        problem.set("batch", batch).set("length", length).set("tokens", tokens);
        const TestCase made = operation.problem_case(problem, 1);
        std::vector<double> found = made.inputs.at("cu_seqlens").to_doubles();
        CHECK(made.problem.integer("tokens") == std::int64_t(found.back()));
        CHECK(made.inputs.at("q").shape == std::vector<std::int64_t>{std::int64_t(found.back()), 32});
        return found;
    };
    CHECK(bounds(3, 64, 0) == std::vector<double>{0, 64, 128, 192});
    CHECK(bounds(3, 64, 100) == std::vector<double>{0, 64, 82, 100});
    CHECK(bounds(3, 64, 191) == std::vector<double>{0, 64, 127, 191});
    CHECK(bounds(3, 64, 64) == std::vector<double>{0, 64, 64, 64});
    CHECK_THROWS_AS(bounds(3, 64, 193), InvalidArgument);
}
