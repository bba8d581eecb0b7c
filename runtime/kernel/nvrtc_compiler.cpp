// CUDA templates to cubins.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "failed_source.h"
#include "nvrtc.h"
#include "ptxas_report.h"
#include "turbotune/base/error.h"
#include "turbotune/kernel/compiler.h"

namespace turbotune {
namespace {

std::string join(const std::vector<std::string>& words, const char* separator) {
    return fmt::format("{}", fmt::join(words, separator));
}

class Program {
  public:
    Program(const nvrtc::Functions& functions, const CompileRequest& request) : functions_(functions) {
        const nvrtc::Result result =
            functions_.CreateProgram(&program_, request.source.c_str(), request.label.c_str(), 0, nullptr, nullptr);
        if (result != 0)
            throw CompileError(request.label + ": nvrtcCreateProgram failed: " + functions_.GetErrorString(result));
    }
    ~Program() { functions_.DestroyProgram(&program_); }
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    nvrtc::Result compile(const std::vector<std::string>& options) {
        std::vector<const char*> pointers;
        for (const std::string& option : options) pointers.push_back(option.c_str());
        return functions_.CompileProgram(program_, static_cast<int>(pointers.size()), pointers.data());
    }
    std::string log() { return text(functions_.GetProgramLogSize, functions_.GetProgramLog, true); }
    std::string cubin() { return text(functions_.GetCUBINSize, functions_.GetCUBIN, false); }

  private:
    std::string text(nvrtc::Result (*size_of)(nvrtc::Program, std::size_t*),
                     nvrtc::Result (*get)(nvrtc::Program, char*), bool zero_ended) {
        std::size_t size = 0;
        if (size_of(program_, &size) != 0 || size == 0) return {};
        std::string bytes(size, '\0');
        if (get(program_, bytes.data()) != 0) return {};
        if (zero_ended) bytes.resize(bytes.find('\0') == std::string::npos ? size : bytes.find('\0'));
        return bytes;
    }

    const nvrtc::Functions& functions_;
    nvrtc::Program program_ = nullptr;
};

// The first line of the log that names an error, for the one-line message.
std::string first_error(const std::string& log) {
    std::size_t at = log.find("error");
    if (at == std::string::npos) at = log.find_first_not_of(" \n");
    if (at == std::string::npos) return {};
    const std::size_t begin = log.rfind('\n', at) == std::string::npos ? 0 : log.rfind('\n', at) + 1;
    return log.substr(begin, log.find('\n', at) - begin);
}

class NvrtcCompiler final : public Compiler {
  public:
    const std::string& identity() override {
        const nvrtc::LibraryFile& file = nvrtc::library_file();
        if (file.path.empty()) throw CompileError("NVRTC was not found: looked for " + join(file.looked, ", "));
        static const std::string identity = "nvrtc-" + file.version + "+" + file.fingerprint;
        return identity;
    }

    std::vector<std::string> options(const std::string& target) override {
        std::vector<std::string> options = {"--gpu-architecture=" + target, "-std=c++20"};
        // 12.9 and newer keep a cache in the home directory, whose hits come without the ptxas report; older ones do
        // not know the option.
        if (!older_than(12, 9)) options.emplace_back("--no-cache");
        options.emplace_back("--modify-stack-limit=false");
        options.emplace_back("--ptxas-options=-v");
        return options;
    }

    Image compile(const CompileRequest& request) override {
        const nvrtc::Library& library = nvrtc::library();
        // NVRTC would go on to any that the loader finds: of another build, which the key does not cover.
        if (!library.builtins_problem.empty()) throw CompileError(request.label + ": " + library.builtins_problem);
        require_target(library, request);
        const std::vector<std::string> options = this->options(request.target);
        const auto start = std::chrono::steady_clock::now();
        Program program(library.functions, request);
        const nvrtc::Result result = program.compile(options);
        Image image;
        image.log = program.log();
        const auto fail = [&](const std::string& why) {
            throw CompileError(request.label + ": " + why, image.log, join(options, " "),
                               keep_failed_source(request.source, ".cu"));
        };
        if (result != 0) {
            const std::string error = first_error(image.log);
            fail(error.empty() ? library.functions.GetErrorString(result) : error);
        }
        image.bytes = program.cubin();
        if (image.bytes.compare(0, 4,
                                "\x7f"
                                "ELF") != 0)
            fail("NVRTC returned no cubin");
        const PtxasReport report = parse_ptxas_report(image.log, request.kernel_name);
        if (std::find(report.entries.begin(), report.entries.end(), request.kernel_name) == report.entries.end())
            fail("the source defines no kernel \"" + request.kernel_name +
                 "\" (it defines: " + join(report.entries, ", ") + ")");
        // Right results at a fraction of the speed: never what a template means.
        if (!report.serialised.empty()) fail("wgmma is serialised: " + report.serialised.front());
        image.metadata = report.metadata;
        image.metadata.compile_ms =
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
        return image;
    }

  private:
    static bool older_than(int major, int minor) {
        int has_major = 0, has_minor = 0;
        if (std::sscanf(nvrtc::library_file().version.c_str(), "%d.%d", &has_major, &has_minor) < 1) return false;
        return has_major < major || (has_major == major && has_minor < minor);
    }

    static void require_target(const nvrtc::Library& library, const CompileRequest& request) {
        const auto& known = library.targets;
        if (known.empty() || std::find(known.begin(), known.end(), request.target) != known.end()) return;
        throw CompileError(fmt::format("{}: this NVRTC ({}) does not know {}; it knows {}", request.label,
                                       nvrtc::library_file().version, request.target, join(known, ", ")));
    }
};

}  // namespace

Compiler& nvrtc_compiler() {
    static NvrtcCompiler* compiler = new NvrtcCompiler;
    return *compiler;
}

std::vector<std::string> nvrtc_targets() {
    return nvrtc::library().targets;
}

bool nvrtc_loaded() {
    return nvrtc::loaded();
}

}  // namespace turbotune
