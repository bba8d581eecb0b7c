// What a caller feels of time on a GPU.
#include "../ops/attention_suite.h"
#include "catch.h"
#include "turbotune/tuner/bench.h"

using namespace turbotune;
using namespace turbotune::testing;

TEST_CASE("one execution takes at most ten microseconds of the host", "[gpu][alone][field-38]") {
    Runtime runtime(private_options("0"));
    for (int length : {64, 128, 256}) {
        da::Problem problem;
        problem.batch = 32;
        problem.heads = 12;
        problem.length = length;
        const BenchResult result = bench(runtime, da::operation(), problem.to_fields(), {});
        INFO("length " << length);
        REQUIRE(result.host_us);
        CHECK(*result.host_us <= 10);
    }
}
