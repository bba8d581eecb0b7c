// The layout of help texts: our own, so that every version of the parser prints the same.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace turbotune::cli {

class HelpFormat : public CLI::FormatterBase {
  public:
    std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
};

}  // namespace turbotune::cli
