// Host templates to shared objects, with the system's C++ compiler.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <sstream>

#include "elf_file.h"
#include "failed_source.h"
#include "subprocess.h"
#include "turbotune/base/error.h"
#include "turbotune/base/files.h"
#include "turbotune/kernel/compiler.h"
#include "warn_once.h"

namespace turbotune {
namespace {

std::string join(const std::vector<std::string>& words) {
    return fmt::format("{}", fmt::join(words, " "));
}

bool is_program(const std::string& path) {
    return file_exists(path) && ::access(path.c_str(), X_OK) == 0;
}

std::string real_path(const std::string& path) {
    std::error_code error;
    const auto real = std::filesystem::canonical(path, error);
    return error ? path : real.string();
}

// A wrapper that stands in a compiler's place hides which compiler it is.
bool is_wrapper(const std::string& path) {
    const std::string name = std::filesystem::path(real_path(path)).filename().string();
    return name == "ccache" || name == "distcc" || name == "icecc" || name == "sccache";
}

// The program's path; "" when there is none along PATH.
std::string find_program(const std::string& name, bool skip_wrappers) {
    if (name.find('/') != std::string::npos) return is_program(name) ? std::filesystem::absolute(name).string() : "";
    std::istringstream directories(environment("PATH").value_or(""));
    for (std::string directory; std::getline(directories, directory, ':');) {
        if (directory.empty() || directory.front() != '/') continue;
        const std::string path = directory + "/" + name;
        if (is_program(path) && !(skip_wrappers && is_wrapper(path))) return path;
    }
    return {};
}

// $CXX may hold a path with spaces, or a program and its arguments.
std::vector<std::string> from_cxx() {
    const auto text = environment("CXX");
    if (!text) return {};
    if (const std::string whole = find_program(*text, false); !whole.empty()) return {whole};
    std::istringstream stream(*text);
    std::vector<std::string> words;
    for (std::string word; stream >> word;) words.push_back(word);
    if (words.empty()) return {};
    words.front() = find_program(words.front(), false);
    if (!words.front().empty()) return words;
    warn_once("CXX:" + *text, "no program for CXX=" + *text + "; looking for c++, g++, clang++ along PATH");
    return {};
}

struct HostProgram {
    std::vector<std::string> words;  // empty when there is none
    std::string identity;
};

// "x86_64-linux-gnu-g++-12+1f2e3d4c5b6a7988": the program's real name and what tells its build, without running it. Of
// "ccache g++" every word that is a program counts.
std::string identity_of(const std::vector<std::string>& words) {
    std::string identity;
    for (const std::string& word : words) {
        const std::string path = word.front() == '-' ? "" : find_program(word, false);
        if (!identity.empty()) identity += ' ';
        const std::string real = path.empty() ? "" : real_path(path);
        identity +=
            path.empty() ? word : std::filesystem::path(real).filename().string() + "+" + file_fingerprint(real);
    }
    return identity;
}

HostProgram find_host_program() {
    HostProgram program;
    program.words = from_cxx();
    for (const char* name : {"c++", "g++", "clang++"}) {
        if (!program.words.empty()) break;
        if (const std::string path = find_program(name, true); !path.empty()) program.words = {path};
    }
    if (!program.words.empty()) program.identity = identity_of(program.words);
    return program;
}

class TempDirectory {
  public:
    TempDirectory() {
        std::string pattern = temp_directory() + "/turbotune-XXXXXX";
        if (::mkdtemp(pattern.data()) == nullptr)
            throw CompileError(fmt::format("no temporary folder {}: {}", pattern, std::strerror(errno)));
        path_ = pattern;
    }
    ~TempDirectory() {
        std::error_code error;
        std::filesystem::remove_all(path_, error);
    }
    TempDirectory(const TempDirectory&) = delete;
    TempDirectory& operator=(const TempDirectory&) = delete;
    const std::string& path() const { return path_; }

  private:
    std::string path_;
};

std::string first_error(const std::string& log) {
    std::istringstream lines(log);
    std::string line, first;
    while (std::getline(lines, line)) {
        if (first.empty()) first = line;
        if (line.find("error:") != std::string::npos || line.find("undefined reference") != std::string::npos)
            return line;
    }
    return first;
}

class HostCompiler final : public Compiler {
  public:
    const std::string& identity() override { return program().identity; }

    std::vector<std::string> options(const std::string& target) override {
        std::vector<std::string> options = {"-std=c++20", "-O3"};
#if defined(__aarch64__)
        options.emplace_back("-mcpu=native");
#else
        options.emplace_back("-march=native");
        // Both compilers prefer half the width by default, for the sake of clocks that newer machines hold anyway.
        if (target.find("avx512") != std::string::npos) options.emplace_back("-mprefer-vector-width=512");
#endif
        // Not -ffast-math: infinities and NaN must come out as they do elsewhere.
        for (const char* option : {"-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC",
                                   "-Wl,-z,defs", "-Wl,-s"})
            options.emplace_back(option);
        return options;
    }

    Image compile(const CompileRequest& request) override {
        const HostProgram& host = program();
        const auto start = std::chrono::steady_clock::now();
        const TempDirectory folder;
        const std::string source = folder.path() + "/kernel.cpp", output = folder.path() + "/kernel.so";
        if (const int error = write_file_atomic(source, request.source, 0600); error != 0)
            throw CompileError(
                fmt::format("{}: {} cannot be written: {}", request.label, source, std::strerror(error)));
        std::vector<std::string> command = host.words;
        const std::vector<std::string> options = this->options(request.target);
        command.insert(command.end(), options.begin(), options.end());
        for (const std::string& word : {std::string("-o"), output, source}) command.push_back(word);
        const ProgramResult result = run_program(command, {"LC_ALL=C", "TMPDIR=" + folder.path()});

        Image image;
        image.log = result.output;
        const auto fail = [&](const std::string& why) {
            throw CompileError(request.label + ": " + why, result.output, join(host.words) + " " + join(options),
                               keep_failed_source(request.source, ".cpp"));
        };
        if (!result.problem.empty()) fail(host.words.front() + " cannot be run: " + result.problem);
        if (result.signal != 0) fail(fmt::format("{} was ended by signal {}", host.words.front(), result.signal));
        if (result.exit_code != 0) {
            const std::string error = first_error(result.output);
            fail(error.empty() ? fmt::format("{} exited with {}", host.words.front(), result.exit_code) : error);
        }
        image.bytes = read_file(output).value_or("");
        if (image.bytes.compare(0, 4,
                                "\x7f"
                                "ELF") != 0)
            fail(host.words.front() + " wrote no shared object");
        if (!elf_defines_symbol(image.bytes, request.kernel_name))
            fail("the source defines no symbol \"" + request.kernel_name + "\"");
        image.metadata.kernel_name = request.kernel_name;
        image.metadata.compile_ms =
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
        return image;
    }

  private:
    static const HostProgram& program() {
        static const HostProgram program = find_host_program();
        if (program.words.empty())
            throw CompileError("no C++ compiler: looked for $CXX, c++, g++, clang++ along PATH (" +
                               environment("PATH").value_or("") + ")");
        return program;
    }
};

}  // namespace

Compiler& host_compiler() {
    static HostCompiler* compiler = new HostCompiler;
    return *compiler;
}

}  // namespace turbotune
