// The template texts: built in, or read from TURBOTUNE_TEMPLATE_DIR.
#include <algorithm>
#include <filesystem>

#include "template_table.h"
#include "turbotune/base/error.h"
#include "turbotune/base/files.h"
#include "turbotune/kernel/kernel_spec.h"

namespace turbotune {
namespace {

const char* const kDirectoryVariable = "TURBOTUNE_TEMPLATE_DIR";

// A path can only name something below the root.
bool stays_below_root(const std::string& path) {
    if (path.empty() || path.front() == '/') return false;
    for (const auto& part : std::filesystem::path(path)) {
        if (part == ".." || part == ".") return false;
    }
    return true;
}

std::vector<std::string> paths_in_directory(const std::string& root) {
    std::vector<std::string> paths;
    std::error_code error;
    for (std::filesystem::recursive_directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
        if (it->is_regular_file(error)) paths.push_back(it->path().lexically_relative(root).string());
    }
    return paths;
}

}  // namespace

std::string template_text(const std::string& path) {
    if (!stays_below_root(path))
        throw InvalidArgument("template", "\"" + path + "\" is not a path below kernel_templates/");
    if (const auto root = environment(kDirectoryVariable)) {
        if (auto text = read_file(*root + "/" + path)) return *std::move(text);
        throw InvalidArgument("template", "there is no \"" + path + "\" in " + *root + " (" + kDirectoryVariable + ")");
    }
    for (int i = 0; i < embedded_template_count; ++i) {
        const EmbeddedTemplate& entry = embedded_templates[i];
        if (path == entry.path) return std::string(entry.text, entry.bytes);
    }
    throw InvalidArgument("template", "there is no \"" + path + "\" among the templates of this build");
}

std::vector<std::string> template_paths() {
    std::vector<std::string> paths;
    if (const auto root = environment(kDirectoryVariable)) {
        paths = paths_in_directory(*root);
    } else {
        for (int i = 0; i < embedded_template_count; ++i) paths.emplace_back(embedded_templates[i].path);
    }
    std::sort(paths.begin(), paths.end());
    return paths;
}

Digest template_digest(const std::string& operation) {
    Sha256 hash;
    for (const std::string& path : template_paths()) {
        if (!path.starts_with("common/") && !path.starts_with(operation + "/")) continue;
        hash.field(path).field(template_text(path));
    }
    return hash.finish();
}

}  // namespace turbotune
