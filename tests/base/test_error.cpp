#include "catch.h"
#include "turbotune/base/error.h"

using namespace turbotune;

TEST_CASE("Each error carries its code and what a caller can use", "[error]") {
    const InvalidArgument argument("heads", "expected at least 1, got 0");
    CHECK(argument.code() == ErrorCode::invalid_argument);
    CHECK(argument.argument() == "heads");
    CHECK(std::string(argument.what()) == "heads: expected at least 1, got 0");
    CHECK(Unsupported("x").code() == ErrorCode::unsupported);
    CHECK(ProfileMiss("x").code() == ErrorCode::profile_miss);
    CHECK(StoreError("x").code() == ErrorCode::store);
    const DeviceError device("lost", 700, "CUDA_ERROR_ILLEGAL_ADDRESS");
    CHECK(device.code() == ErrorCode::device);
    CHECK(device.driver_code() == 700);
    CHECK(device.name() == "CUDA_ERROR_ILLEGAL_ADDRESS");
    const CompileError compile("refused", "log", "-O3", "/tmp/x.cu");
    CHECK(compile.code() == ErrorCode::compile);
    CHECK(compile.log() == "log");
    CHECK(compile.options() == "-O3");
    CHECK(compile.source_path() == "/tmp/x.cu");
}

TEST_CASE("Error codes have names and keep their numbers", "[error]") {
    const std::pair<int, const char*> names[] = {{1, "unsupported"}, {2, "invalid_argument"}, {3, "compile"},
                                                 {4, "device"},      {5, "profile_miss"},     {6, "store"}};
    for (const auto& [number, name] : names) CHECK(std::string(to_string(static_cast<ErrorCode>(number))) == name);
    CHECK(std::string(to_string(static_cast<ErrorCode>(99))) == "unknown");
}
