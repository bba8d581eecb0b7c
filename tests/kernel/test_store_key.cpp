#include <set>

#include "catch.h"
#include "kernel_testing.h"

using namespace turbotune;

TEST_CASE("Each part of the key alone changes it", "[store][field-07]") {
    const auto base = store_key("source", {"-a", "-b"}, "sm_90a", "nvrtc-13.0.88+1f2e", "kernel").hex();
    CHECK(base == store_key("source", {"-a", "-b"}, "sm_90a", "nvrtc-13.0.88+1f2e", "kernel").hex());
    const std::set<std::string> keys = {
        base,
        store_key("sourcf", {"-a", "-b"}, "sm_90a", "nvrtc-13.0.88+1f2e", "kernel").hex(),
        store_key("source", {"-a", "-c"}, "sm_90a", "nvrtc-13.0.88+1f2e", "kernel").hex(),
        store_key("source", {"-b", "-a"}, "sm_90a", "nvrtc-13.0.88+1f2e", "kernel").hex(),
        store_key("source", {"-a"}, "sm_90a", "nvrtc-13.0.88+1f2e", "kernel").hex(),
        store_key("source", {"-a", "-b"}, "sm_90", "nvrtc-13.0.88+1f2e", "kernel").hex(),
        store_key("source", {"-a", "-b"}, "sm_90a", "nvrtc-13.0.89+1f2e", "kernel").hex(),
        store_key("source", {"-a", "-b"}, "sm_90a", "nvrtc-13.0.88+1f2f", "kernel").hex(),
        store_key("source", {"-a", "-b"}, "sm_90a", "nvrtc-13.0.88+1f2e", "kernem").hex(),
    };
    CHECK(keys.size() == 9);
    CHECK(base.size() == 64);
}

TEST_CASE("Fields that run together give other keys", "[store][field-07]") {
    const std::set<std::string> keys = {
        store_key("ab", {}, "c", "i", "k").hex(),       store_key("a", {}, "bc", "i", "k").hex(),
        store_key("a", {"bc"}, "", "i", "k").hex(),     store_key("a", {"b", "c"}, "", "i", "k").hex(),
        store_key("a", {"b"}, "c", "i", "k").hex(),     store_key("a", {}, "b", "ci", "k").hex(),
        store_key("a", {"b", ""}, "c", "i", "k").hex(), store_key("a", {}, "bc", "ik", "").hex(),
    };
    CHECK(keys.size() == 8);
}
