// What every function of the C interface promises: errors as codes and sentences, null arguments, sized structs.
#include <algorithm>
#include <cstring>
#include <thread>

#include "capi_testing.h"

using namespace turbotune::testing;

TEST_CASE("The version and the names of the codes are there", "[capi]") {
    CHECK(std::string(turbotune_version()).find('.') != std::string::npos);
    CHECK(std::string(turbotune_status_name(TURBOTUNE_OK)) == "ok");
    CHECK(std::string(turbotune_status_name(TURBOTUNE_UNSUPPORTED)) == "unsupported");
    CHECK(std::string(turbotune_status_name(TURBOTUNE_PROFILE_MISS)) == "profile_miss");
    CHECK(std::string(turbotune_status_name(TURBOTUNE_INTERNAL_ERROR)) == "internal_error");
    CHECK(std::string(turbotune_status_name(99)) == "unknown");
}

TEST_CASE("The CPU is the last device, and the best one is listed", "[capi]") {
    int32_t count = 0;
    REQUIRE(turbotune_device_count(&count) == TURBOTUNE_OK);
    REQUIRE(count >= 1);
    turbotune_device_info info;
    turbotune_device_info_init(&info, sizeof info);
    REQUIRE(turbotune_device_get(count - 1, &info) == TURBOTUNE_OK);
    CHECK(std::string(info.id) == "cpu");
    CHECK(std::string(info.tiers) == "host");
    CHECK(info.is_gpu == 0);
    CHECK(info.multiprocessors >= 1);
    CHECK(info.memory_bytes > 0);
    CHECK(info.struct_size == sizeof info);
    turbotune_device_info best, first;
    turbotune_device_info_init(&best, sizeof best);
    turbotune_device_info_init(&first, sizeof first);
    REQUIRE(turbotune_device_best(&best) == TURBOTUNE_OK);
    REQUIRE(turbotune_device_get(0, &first) == TURBOTUNE_OK);
    CHECK(std::string(best.id) == first.id);
    CHECK(turbotune_device_get(count, &info) == TURBOTUNE_INVALID_ARGUMENT);
    CHECK(turbotune_device_get(-1, &info) == TURBOTUNE_INVALID_ARGUMENT);
    CHECK(last_error().find("-1") != std::string::npos);
}

TEST_CASE("A null argument that is needed is an invalid argument, named", "[capi]") {
    const CpuRuntime runtime;
    auto problem = small_problem();
    turbotune_plan* plan = nullptr;
    turbotune_kernel_info kernel;
    turbotune_kernel_info_init(&kernel, sizeof kernel);
    turbotune_device_info info;
    turbotune_device_info_init(&info, sizeof info);
    turbotune_disentangled_attention_buffers buffers;
    turbotune_disentangled_attention_buffers_init(&buffers, sizeof buffers);
    void* pointer = nullptr;
    const auto refused = [](turbotune_status status, const char* name) {
        INFO(name << ": " << last_error());
        CHECK(status == TURBOTUNE_INVALID_ARGUMENT);
        CHECK(last_error().rfind(std::string(name) + ": is null", 0) == 0);
    };
    refused(turbotune_device_count(nullptr), "count");
    refused(turbotune_device_get(0, nullptr), "info");
    refused(turbotune_device_best(nullptr), "info");
    refused(turbotune_runtime_create(nullptr, nullptr), "runtime");
    refused(turbotune_runtime_device(nullptr, &info), "runtime");
    refused(turbotune_runtime_device(runtime, nullptr), "info");
    refused(turbotune_allocate(nullptr, 8, &pointer), "runtime");
    refused(turbotune_allocate(runtime, 8, nullptr), "pointer");
    refused(turbotune_copy_to_device(runtime, nullptr, &info, 8), "to");
    refused(turbotune_copy_to_device(runtime, &info, nullptr, 8), "from");
    refused(turbotune_copy_to_host(runtime, nullptr, &info, 8), "to");
    refused(turbotune_copy_to_host(runtime, &info, nullptr, 8), "from");
    refused(turbotune_fill(runtime, nullptr, 0, 8), "pointer");
    refused(turbotune_stream_create(runtime, nullptr), "stream");
    refused(turbotune_synchronize(nullptr, nullptr), "runtime");
    refused(turbotune_plan_kernel(nullptr, 0, &kernel), "plan");
    refused(turbotune_disentangled_attention_supported(nullptr, &problem), "runtime");
    refused(turbotune_disentangled_attention_supported(runtime, nullptr), "problem");
    refused(turbotune_disentangled_attention_plan_create(nullptr, &problem, nullptr, nullptr, &plan), "runtime");
    refused(turbotune_disentangled_attention_plan_create(runtime, nullptr, nullptr, nullptr, &plan), "problem");
    refused(turbotune_disentangled_attention_plan_create(runtime, &problem, nullptr, nullptr, nullptr), "plan");
    refused(turbotune_disentangled_attention_execute(nullptr, &buffers, nullptr), "plan");
    refused(turbotune_disentangled_attention_keep_mask(nullptr, 0, 0, nullptr), "problem");
    refused(turbotune_disentangled_attention_keep_mask(&problem, 0, 0, nullptr), "keep");
    CHECK(plan == nullptr);
}

TEST_CASE("Destroying, freeing and asking null does nothing", "[capi]") {
    const CpuRuntime runtime;
    turbotune_runtime_destroy(nullptr);
    turbotune_plan_destroy(nullptr);
    turbotune_free(nullptr, nullptr);
    turbotune_free(runtime, nullptr);
    turbotune_stream_destroy(runtime, nullptr);
    turbotune_stream_destroy(nullptr, nullptr);
    turbotune_runtime_options_init(nullptr, 0);
    turbotune_disentangled_attention_problem_init(nullptr, 100);
    CHECK(turbotune_plan_workspace_bytes(nullptr) == 0);
    CHECK(turbotune_plan_kernel_count(nullptr) == 0);
    CHECK(std::string(turbotune_plan_config(nullptr)).empty());
    CHECK(std::string(turbotune_plan_origin(nullptr)).empty());
    CHECK(std::string(turbotune_plan_note(nullptr)).empty());
}

TEST_CASE("A caller with an older, shorter struct gets the defaults of what he does not know", "[capi]") {
    const CpuRuntime runtime;
    const auto problem = small_problem();
    // As if the struct had ended with `mask`: no dropout, dense tensors.
    const std::size_t known = offsetof(turbotune_disentangled_attention_problem, dropout);
    std::vector<char> older(known + 64, '\x7f');
    std::memcpy(older.data(), &problem, known);
    std::memcpy(older.data(), &known, sizeof known);
    const auto* view = reinterpret_cast<const turbotune_disentangled_attention_problem*>(older.data());
    INFO(last_error());
    CHECK(turbotune_disentangled_attention_supported(runtime, view) == TURBOTUNE_OK);

    turbotune_device_info info;
    std::memset(&info, 0x5a, sizeof info);
    turbotune_device_info_init(&info, offsetof(turbotune_device_info, name));
    REQUIRE(turbotune_device_best(&info) == TURBOTUNE_OK);
    CHECK(info.name[0] == 0x5a);  // past the end of the older struct
    CHECK(info.struct_size == offsetof(turbotune_device_info, name));
}

TEST_CASE("A caller with a newer, longer struct is served while its new fields are zero", "[capi]") {
    const CpuRuntime runtime;
    struct {
        turbotune_disentangled_attention_problem known;
        int64_t future;
    } newer;
    turbotune_disentangled_attention_problem_init(&newer.known, sizeof newer);
    CHECK(newer.known.struct_size == sizeof newer);
    CHECK(newer.future == 0);
    CHECK(turbotune_disentangled_attention_supported(runtime, &newer.known) == TURBOTUNE_OK);
    newer.future = 1;
    CHECK(turbotune_disentangled_attention_supported(runtime, &newer.known) == TURBOTUNE_INVALID_ARGUMENT);
    CHECK(last_error().find("this version does not have") != std::string::npos);
}

TEST_CASE("A struct that was not initialised is refused", "[capi]") {
    turbotune_disentangled_attention_problem problem{};
    const CpuRuntime runtime;
    CHECK(turbotune_disentangled_attention_supported(runtime, &problem) == TURBOTUNE_INVALID_ARGUMENT);
    CHECK(last_error().find("struct_size is not set") != std::string::npos);
}

TEST_CASE("Each thread has its own last error", "[capi]") {
    CHECK(turbotune_device_count(nullptr) == TURBOTUNE_INVALID_ARGUMENT);
    const std::string mine = last_error();
    std::string fresh, other;
    std::thread([&] {
        fresh = last_error();
        turbotune_device_get(-7, nullptr);
        other = last_error();
    }).join();
    CHECK(fresh.empty());
    CHECK(other != mine);
    CHECK(last_error() == mine);
    int32_t count = 0;
    CHECK(turbotune_device_count(&count) == TURBOTUNE_OK);
    CHECK(last_error() == mine);  // success leaves it
}

TEST_CASE("Mistakes in a problem name the field and the value", "[capi]") {
    const CpuRuntime runtime;
    const auto refused = [&](const turbotune_disentangled_attention_problem& problem, turbotune_status status,
                             const char* part) {
        turbotune_plan* plan = nullptr;
        CHECK(turbotune_disentangled_attention_plan_create(runtime, &problem, nullptr, nullptr, &plan) == status);
        CHECK(plan == nullptr);
        INFO(last_error());
        CHECK(last_error().find(part) != std::string::npos);
        CHECK(turbotune_disentangled_attention_supported(runtime, &problem) == status);
    };
    auto problem = small_problem();
    problem.pass = 9;
    refused(problem, TURBOTUNE_INVALID_ARGUMENT, "pass: 9");
    problem = small_problem();
    problem.dtype = -1;
    refused(problem, TURBOTUNE_INVALID_ARGUMENT, "dtype: -1");
    problem = small_problem();
    problem.mask = 2;
    refused(problem, TURBOTUNE_INVALID_ARGUMENT, "mask: must be 0 or 1, got 2");
    problem = small_problem();
    problem.batch = 0;
    refused(problem, TURBOTUNE_INVALID_ARGUMENT, "batch");
    problem = small_problem();
    problem.head_dim = 96;
    refused(problem, TURBOTUNE_UNSUPPORTED, "96");
    problem = small_problem();
    problem.dropout = 0.1f;
    refused(problem, TURBOTUNE_INVALID_ARGUMENT, "dropout");
    problem = small_problem();
    problem.out.row = 8;  // rows of heads * head_dim elements overlap
    problem.out.head = 32;
    refused(problem, TURBOTUNE_INVALID_ARGUMENT, "out");
}

TEST_CASE("Options of a runtime that are mistakes are refused with their names", "[capi]") {
    turbotune_runtime* runtime = nullptr;
    auto options = cpu_options();
    options.policy = "fastest";
    CHECK(turbotune_runtime_create(&options, &runtime) == TURBOTUNE_INVALID_ARGUMENT);
    CHECK(last_error().find("fastest") != std::string::npos);
    options = cpu_options();
    options.device = "coprocessor";
    CHECK(turbotune_runtime_create(&options, &runtime) != TURBOTUNE_OK);
    CHECK(last_error().find("coprocessor") != std::string::npos);
    options = cpu_options();
    options.fixed_config = "tier";
    CHECK(turbotune_runtime_create(&options, &runtime) == TURBOTUNE_INVALID_ARGUMENT);
    CHECK(last_error().find("fixed_config") != std::string::npos);
    options = cpu_options();
    options.profile_count = 1;
    CHECK(turbotune_runtime_create(&options, &runtime) == TURBOTUNE_INVALID_ARGUMENT);
    CHECK(last_error().find("profiles") != std::string::npos);
    CHECK(runtime == nullptr);
}

TEST_CASE("Messages of the library reach the callback, and null restores the default", "[capi]") {
    struct Seen {
        std::vector<std::pair<int, std::string>> messages;
    } seen;
    const auto keep = [](int level, const char* message, void* user) {
        static_cast<Seen*>(user)->messages.emplace_back(level, message);
    };
    REQUIRE(turbotune_set_log_callback(keep, &seen) == TURBOTUNE_OK);
    const TempFolder folder;
    const std::string broken = folder.path() + "/broken.json";
    ::setenv("TURBOTUNE_PROFILE_DIR", folder.path().c_str(), 1);
    FILE* file = std::fopen(broken.c_str(), "w");
    REQUIRE(file != nullptr);
    std::fputs("{", file);
    std::fclose(file);
    auto options = cpu_options();
    options.discover_profiles = 1;
    {
        const CpuRuntime runtime(options);
        const auto problem = small_problem();
        turbotune_plan* plan = nullptr;
        turbotune_disentangled_attention_plan_create(runtime, &problem, nullptr, nullptr, &plan);
        turbotune_plan_destroy(plan);
    }
    ::unsetenv("TURBOTUNE_PROFILE_DIR");
    CHECK(turbotune_set_log_callback(nullptr, nullptr) == TURBOTUNE_OK);
    CHECK(std::any_of(seen.messages.begin(), seen.messages.end(), [&](const auto& each) {
        return each.first == 2 && each.second.find("broken.json") != std::string::npos;
    }));
}

TEST_CASE("Memory of the device is allocated, filled, copied and freed", "[capi]") {
    const CpuRuntime runtime;
    void* pointer = nullptr;
    REQUIRE(turbotune_allocate(runtime, 1000, &pointer) == TURBOTUNE_OK);
    CHECK(reinterpret_cast<std::uintptr_t>(pointer) % 256 == 0);
    std::vector<unsigned char> host(1000, 1);
    REQUIRE(turbotune_fill(runtime, pointer, 0xab, 1000) == TURBOTUNE_OK);
    REQUIRE(turbotune_copy_to_device(runtime, pointer, host.data(), 10) == TURBOTUNE_OK);
    REQUIRE(turbotune_copy_to_host(runtime, host.data(), pointer, 1000) == TURBOTUNE_OK);
    CHECK(std::count(host.begin(), host.end(), 1) == 10);
    CHECK(std::count(host.begin(), host.end(), 0xab) == 990);
    void* stream = nullptr;
    REQUIRE(turbotune_stream_create(runtime, &stream) == TURBOTUNE_OK);
    CHECK(turbotune_synchronize(runtime, stream) == TURBOTUNE_OK);
    turbotune_stream_destroy(runtime, stream);
    turbotune_free(runtime, pointer);
    void* huge = nullptr;
    CHECK(turbotune_allocate(runtime, std::size_t(1) << 60, &huge) == TURBOTUNE_DEVICE_ERROR);
    CHECK(huge == nullptr);
}
