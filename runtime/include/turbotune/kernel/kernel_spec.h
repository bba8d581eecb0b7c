// A kernel spec (template + parameters + target) and its rendering to a self-contained source.
#pragma once

#include <string>
#include <vector>

#include "turbotune/base/fields.h"
#include "turbotune/base/sha256.h"

namespace turbotune {

struct KernelSpec {
    std::string template_path;   // below kernel_templates/: "disentangled_attention/forward_mma.cu"
    std::string kernel_name;     // the extern "C" symbol that the template defines
    Fields parameters;           // become named constants; order matters only for the text
    std::string target;          // "sm_90a", ... or the CPU device's target
    bool is_host() const;        // the template's name ends in .cpp

    // "disentangled_attention/forward_mma.cu[block_m=64 ...]@sm_90a"
    std::string to_string() const;
};

// The self-contained text. Two directives are understood, each alone on a line:
//   #include "config"          replaced by the parameters, in order:
//                                integers   -> constexpr int NAME = VALUE;   (long long beyond 32 bits)
//                                booleans   -> constexpr bool NAME = VALUE;
//                                strings    -> #define NAME VALUE   (types and tokens)
//                              in `namespace config { ... }` (strings as macros outside of it)
//   #include "common/X"        that snippet's text, once per source, recursively; likewise any path
//                              below kernel_templates/ in quotes
// Any other #include "..." is refused; host templates may also include <system headers>, CUDA ones may not.
// Throws InvalidArgument when the template is unknown or a parameter is not an identifier.
std::string render(const KernelSpec& spec);

// The template texts are built into the library. TURBOTUNE_TEMPLATE_DIR names a directory that is
// read instead (for work on templates). Throws InvalidArgument when there is none of that path.
std::string template_text(const std::string& path);
std::vector<std::string> template_paths();

// SHA-256 over the paths and texts of an operation's templates and of common/.
Digest template_digest(const std::string& operation);

}  // namespace turbotune
