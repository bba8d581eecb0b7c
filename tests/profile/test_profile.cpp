#include "turbotune/profile/profile.h"

#include <sys/resource.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <random>
#include <thread>

#include "catch.h"
#include "fixtures.h"
#include "turbotune/base/error.h"
#include "turbotune/base/json.h"

using namespace turbotune;
using namespace turbotune::test;

namespace {

void require_same(const Latency& a, const Latency& b) {
    REQUIRE(a.min == b.min);
    REQUIRE(a.p10 == b.p10);
    REQUIRE(a.median == b.median);
    REQUIRE(a.p90 == b.p90);
    REQUIRE(a.samples == b.samples);
}

void require_same(const ProfileEntry& a, const ProfileEntry& b) {
    REQUIRE(a.workload == b.workload);
    REQUIRE(a.config == b.config);
    REQUIRE(a.config.to_string() == b.config.to_string());  // the order too
    require_same(a.latency, b.latency);
    REQUIRE(a.parity.patterns == b.parity.patterns);
    REQUIRE(a.parity.outputs.size() == b.parity.outputs.size());
    for (std::size_t i = 0; i < a.parity.outputs.size(); ++i) {
        REQUIRE(a.parity.outputs[i].output == b.parity.outputs[i].output);
        REQUIRE(a.parity.outputs[i].error == b.parity.outputs[i].error);
        REQUIRE(a.parity.outputs[i].tolerance == b.parity.outputs[i].tolerance);
    }
    REQUIRE(a.registers == b.registers);
    REQUIRE(a.local_bytes == b.local_bytes);
    REQUIRE(a.shared_bytes == b.shared_bytes);
    REQUIRE(a.measured.size() == b.measured.size());
    for (std::size_t i = 0; i < a.measured.size(); ++i) {
        REQUIRE(a.measured[i].config == b.measured[i].config);
        require_same(a.measured[i].latency, b.measured[i].latency);
    }
    REQUIRE(a.rejected.size() == b.rejected.size());
    for (std::size_t i = 0; i < a.rejected.size(); ++i) {
        REQUIRE(a.rejected[i].config == b.rejected[i].config);
        REQUIRE(a.rejected[i].reason == b.rejected[i].reason);
        REQUIRE(a.rejected[i].detail == b.rejected[i].detail);
    }
}

void require_same(const Profile& a, const Profile& b) {
    REQUIRE(a.device_class == b.device_class);
    REQUIRE(a.device_name == b.device_name);
    REQUIRE(a.compiler == b.compiler);
    REQUIRE(a.templates == b.templates);
    REQUIRE(a.provenance == b.provenance);
    REQUIRE(a.entries.size() == b.entries.size());
    for (std::size_t i = 0; i < a.entries.size(); ++i) require_same(a.entries[i], b.entries[i]);
}

// The fixture's profile as JSON without a checksum, for editing.
Json unsigned_document() {
    Json document = parse_json(to_json_text(profile()), "fixture");
    document.erase("checksum");
    return document;
}

std::string error_of(const std::string& text) {
    try {
        parse_profile(text, "p.json");
    } catch (const InvalidArgument& error) {
        return error.what();
    }
    return "accepted";
}

struct Edit {
    const char* pointer;  // what is replaced, added (last token new) or, with a discarded value, removed
    Json value;
    const char* expected;  // the start of the error, after "p.json: "
};

const Json kRemoved = Json(Json::value_t::discarded);

std::string edited(const Edit& edit) {
    Json document = unsigned_document();
    const Json::json_pointer pointer(edit.pointer);
    if (edit.value.is_discarded())
        document[pointer.parent_pointer()].erase(pointer.back());
    else
        document[pointer] = edit.value;
    return document.dump();
}

}  // namespace

TEST_CASE("A profile survives its JSON form unchanged", "[profile]") {
    Profile original = profile();
    original.entries[0].registers = -1;
    original.entries[0].rejected[0].detail = "quotes \" and \\ and\nlines, Grüße";
    original.entries[1].measured.clear();
    original.entries[1].parity.patterns.clear();
    const std::string text = to_json_text(original);
    require_same(parse_profile(text, "p.json"), original);
    REQUIRE(to_json_text(parse_profile(text, "p.json")) == text);
    REQUIRE(text.back() == '\n');
}

TEST_CASE("Random latencies come back bit for bit", "[profile]") {
    std::mt19937_64 random(7);
    std::uniform_real_distribution<double> exponent(-8, 8), fraction(1, 2);
    Profile original = profile();
    original.entries.clear();
    for (int i = 0; i < 300; ++i) {
        ProfileEntry one = entry(i + 1, 64);
        const double base = fraction(random) * std::pow(10, exponent(random));
        one.latency = {base, base * 1.1, base * fraction(random) * 1.2, base * 3, i + 1};
        one.parity.outputs[0].error = fraction(random) * 1e-30;
        original.entries.push_back(one);
    }
    require_same(parse_profile(to_json_text(original), "p.json"), original);
}

TEST_CASE("An empty profile of a known device is a profile", "[profile]") {
    Profile original;
    original.device_class = h200();
    require_same(parse_profile(to_json_text(original), "p.json"), original);
}

TEST_CASE("The text is made for people: short objects stay on a line", "[profile]") {
    const std::string text = to_json_text(profile());
    REQUIRE_THAT(text, ContainsSubstring("\n      \"workload\": {\"operation\": \"disentangled_attention\", \"pass\": "
                                         "\"inference\", \"length\": 128, \"head_dim\": 64},\n"));
    REQUIRE_THAT(text, ContainsSubstring("\"config\": {\"tier\": \"mma\", \"block_m\": 64, \"swizzle\": true}"));
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) REQUIRE(line.size() <= 122);
}

TEST_CASE("Every malformed profile is refused with the path of the value", "[profile][field-28]") {
    const Json first = unsigned_document()["entries"][0];
    const std::vector<Edit> edits = {
        {"/surplus", 1, "/surplus: unknown key"},
        {"/format", kRemoved, "/format: missing key"},
        {"/format", "1", "/format: expected an integer"},
        {"/format", 2, "/format: written by a newer version: format 2, this one reads 1"},
        {"/format", 0, "/format: unknown format 0, this one reads 1"},
        {"/checksum", 5, "/checksum: expected a text"},
        {"/device", kRemoved, "/device: missing key"},
        {"/device/name", kRemoved, "/device/name: missing key"},
        {"/device/vendor", "x", "/device/vendor: unknown key"},
        {"/device/class/arch", "", "/device/class/arch: must not be empty"},
        {"/device/class/sm_count", 0, "/device/class/sm_count: expected an integer"},
        {"/device/class/sm_count", 132.5, "/device/class/sm_count: expected an integer"},
        {"/device/class/sm_count", 5000000000, "/device/class/sm_count: expected an integer"},
        {"/device/class/l2_bytes", -1, "/device/class/l2_bytes: expected an integer"},
        {"/device/class/bus_width", kRemoved, "/device/class/bus_width: missing key"},
        {"/device/class/name", "H200", "/device/class/name: unknown key"},
        {"/compiler", nullptr, "/compiler: expected a text"},
        {"/templates", Json::array(), "/templates: expected an object"},
        {"/templates/disentangled_attention", "abc", "/templates/disentangled_attention: 'abc' is not a SHA-256"},
        {"/templates/disentangled_attention", std::string(64, 'G'), "/templates/disentangled_attention: "},
        {"/provenance/date", 2026, "/provenance/date: expected a text"},
        {"/entries", Json::object(), "/entries: expected an array"},
        {"/entries/0", 3, "/entries/0: expected an object"},
        {"/entries/1/latencies", 1, "/entries/1/latencies: unknown key"},
        {"/entries/0/workload/operation", kRemoved, "/entries/0/workload/operation: missing key"},
        {"/entries/0/workload/operation", "", "/entries/0/workload/operation: must not be empty"},
        {"/entries/0/workload/length", 0, "/entries/0/workload/length: expected an integer"},
        {"/entries/0/workload/length", -128, "/entries/0/workload/length: expected an integer"},
        {"/entries/0/workload/length", 128.0, "/entries/0/workload/length: expected a boolean, an integer or a text"},
        {"/entries/0/workload/shape", Json::array({1}), "/entries/0/workload/shape: expected a boolean"},
        {"/entries/0/config/block_m", -64, "/entries/0/config/block_m: expected an integer"},
        {"/entries/0/config/block_m", nullptr, "/entries/0/config/block_m: expected a boolean"},
        {"/entries/0/config/tier", kRemoved, "/entries/0/config/tier: missing key"},
        {"/entries/0/config/tier", 90, "/entries/0/config/tier: expected a text"},
        {"/entries/0/config", kRemoved, "/entries/0/config: missing key"},
        {"/entries/0/latency/median", kRemoved, "/entries/0/latency/median: missing key"},
        {"/entries/0/latency/median", 0, "/entries/0/latency/median: expected a number"},
        {"/entries/0/latency/median", -0.5, "/entries/0/latency/median: expected a number"},
        {"/entries/0/latency/median", "NaN", "/entries/0/latency/median: expected a number"},
        {"/entries/0/latency/median", nullptr, "/entries/0/latency/median: expected a number"},
        {"/entries/0/latency/median", 0.15, "/entries/0/latency/median: is below p10"},
        {"/entries/0/latency/min", 0.24, "/entries/0/latency/p10: is below min"},
        {"/entries/0/latency/p90", 0.2, "/entries/0/latency/p90: is below median"},
        {"/entries/0/latency/samples", 0, "/entries/0/latency/samples: expected an integer"},
        {"/entries/0/latency/mean", 1, "/entries/0/latency/mean: unknown key"},
        {"/entries/0/parity/outputs/0/error", -1, "/entries/0/parity/outputs/0/error: expected a number"},
        {"/entries/0/parity/outputs/0/tolerance", kRemoved, "/entries/0/parity/outputs/0/tolerance: missing key"},
        {"/entries/0/parity/outputs/0/extra", 1, "/entries/0/parity/outputs/0/extra: unknown key"},
        {"/entries/0/parity/patterns/1", 5, "/entries/0/parity/patterns/1: expected a text"},
        {"/entries/0/parity/seeds", 5, "/entries/0/parity/seeds: unknown key"},
        {"/entries/0/registers", -2, "/entries/0/registers: expected an integer"},
        {"/entries/0/local_bytes", true, "/entries/0/local_bytes: expected an integer"},
        {"/entries/0/shared_bytes", kRemoved, "/entries/0/shared_bytes: missing key"},
        {"/entries/0/measured/0/config/block_m", -1, "/entries/0/measured/0/config/block_m: expected an integer"},
        {"/entries/0/measured/0/latency/min", 0, "/entries/0/measured/0/latency/min: expected a number"},
        {"/entries/0/measured/0/note", "", "/entries/0/measured/0/note: unknown key"},
        {"/entries/0/rejected/0/reason", "", "/entries/0/rejected/0/reason: '' is not a reason"},
        {"/entries/0/rejected/0/reason", "Too Big", "/entries/0/rejected/0/reason: 'Too Big' is not a reason"},
        {"/entries/0/rejected/0/detail", kRemoved, "/entries/0/rejected/0/detail: missing key"},
        {"/entries/0/rejected/0/why", "", "/entries/0/rejected/0/why: unknown key"},
        {"/entries/1", first, "/entries/1/workload: the same workload as /entries/0"},
        {"/entries/2", first, "/entries/2/workload: the same workload as /entries/0"},
    };
    REQUIRE(error_of(unsigned_document().dump()) == "accepted");
    for (const Edit& edit : edits) {
        INFO(edit.pointer);
        CHECK_THAT(error_of(edited(edit)), Catch::Matchers::StartsWith(std::string("p.json: ") + edit.expected));
    }
}

TEST_CASE("The same workload in another order of fields is a duplicate", "[profile]") {
    Json document = unsigned_document();
    document["entries"][1]["workload"] = {
        {"length", 128}, {"head_dim", 64}, {"pass", "inference"}, {"operation", "disentangled_attention"}};
    REQUIRE_THAT(error_of(document.dump()), ContainsSubstring("/entries/1/workload: the same workload as /entries/0"));
}

TEST_CASE("Text that is no JSON, no object or holds NaN is refused", "[profile]") {
    for (const char* text : {"", "{", "[]", "7", "null", "{\"format\": 1} x", "{\"format\": 1, \"format\": 1}"}) {
        INFO(text);
        REQUIRE_THROWS_AS(parse_profile(text, "p.json"), InvalidArgument);
    }
    std::string text = unsigned_document().dump();
    const std::string median = "\"median\":0.25";
    for (const char* bad : {"NaN", "nan", "Infinity", "-Infinity", "1e999"}) {
        std::string edit = text;
        edit.replace(edit.find(median), median.size(), std::string("\"median\":") + bad);
        INFO(bad);
        REQUIRE_THROWS_AS(parse_profile(edit, "p.json"), InvalidArgument);
    }
}

TEST_CASE("An edit is refused by its checksum until the checksum is deleted", "[profile]") {
    std::string text = to_json_text(profile());
    const std::string tile = "\"block_m\": 64";
    text.replace(text.find(tile), tile.size(), "\"block_m\": 32");
    REQUIRE_THAT(error_of(text),
                 ContainsSubstring("p.json: /checksum: ") && ContainsSubstring("delete the checksum line"));

    const std::size_t begin = text.find("  \"checksum\"");
    text.erase(begin, text.find('\n', begin) + 1 - begin);
    REQUIRE(parse_profile(text, "p.json").entries[0].config.integer("block_m") == 32);
}

TEST_CASE("Another layout of the same values keeps the checksum valid", "[profile]") {
    const Json document = parse_json(to_json_text(profile()), "fixture");
    require_same(parse_profile(document.dump(), "p.json"), profile());
    require_same(parse_profile(document.dump(7), "p.json"), profile());
}

TEST_CASE("A damaged profile is refused or means exactly what it meant", "[profile]") {
    const std::string text = to_json_text(profile());
    std::mt19937_64 random(11);
    int refused = 0;
    for (int i = 0; i < 1000; ++i) {
        std::string damaged = text;
        const std::size_t at = random() % text.size();
        if (i % 2)
            damaged.resize(at);
        else
            damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
        try {
            require_same(parse_profile(damaged, "p.json"), profile());
        } catch (const InvalidArgument&) {
            ++refused;
        }
    }
    REQUIRE(refused > 950);
}

TEST_CASE("Values that JSON cannot hold are not written", "[profile]") {
    Profile bad = profile();
    bad.entries[0].latency.median = std::nan("");
    REQUIRE_THROWS_AS(to_json_text(bad), InvalidArgument);
    bad = profile();
    bad.entries[0].workload.fields.set("operation", "x");
    REQUIRE_THROWS_AS(to_json_text(bad), InvalidArgument);
}

TEST_CASE("Bytes that are no UTF-8 are replaced, and the file stays readable", "[profile]") {
    Profile odd = profile();
    odd.entries[0].rejected[0].detail = "log \xff\xfe end";
    const Profile back = parse_profile(to_json_text(odd), "p.json");
    REQUIRE_THAT(back.entries[0].rejected[0].detail, ContainsSubstring("log ") && ContainsSubstring(" end"));
}

TEST_CASE("A saved profile is loaded from paths with spaces and letters beyond ASCII", "[profile]") {
    const TempDirectory directory;
    const std::string path = directory / "new folder/Profil für mich.json";
    save_profile(profile(), path);
    require_same(load_profile(path), profile());
    REQUIRE(std::distance(std::filesystem::directory_iterator(directory / "new folder"), {}) == 1);
}

TEST_CASE("A profile that cannot be written leaves the old file as it was", "[profile]") {
    const TempDirectory directory;
    const std::string path = directory / "p.json";
    save_profile(profile(), path);
    const std::string before = read_text(path);

    SECTION("because its values are not acceptable") {
        Profile bad = profile();
        bad.entries[0].config.set("block_m", -1);
        REQUIRE_THROWS_AS(save_profile(bad, path), InvalidArgument);
        bad = profile();
        bad.entries.push_back(bad.entries[0]);
        REQUIRE_THROWS_AS(save_profile(bad, path), InvalidArgument);
        REQUIRE(read_text(path) == before);
    }
    SECTION("because a file stands where its folder should be") {
        REQUIRE_THROWS_WITH(save_profile(profile(), path + "/q.json"),
                            ContainsSubstring(path + "/q.json") && ContainsSubstring("Not a directory"));
        REQUIRE_THROWS_AS(save_profile(profile(), path + "/q.json"), StoreError);
        REQUIRE(read_text(path) == before);
    }
    SECTION("because a folder stands in its place") {
        const std::string folder = directory / "folder.json";
        std::filesystem::create_directories(folder + "/inside");
        REQUIRE_THROWS_WITH(save_profile(profile(), folder),
                            ContainsSubstring(folder) && ContainsSubstring("directory"));
        REQUIRE(std::filesystem::exists(folder + "/inside"));
        REQUIRE(std::distance(std::filesystem::directory_iterator(directory.path()), {}) == 2);
    }
    SECTION("because the write breaks off half way") {
        const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
        rlimit old_limit{};
        ::getrlimit(RLIMIT_FSIZE, &old_limit);
        const rlimit small{200, old_limit.rlim_max};
        ::setrlimit(RLIMIT_FSIZE, &small);
        std::string message;
        try {
            save_profile(profile(), path);
        } catch (const StoreError& error) {
            message = error.what();
        }
        ::setrlimit(RLIMIT_FSIZE, &old_limit);
        std::signal(SIGXFSZ, old_handler);
        REQUIRE_THAT(message, ContainsSubstring(path) && ContainsSubstring("File too large"));
        REQUIRE(read_text(path) == before);
        REQUIRE(std::distance(std::filesystem::directory_iterator(directory.path()), {}) == 1);
    }
}

TEST_CASE("Readers see whole profiles while writers replace them", "[profile]") {
    const TempDirectory directory;
    const std::string path = directory / "p.json";
    save_profile(profile(), path);
    std::atomic<bool> done{false};
    std::atomic<int> bad{0}, reads{0};
    std::vector<std::thread> writers;
    std::thread reader([&] {
        while (!done) {
            try {
                load_profile(path);
                ++reads;
            } catch (const Error&) {
                ++bad;
            }
        }
    });
    for (int writer = 0; writer < 3; ++writer)
        writers.emplace_back([&, writer] {
            Profile mine = profile();
            for (int i = 0; i < 15; ++i) {
                mine.put(entry(1000 * writer + i + 1000, 64));
                save_profile(mine, path);
            }
        });
    for (std::thread& writer : writers) writer.join();
    done = true;
    reader.join();
    REQUIRE(bad == 0);
    REQUIRE(reads > 0);
    REQUIRE(load_profile(path).entries.size() == 17);
    REQUIRE(std::distance(std::filesystem::directory_iterator(directory.path()), {}) == 1);
}

TEST_CASE("A profile that does not exist is named with the reason", "[profile]") {
    REQUIRE_THROWS_AS(load_profile("/nowhere/p.json"), InvalidArgument);
    REQUIRE_THROWS_WITH(load_profile("/nowhere/p.json"),
                        ContainsSubstring("/nowhere/p.json") && ContainsSubstring("No such file"));
}

TEST_CASE("Entries are found by workload and replaced in place", "[profile]") {
    Profile p = profile();
    p.put(entry(128, 32));
    REQUIRE(p.entries.size() == 2);
    REQUIRE(p.entries[0].config.integer("block_m") == 32);
    p.put(entry(1024, 32));
    REQUIRE(p.entries.size() == 3);
    REQUIRE(p.find(workload(1024)) == &p.entries[2]);
    REQUIRE(p.find(workload(2048)) == nullptr);
    Workload other = workload(128);
    other.operation = "triangle_attention";
    REQUIRE(p.find(other) == nullptr);
    REQUIRE(workload(128).to_string() == "disentangled_attention pass=inference length=128 head_dim=64");
}
