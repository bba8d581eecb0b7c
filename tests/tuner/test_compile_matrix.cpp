#include <set>

#include "catch.h"
#include "turbotune/base/error.h"
#include "turbotune/kernel/compiler.h"
#include "turbotune/tuner/compile_matrix.h"

using namespace turbotune;

TEST_CASE("a fixed sample of every candidate compiles for every GPU family within the filter's prediction",
          "[nvrtc][slow][long]") {
    try {
        nvrtc_targets();
    } catch (const CompileError& error) {
        WARN("not run: " << error.what());
        return;
    }
    CompileMatrixOptions options;
    options.every = 73;  // prime, so that the sample walks over all axes
    const std::vector<CompileRow> rows = compile_matrix(find_operation("disentangled_attention"), options);
    REQUIRE(rows.size() >= 8);
    std::set<std::string> targets;
    for (const CompileRow& row : rows) {
        INFO(row.kernel);
        CHECK(row.problem == "");
        CHECK(row.registers > 0);
        targets.insert(row.target);
    }
    CHECK(targets.size() == options.targets.size());
}

TEST_CASE("a target without a model device is refused", "[compile_matrix]") {
    REQUIRE_THROWS_AS(model_device("sm_42"), InvalidArgument);
}
