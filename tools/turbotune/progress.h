// One line at the bottom of a terminal that is redrawn in place, and ordinary lines that scroll above it.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>

namespace turbotune::cli {

class Progress {
  public:
    // Where the stream is no terminal, print() prints plain lines, and update() one when `quiet` passed without any, so
    // that long work does not look dead in a log.
    explicit Progress(std::FILE* stream);
    Progress(std::FILE* stream, bool terminal, int columns, std::chrono::milliseconds quiet = std::chrono::seconds(20));
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    // Cut to the terminal's width. Redrawn at most ten times a second; the last text is kept for print().
    void update(const std::string& text, bool at_once = false);
    void print(const std::string& line);
    void clear();
    bool terminal() const { return terminal_; }

  private:
    void draw();
    std::FILE* stream_;
    bool terminal_;
    int fixed_columns_;  // 0: ask the terminal
    std::chrono::milliseconds quiet_;
    bool drawn_ = false;
    std::string text_;
    std::chrono::steady_clock::time_point last_;  // drawn or printed; begun
};

}  // namespace turbotune::cli
