// Runs the built turbotune program in a directory, a cache and a profile folder of its own.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace turbotune::test {

// A folder that is removed with its content. Its name has a space and a letter outside ASCII.
class TempDir {
  public:
    TempDir();
    ~TempDir();
    TempDir(const TempDir&) = delete;
    TempDir& operator=(const TempDir&) = delete;
    const std::string& path() const { return path_; }
    std::string operator/(const std::string& name) const { return path_ + '/' + name; }

  private:
    std::string path_;
};

struct Outcome {
    int exit_code = -1;  // 1000 + signal when killed by one
    std::string out, err;
};

// A program that runs; its output goes to files below the folder.
class Running {
  public:
    Running(const TempDir& home, std::vector<std::string> command, std::map<std::string, std::string> environment = {});
    ~Running();  // kills it
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

    void send(int signal_number) const;
    std::string out() const;  // so far
    // Waits until the text has appeared on standard output; false when it ended or `seconds` passed first.
    bool wait_for(const std::string& text, double seconds) const;
    Outcome wait(double seconds);  // killed (SIGKILL) when it takes longer

  private:
    std::string base_;
    int pid_ = -1;
};

// For commands that are not about an empty store: the kernels that tests share.
std::map<std::string, std::string> shared_store();
std::string turbotune_program();
// turbotune ARGUMENTS, with no GPU visible unless the environment says otherwise.
Outcome run_turbotune(const TempDir& home, std::vector<std::string> arguments,
                      std::map<std::string, std::string> environment = {});
Outcome run_program(const TempDir& home, std::vector<std::string> command, double seconds = 120);

std::string read_text(const std::string& path);  // fails the test when it cannot be read
void write_text(const std::string& path, const std::string& text);

}  // namespace turbotune::test
