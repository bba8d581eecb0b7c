#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <system_error>

#include "commands.h"
#include "exit_code.h"
#include "help_format.h"
#include "output.h"
#include "suggest.h"
#include "turbotune/base/error.h"

namespace turbotune::cli {
namespace {

int report(const std::string& message, int code) {
    // One line, whatever a compiler or a file put into the message.
    std::string line = message;
    std::replace(line.begin(), line.end(), '\n', ' ');
    tell(stderr, "turbotune: error: {}\n", line);
    return code;
}

int exit_code_of(const Error& error) {
    switch (error.code()) {
        case ErrorCode::invalid_argument:
        case ErrorCode::unsupported:
            return kUsage;
        case ErrorCode::device:
            return kNoDevice;
        default:
            return kFailures;
    }
}

std::vector<std::string> names_in(const CLI::App& app) {
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options())
        for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const CLI::App* sub : app.get_subcommands([](const CLI::App* each) { return !each->get_group().empty(); }))
        names.push_back(sub->get_name());
    return names;
}

const CLI::App& innermost(const CLI::App& app) {
    const auto chosen = app.get_subcommands();
    return chosen.empty() ? app : innermost(*chosen.back());
}

std::string command_path(const CLI::App& app) {
    return app.get_parent() == nullptr ? app.get_name() : command_path(*app.get_parent()) + ' ' + app.get_name();
}

int report_unknown(const CLI::App& app) {
    const CLI::App& at = innermost(app);
    const std::vector<std::string> left = app.remaining(true);
    std::string word = left.empty() ? "" : left.front();
    word = word.substr(0, word.find('='));
    std::string message = fmt::format("unknown argument {}", word);
    std::string near = nearest(word, names_in(at));
    if (near.empty() && at.get_parent() != nullptr) {
        // An option of another command, in the wrong place.
        for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
            const auto names = names_in(*sub);
            if (std::find(names.begin(), names.end(), word) != names.end())
                message += fmt::format(" (an option of `{}`)", command_path(*sub));
        }
    }
    if (!near.empty()) message += fmt::format("; did you mean {}?", near);
    return report(fmt::format("{} See `{} --help`", message + (near.empty() ? "." : ""), command_path(at)), kUsage);
}

// `turbotune --json inspect F` would tune's --json silently drop: say where the option belongs.
void refuse_misplaced_options(const CLI::App& app) {
    const auto chosen = app.get_subcommands();
    if (chosen.empty()) return;
    for (const CLI::Option* option : app.get_options())
        if (option->count() > 0)
            throw InvalidArgument(
                option->get_name(),
                fmt::format("is an option of tuning; options of `{0}` follow its name: turbotune {0} --help",
                            chosen.front()->get_name()));
}

// The parser would take the next argument for the value: `--output= --dry-run` would tune, into a file "--dry-run".
void refuse_bare_equals(int argc, const char* const* argv) {
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if (word == "--") return;
        if (word.rfind("--", 0) == 0 && word.find('=') == word.size() - 1)
            throw InvalidArgument(word.substr(0, word.size() - 1), "the value is empty");
    }
}

// `--output ""` comes from an unset variable in a script, and is no wish for the default.
void refuse_empty_values(const CLI::App& app) {
    for (const CLI::Option* option : app.get_options())
        for (const std::string& value : option->results())
            if (value.empty()) throw InvalidArgument(option->get_name(), "the value is empty");
    for (const CLI::App* sub : app.get_subcommands()) refuse_empty_values(*sub);
}

std::string join_command(int argc, const char* const* argv) {
    std::string line = "turbotune";
    for (int i = 1; i < argc; ++i) line += ' ' + shell_word(argv[i]);
    return line;
}

const char* const kDescription =
    "Measures kernel schedules on this machine's best device and saves the winners as a profile, which programs that "
    "use the "
    "runtime then find by themselves. Without a GPU the CPU is tuned. With no options: --preset standard, on the best "
    "device. "
    "A second run measures only what is missing.";

const char* const kFooter =
    "Examples:\n"
    "  turbotune --preset quick                      tune a few workloads, in minutes\n"
    "  turbotune --preset exhaustive --dry-run       list what would be tuned\n"
    "  turbotune --lengths 512,2048 --passes inference --dtypes half\n"
    "  turbotune inspect                             read what was tuned\n"
    "\n"
    "Exit codes: 0 done, 1 finished with failures, 2 bad usage or input file, 3 no usable device,\n"
    "130 interrupted.";

}  // namespace

int run(int argc, const char* const* argv) {
    CLI::App app(kDescription, "turbotune");
    app.formatter(std::make_shared<HelpFormat>());
    app.set_help_flag("-h,--help", "Print this text");
    app.set_version_flag("--version", std::string("turbotune " TURBOTUNE_VERSION), "Print the version");
    app.footer(kFooter);
    app.require_subcommand(0, 1);

    Action chosen;
    const Action tune = add_tune(app, join_command(argc, argv));
    add_inspect(app, chosen);
    add_merge(app, chosen);
    add_retarget(app, chosen, join_command(argc, argv));
    add_validate(app, chosen);
    add_bench(app, chosen);
    add_devices(app, chosen);
    add_cache(app, chosen);
    add_worker(app, chosen);

    const auto perform = [&] {
        refuse_bare_equals(argc, argv);
        try {
            app.parse(argc, argv);
        } catch (const CLI::CallForHelp&) {
            fmt::print("{}", app.help());
            return int(kDone);
        } catch (const CLI::CallForVersion& version) {
            fmt::print("{}\n", version.what());
            return int(kDone);
        }
        refuse_misplaced_options(app);
        refuse_empty_values(app);
        return chosen ? chosen() : tune();
    };
    try {
        const int code = perform();
        flush_output();
        return code;
    } catch (const CLI::ExtrasError&) {
        return report_unknown(app);
    } catch (const CLI::ParseError& error) {
        if (!app.remaining(true).empty()) return report_unknown(app);  // rather than what it made to be missing
        return report(fmt::format("{}. See `{} --help`", error.what(), command_path(innermost(app))), kUsage);
    } catch (const Error& error) {
        return report(error.what(), exit_code_of(error));
    } catch (const std::system_error& error) {
        const bool of_output = std::ferror(stdout) != 0;  // fmt::print throws when a write comes short
        return report(of_output ? "cannot write to standard output: " + error.code().message() : error.what(),
                      kFailures);
    } catch (const std::exception& error) {
        return report(error.what(), kFailures);
    }
}

}  // namespace turbotune::cli
