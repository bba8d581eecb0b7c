#include "help_format.h"

#include <fmt/format.h>

#include <algorithm>

namespace turbotune::cli {
namespace {

constexpr std::size_t kWidth = 100;
constexpr std::size_t kIndent = 28;  // where explanations begin

// `text` broken at spaces into lines that begin at column `indent`; the first line is where the caller stands.
std::string wrap(const std::string& text, std::size_t indent) {
    std::string out, word;
    std::size_t column = indent;
    for (std::size_t i = 0; i <= text.size(); ++i) {
        if (i < text.size() && text[i] != ' ' && text[i] != '\n') {
            word += text[i];
            continue;
        }
        if (column > indent && column + 1 + word.size() > kWidth) {
            out += '\n' + std::string(indent, ' ');
            column = indent;
        }
        if (column > indent && !word.empty()) {
            out += ' ';
            ++column;
        }
        out += word;
        column += word.size();
        word.clear();
        if (i < text.size() && text[i] == '\n') {
            out += '\n' + std::string(indent, ' ');
            column = indent;
        }
    }
    return out;
}

std::string row(const std::string& label, const std::string& text) {
    std::string out = "  " + label;
    if (out.size() + 2 > kIndent)
        out += '\n' + std::string(kIndent, ' ');
    else
        out.append(kIndent - out.size(), ' ');
    return out + wrap(text, kIndent) + '\n';
}

// "FILE", "IN..."
std::string positional_name(const CLI::Option* option) {
    return option->get_name(true) + (option->get_items_expected_max() > 1 ? "..." : "");
}

std::string label_of(const CLI::Option* option) {
    if (option->get_positional()) return positional_name(option);
    std::string names;
    for (const std::string& name : option->get_snames()) names += fmt::format("{}-{}", names.empty() ? "" : ", ", name);
    for (const std::string& name : option->get_lnames())
        names += fmt::format("{}--{}", names.empty() ? "" : ", ", name);
    const std::string type = option->get_items_expected_max() == 0 ? "" : option->get_type_name();
    return type.empty() ? names : names + ' ' + type;
}

std::string usage_of(const CLI::App* app) {
    std::string path = app->get_name();
    for (const CLI::App* parent = app->get_parent(); parent != nullptr; parent = parent->get_parent())
        path = parent->get_name() + ' ' + path;
    std::string usage = "Usage: " + path;
    for (const CLI::Option* option : app->get_options())
        if (option->get_required() && !option->get_positional()) usage += ' ' + label_of(option);
    usage += " [options]";
    for (const CLI::Option* option : app->get_options())
        if (option->get_positional())
            usage += option->get_required() ? ' ' + positional_name(option) : " [" + positional_name(option) + ']';
    const bool has_commands =
        !app->get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); }).empty();
    if (!has_commands) return usage + '\n';
    // A group of commands without one of its own needs a name; the program itself tunes without.
    if (app->get_parent() != nullptr) return fmt::format("Usage: {} COMMAND [options]\n", path);
    return usage + fmt::format("\n       {} COMMAND [options]\n", path);
}

}  // namespace

std::string HelpFormat::make_help(const CLI::App* app, std::string, CLI::AppFormatMode) const {
    // The first line is what the list of commands shows; the rest is a paragraph.
    std::string description = app->get_description();
    if (const std::size_t line = description.find('\n'); line != std::string::npos) description.insert(line, "\n");
    std::string out = usage_of(app) + '\n' + wrap(description, 0) + '\n';
    for (const std::string& group : app->get_groups()) {
        std::string rows;
        for (const CLI::Option* option : app->get_options())
            if (option->get_group() == group && !group.empty())
                rows += row(label_of(option), option->get_description());
        if (!rows.empty()) out += fmt::format("\n{}:\n{}", group, rows);
    }
    std::string commands;
    for (const CLI::App* sub : app->get_subcommands([](const CLI::App* each) { return !each->get_group().empty(); })) {
        const std::string& text = sub->get_description();
        commands += row(sub->get_name(), text.substr(0, text.find('\n')));
    }
    if (!commands.empty()) out += fmt::format("\nCommands (turbotune COMMAND --help tells more):\n{}", commands);
    if (!app->get_footer().empty()) out += '\n' + app->get_footer() + '\n';
    return out;
}

}  // namespace turbotune::cli
