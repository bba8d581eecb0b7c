#include "failed_source.h"

#include <sys/stat.h>
#include <unistd.h>

#include "turbotune/base/files.h"
#include "turbotune/base/sha256.h"

namespace turbotune {

std::string temp_directory() {
    return environment("TMPDIR").value_or("/tmp");
}

std::string keep_failed_source(const std::string& source, const std::string& extension) {
    const std::string directory = temp_directory() + "/turbotune-failed-" + std::to_string(::geteuid());
    if (make_directories(directory, 0700) != 0) return {};
    struct stat status {};
    if (::lstat(directory.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != ::geteuid()) return {};
    const std::string path = directory + "/" + to_hex(sha256(source.data(), source.size())).substr(0, 16) + extension;
    return write_file_atomic(path, source, 0600) == 0 ? path : std::string();
}

}  // namespace turbotune
