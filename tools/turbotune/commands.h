// The subcommands. Each adds its options to the parser and, when it is the one named, leaves what runs it in `chosen`.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

namespace turbotune::cli {

using Action = std::function<int()>;  // returns the exit code

// Tuning has no name of its own: its options are those of `app`, and it runs when no subcommand is given.
Action add_tune(CLI::App& app, const std::string& command_line);
void add_inspect(CLI::App& app, Action& chosen);
void add_merge(CLI::App& app, Action& chosen);
void add_retarget(CLI::App& app, Action& chosen, const std::string& command_line);
void add_validate(CLI::App& app, Action& chosen);
void add_bench(CLI::App& app, Action& chosen);
void add_devices(CLI::App& app, Action& chosen);
void add_cache(CLI::App& app, Action& chosen);
void add_cache_warm(CLI::App& cache, Action& chosen);
void add_worker(CLI::App& app, Action& chosen);

// Everything: parses, runs, reports errors as one line on standard error.
int run(int argc, const char* const* argv);

}  // namespace turbotune::cli
