// A template and its parameters become one self-contained text. `#line` directives keep the compiler's messages at the
// template's own lines.
#include <fmt/format.h>

#include <filesystem>
#include <limits>
#include <set>
#include <string_view>

#include "turbotune/base/error.h"
#include "turbotune/kernel/kernel_spec.h"

namespace turbotune {
namespace {

bool is_identifier(std::string_view name) {
    static const std::set<std::string_view> keywords = {
        "alignas", "alignof",  "asm",       "auto",      "bool",      "break",    "case",      "catch",     "char",
        "class",   "const",    "constexpr", "continue",  "decltype",  "default",  "delete",    "do",        "double",
        "else",    "enum",     "explicit",  "export",    "extern",    "false",    "float",     "for",       "friend",
        "goto",    "if",       "inline",    "int",       "long",      "mutable",  "namespace", "new",       "noexcept",
        "nullptr", "operator", "private",   "protected", "public",    "register", "return",    "short",     "signed",
        "sizeof",  "static",   "struct",    "switch",    "template",  "this",     "throw",     "true",      "try",
        "typedef", "typeid",   "typename",  "union",     "unsigned",  "using",    "virtual",   "void",      "volatile",
        "while",   "concept",  "requires",  "co_await",  "co_return", "co_yield", "consteval", "constinit", "defined"};
    if (name.empty() || keywords.count(name) != 0) return false;
    for (std::size_t i = 0; i < name.size(); ++i) {
        const char c = name[i];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        if (!letter && !(i > 0 && c >= '0' && c <= '9')) return false;
    }
    return true;
}

std::string integer_constant(const std::string& name, std::int64_t value) {
    constexpr std::int64_t low = std::numeric_limits<std::int32_t>::min();
    constexpr std::int64_t high = std::numeric_limits<std::int32_t>::max();
    // The most negative value of a type has no literal of its own: -2147483648 is minus a long.
    if (value == low) return fmt::format("constexpr int {} = -2147483647 - 1;\n", name);
    if (value > low && value <= high) return fmt::format("constexpr int {} = {};\n", name, value);
    if (value == std::numeric_limits<std::int64_t>::min())
        return fmt::format("constexpr long long {} = -9223372036854775807LL - 1;\n", name);
    return fmt::format("constexpr long long {} = {}LL;\n", name, value);
}

std::string config_text(const Fields& parameters) {
    std::string macros, constants;
    for (const auto& [name, value] : parameters.entries()) {
        if (!is_identifier(name)) throw InvalidArgument("parameters", "\"" + name + "\" is not an identifier");
        if (const auto* text = std::get_if<std::string>(&value)) {
            if (text->find_first_of("\n\r\\") != std::string::npos)
                throw InvalidArgument("parameters." + name, "a line break or a backslash in \"" + *text + "\"");
            macros += fmt::format("#define {} {}\n", name, *text);
        } else if (const auto* flag = std::get_if<bool>(&value)) {
            constants += fmt::format("constexpr bool {} = {};\n", name, *flag);
        } else {
            constants += integer_constant(name, std::get<std::int64_t>(value));
        }
    }
    return macros + "namespace config {\n" + constants + "}\n";
}

std::string_view trimmed(std::string_view text) {
    const auto first = text.find_first_not_of(" \t\r");
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// The words after `# keyword`; nothing when the line is not that directive.
bool is_directive(std::string_view line, std::string_view keyword, std::string_view* rest) {
    line = trimmed(line);
    if (line.empty() || line.front() != '#') return false;
    line = trimmed(line.substr(1));
    if (!line.starts_with(keyword)) return false;
    line.remove_prefix(keyword.size());
    if (!line.empty() && line.front() != ' ' && line.front() != '\t' && line.front() != '"' && line.front() != '<')
        return false;
    *rest = trimmed(line);
    return true;
}

class Renderer {
  public:
    explicit Renderer(const KernelSpec& spec) : spec_(spec) {}

    std::string run() {
        append(spec_.template_path, template_text(spec_.template_path));
        if (!config_included_ && !spec_.parameters.empty())
            throw InvalidArgument(
                "parameters", "\"" + spec_.template_path + "\" never includes \"config\", so they would be ignored");
        return std::move(out_);
    }

  private:
    void append(const std::string& path, std::string_view text) {
        included_.insert(path);
        line_directive(1, path);
        int number = 0;
        while (!text.empty()) {
            const auto end = text.find('\n');
            const std::string_view line = text.substr(0, end);
            text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
            append_line(path, ++number, line);
        }
    }

    void append_line(const std::string& path, int number, std::string_view line) {
        std::string_view rest;
        if (is_directive(line, "pragma", &rest) && rest == "once") {
            out_ += '\n';
        } else if (is_directive(line, "include", &rest)) {
            include(path, number, rest);
        } else {
            out_.append(line);
            out_ += '\n';
        }
    }

    void include(const std::string& path, int number, std::string_view operand) {
        const std::string where = fmt::format("{}:{}", path, number);
        if (operand.starts_with('<')) {
            if (!spec_.is_host())
                throw InvalidArgument("template",
                                      where + ": a CUDA template includes no system header: " + std::string(operand));
            out_ += "#include " + std::string(operand) + '\n';
            return;
        }
        const auto close = operand.size() > 1 ? operand.find('"', 1) : std::string_view::npos;
        if (operand.empty() || operand.front() != '"' || close == std::string_view::npos)
            throw InvalidArgument("template", where + ": an #include that is not understood: " + std::string(operand));
        const std::string_view comment = trimmed(operand.substr(close + 1));
        if (!comment.empty() && !comment.starts_with("//") && !comment.starts_with("/*"))
            throw InvalidArgument("template", where + ": text after the #include: " + std::string(comment));
        splice(path, where, std::string(operand.substr(1, close - 1)));
        line_directive(number + 1, path);
    }

    void splice(const std::string& path, const std::string& where, const std::string& name) {
        if (name == "config") {
            if (config_included_) return;
            config_included_ = true;
            line_directive(1, "config");
            out_ += config_text(spec_.parameters);
            return;
        }
        const std::string beside = (std::filesystem::path(path).parent_path() / name).lexically_normal().string();
        const std::string below_root = std::filesystem::path(name).lexically_normal().string();
        for (const std::string& found : {below_root, beside}) {
            if (included_.count(found) != 0) return;
            std::string text;
            try {
                text = template_text(found);
            } catch (const InvalidArgument&) {
                continue;
            }
            append(found, text);
            return;
        }
        throw InvalidArgument("template",
                              where + ": \"" + name + "\" is neither \"config\" nor a file below kernel_templates/");
    }

    void line_directive(int number, const std::string& path) { out_ += fmt::format("#line {} \"{}\"\n", number, path); }

    const KernelSpec& spec_;
    std::string out_;
    std::set<std::string> included_;
    bool config_included_ = false;
};

}  // namespace

std::string render(const KernelSpec& spec) {
    return Renderer(spec).run();
}

}  // namespace turbotune
