#include "catch.h"
#include "kernel_testing.h"
#include "turbotune/base/error.h"

using namespace turbotune;
using namespace turbotune::testing;

namespace {

struct Templates {
    TempFolder folder;
    ScopedVariable variable{"TURBOTUNE_TEMPLATE_DIR", folder.path()};
    void write(const std::string& path, const std::string& text) { write_text(folder / path, text); }
};

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

std::size_t count(const std::string& text, const std::string& part) {
    std::size_t found = 0;
    for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
}

}  // namespace

TEST_CASE("Parameters become named constants", "[render]") {
    Templates templates;
    templates.write("op/k.cu", "#include \"config\"\nint x;\n");
    const Fields parameters{{"block_m", std::int64_t{64}},
                            {"big", std::int64_t{3000000000}},
                            {"least", std::int64_t{-2147483648LL}},
                            {"masked", true},
                            {"plain", false},
                            {"ELEMENT", std::string("unsigned short")}};
    const std::string text = render({"op/k.cu", "k", parameters, "sm_80"});
    CHECK(contains(text, "constexpr int block_m = 64;\n"));
    CHECK(contains(text, "constexpr long long big = 3000000000LL;\n"));
    CHECK(contains(text, "constexpr int least = -2147483647 - 1;\n"));
    CHECK(contains(text, "constexpr bool masked = true;\n"));
    CHECK(contains(text, "constexpr bool plain = false;\n"));
    const auto macro = text.find("#define ELEMENT unsigned short\n"), scope = text.find("namespace config {");
    REQUIRE(macro != std::string::npos);
    REQUIRE(scope != std::string::npos);
    CHECK(macro < scope);
}

TEST_CASE("A snippet is inlined once, however it is reached", "[render]") {
    Templates templates;
    templates.write("common/a.h", "#pragma once\nint a;\n#include \"common/b.h\"\n");
    templates.write("common/b.h", "#  pragma   once\nint b;\n#include \"common/a.h\"\n");
    templates.write("op/params.h", "int params;\n");
    templates.write("op/k.cu",
                    "#include \"common/b.h\"\n#include \"common/a.h\"  // again\n#include \"params.h\"\n#include "
                    "\"../common/a.h\"\nint k;\n");
    const std::string text = render({"op/k.cu", "k", {}, "sm_80"});
    for (const char* line : {"int a;\n", "int b;\n", "int params;\n", "int k;\n"}) CHECK(count(text, line) == 1);
    CHECK_FALSE(contains(text, "pragma"));
    CHECK_FALSE(contains(text, "#include"));
}

TEST_CASE("Line directives name the template and its own lines", "[render]") {
    Templates templates;
    templates.write("common/a.h", "#pragma once\nint a;\n");
    templates.write("op/k.cu", "int first;\n#include \"common/a.h\"\nint third;\n");
    CHECK(render({"op/k.cu", "k", {}, "sm_80"}) ==
          "#line 1 \"op/k.cu\"\nint first;\n#line 1 \"common/a.h\"\n\nint a;\n#line 3 \"op/k.cu\"\nint third;\n");
}

TEST_CASE("Includes that are not understood are refused with their place", "[render]") {
    Templates templates;
    const auto refuses = [&](const std::string& path, const std::string& text, const std::string& words) {
        templates.write(path, text);
        try {
            render({path, "k", {}, "sm_80"});
            FAIL("not refused: " << text);
        } catch (const InvalidArgument& error) {
            CHECK(contains(error.what(), words));
        }
    };
    refuses("op/k.cu", "\n#include \"cuda_fp16.h\"\n", "op/k.cu:2");
    refuses("op/k.cu", "#include <cuda_fp16.h>\n", "no system header");
    refuses("op/k.cu", "#include NAME\n", "not understood");
    refuses("op/k.cu", "#include \"common/x.h\n", "not understood");
    refuses("op/k.cu", "#include \"../../etc/passwd\"\n", "below kernel_templates/");
    refuses("op/k.cu", "#include \"/etc/passwd\"\n", "below kernel_templates/");
    REQUIRE_THROWS_AS(render({"op/none.cu", "k", {}, "sm_80"}), InvalidArgument);
    REQUIRE_THROWS_AS(render({"../k.cu", "k", {}, "sm_80"}), InvalidArgument);
    REQUIRE_THROWS_AS(template_text("/etc/passwd"), InvalidArgument);
}

TEST_CASE("Only host templates include system headers", "[render]") {
    Templates templates;
    templates.write("op/k.cpp", "#include <cmath>\nint k;\n");
    CHECK(contains(render({"op/k.cpp", "k", {}, "x86_64"}), "#include <cmath>\n"));
}

TEST_CASE("A parameter that cannot be a constant is refused", "[render]") {
    Templates templates;
    templates.write("op/k.cu", "#include \"config\"\n");
    templates.write("op/plain.cu", "int k;\n");
    const auto with = [](const std::string& name, FieldValue value) {
        Fields fields;
        fields.set(name, std::move(value));
        return fields;
    };
    for (const char* name : {"", "1st", "block m", "int", "a-b", "x;y", "\xc3\xa9"})
        REQUIRE_THROWS_AS(render({"op/k.cu", "k", with(name, std::int64_t{1}), "sm_80"}), InvalidArgument);
    REQUIRE_THROWS_AS(render({"op/k.cu", "k", with("T", std::string("int\nx")), "sm_80"}), InvalidArgument);
    REQUIRE_THROWS_AS(render({"op/k.cu", "k", with("T", std::string("int \\")), "sm_80"}), InvalidArgument);
    REQUIRE_THROWS_AS(render({"op/plain.cu", "k", with("block_m", std::int64_t{1}), "sm_80"}), InvalidArgument);
}

TEST_CASE("The template digest follows every text of the operation and of common", "[render]") {
    Templates templates;
    templates.write("common/a.h", "int a;\n");
    templates.write("op/k.cu", "int k;\n");
    templates.write("other/k.cu", "int o;\n");
    const Digest before = template_digest("op");
    templates.write("other/k.cu", "int p;\n");
    CHECK(template_digest("op") == before);
    templates.write("common/a.h", "int b;\n");
    const Digest snippet_changed = template_digest("op");
    CHECK(snippet_changed != before);
    templates.write("op/k.cu", "int l;\n");
    CHECK(template_digest("op") != snippet_changed);
    templates.write("common/a.h", "int a;\n");
    templates.write("op/k.cu", "int k;\n");
    CHECK(template_digest("op") == before);
    std::filesystem::rename(templates.folder / "op/k.cu", templates.folder / "op/l.cu");
    CHECK(template_digest("op") != before);
}

TEST_CASE("The built-in templates are the files of the source tree", "[render]") {
    const std::string root = std::string(TURBOTUNE_SOURCE_DIR) + "/kernel_templates";
    REQUIRE_FALSE(template_paths().empty());
    for (const std::string& path : template_paths()) {
        INFO(path);
        CHECK_FALSE(template_text(path).empty());
        CHECK((template_text(path) == read_text(root + "/" + path)));
    }
}
