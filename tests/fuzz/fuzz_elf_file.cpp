// Compilers and libraries are told apart by what stands in their files, which may be anything.
#include <sys/mman.h>
#include <unistd.h>

#include "elf_file.h"
#include "fuzz.h"

using namespace turbotune;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const int file = ::memfd_create("turbotune-fuzz", MFD_CLOEXEC);
    static const std::string path = "/proc/self/fd/" + std::to_string(file);
    const bool put = file >= 0 && ::ftruncate(file, 0) == 0 && ::pwrite(file, data, size, 0) == ssize_t(size);
    fuzz::require(put, "the file can be written");
    const bool native = is_native_elf(path);
    const std::string id = elf_build_id(path);
    fuzz::require(native || id.empty(), "only a native ELF file has a build id");
    fuzz::require(elf_text_after(path, "version ").size() <= 128, "a version is short");
    fuzz::require(file_fingerprint(path).size() == (size == 0 ? 0 : 16),
                  "every file that is not empty has a fingerprint");
    elf_defines_symbol(fuzz::view(data, size), "kernel");
    return 0;
}
