#include "elf_file.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "turbotune/base/sha256.h"

namespace turbotune {
namespace {

// Bounds-checked reads.
class Bytes {
  public:
    Bytes() = default;
    explicit Bytes(std::string_view bytes) : bytes_(bytes) {}
    std::string_view bytes() const { return bytes_; }
    std::string_view part(std::uint64_t offset, std::uint64_t size) const {
        if (offset > bytes_.size() || size > bytes_.size() - offset) return {};
        return bytes_.substr(offset, size);
    }
    template <class T>
    bool read(std::uint64_t offset, T* value) const {
        const std::string_view bytes = part(offset, sizeof(T));
        if (bytes.empty()) return false;
        std::memcpy(value, bytes.data(), sizeof(T));
        return true;
    }

  protected:
    std::string_view bytes_;
};

class MappedFile : public Bytes {
  public:
    explicit MappedFile(const std::string& path) {
        const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (descriptor < 0) return;
        struct stat status {};
        if (::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
            void* data =
                ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
            if (data != MAP_FAILED) bytes_ = {static_cast<const char*>(data), static_cast<std::size_t>(status.st_size)};
        }
        ::close(descriptor);
    }
    ~MappedFile() {
        if (!bytes_.empty()) ::munmap(const_cast<char*>(bytes_.data()), bytes_.size());
    }
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;
};

constexpr unsigned native_machine() {
#if defined(__x86_64__)
    return EM_X86_64;
#elif defined(__aarch64__)
    return EM_AARCH64;
#else
    return EM_NONE;
#endif
}

bool read_header(const Bytes& file, Elf64_Ehdr* header) {
    return file.read(0, header) && std::memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 &&
           header->e_ident[EI_CLASS] == ELFCLASS64 && header->e_ident[EI_DATA] == ELFDATA2LSB &&
           header->e_machine == native_machine() &&
           // Of smaller ones a file holds so many, one over another, that reading them would take for ever.
           (header->e_phnum == 0 || header->e_phentsize == sizeof(Elf64_Phdr)) &&
           (header->e_shnum == 0 || header->e_shentsize == sizeof(Elf64_Shdr));
}

std::string hex(std::string_view bytes) {
    static const char digits[] = "0123456789abcdef";
    std::string text;
    for (const unsigned char byte : bytes) {
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }
    return text;
}

std::uint64_t padded(std::uint64_t size) {
    return (size + 3) & ~std::uint64_t{3};
}

std::string build_id_in(const Bytes& file, const Elf64_Phdr& segment) {
    std::uint64_t at = segment.p_offset;
    const std::uint64_t end = segment.p_offset + segment.p_filesz;
    Elf64_Nhdr note;
    while (at + sizeof note <= end && file.read(at, &note)) {
        const std::string_view owner = file.part(at + sizeof note, note.n_namesz);
        const std::uint64_t body = at + sizeof note + padded(note.n_namesz);
        if (note.n_type == NT_GNU_BUILD_ID && owner == std::string_view("GNU\0", 4))
            return hex(file.part(body, note.n_descsz));
        at = body + padded(note.n_descsz);
    }
    return {};
}

std::string build_id(const Bytes& file) {
    Elf64_Ehdr header;
    if (!read_header(file, &header)) return {};
    for (unsigned i = 0; i < header.e_phnum; ++i) {
        Elf64_Phdr segment;
        if (!file.read(header.e_phoff + std::uint64_t{i} * header.e_phentsize, &segment)) return {};
        if (segment.p_type != PT_NOTE) continue;
        std::string id = build_id_in(file, segment);
        if (!id.empty()) return id;
    }
    return {};
}

}  // namespace

std::string elf_build_id(const std::string& path) {
    return build_id(MappedFile(path));
}

bool is_native_elf(const std::string& path) {
    const MappedFile file(path);
    Elf64_Ehdr header;
    return read_header(file, &header);
}

std::string elf_text_after(const std::string& path, const std::string& marker) {
    const MappedFile file(path);
    Elf64_Ehdr header;
    Elf64_Shdr names;
    if (!read_header(file, &header) || header.e_shnum == 0) return {};
    if (!file.read(header.e_shoff + std::uint64_t{header.e_shstrndx} * header.e_shentsize, &names)) return {};
    for (unsigned i = 0; i < header.e_shnum; ++i) {
        Elf64_Shdr section;
        if (!file.read(header.e_shoff + std::uint64_t{i} * header.e_shentsize, &section)) return {};
        if (file.part(names.sh_offset + section.sh_name, 8) != std::string_view(".rodata\0", 8)) continue;
        const std::string_view data = file.part(section.sh_offset, section.sh_size);
        if (data.empty()) return {};
        const void* found = ::memmem(data.data(), data.size(), marker.data(), marker.size());
        if (found == nullptr) return {};
        const std::string_view rest =
            data.substr(static_cast<std::size_t>(static_cast<const char*>(found) - data.data()) + marker.size());
        return std::string(rest.substr(0, std::min<std::size_t>(rest.find('\0'), 128)));
    }
    return {};
}

bool elf_defines_symbol(std::string_view bytes, std::string_view name) {
    const Bytes file(bytes);
    Elf64_Ehdr header;
    if (!read_header(file, &header)) return false;
    const auto section_at = [&](std::uint64_t index, Elf64_Shdr* section) {
        return index < header.e_shnum && file.read(header.e_shoff + index * header.e_shentsize, section);
    };
    Elf64_Shdr symbols, names;
    for (std::uint64_t i = 0; section_at(i, &symbols); ++i) {
        if (symbols.sh_type != SHT_DYNSYM || !section_at(symbols.sh_link, &names)) continue;
        const std::string_view texts = file.part(names.sh_offset, names.sh_size);
        Elf64_Sym symbol;
        for (std::uint64_t at = 0; at + sizeof symbol <= symbols.sh_size && file.read(symbols.sh_offset + at, &symbol);
             at += sizeof symbol) {
            if (symbol.st_shndx == SHN_UNDEF || symbol.st_name >= texts.size()) continue;
            const std::string_view text = texts.substr(symbol.st_name);
            if (text.substr(0, text.find('\0')) == name) return true;
        }
    }
    return false;
}

std::string file_fingerprint(const std::string& path) {
    const MappedFile file(path);
    const std::string id = build_id(file);
    if (id.size() >= 16) return id.substr(0, 16);
    if (file.bytes().empty()) return {};
    constexpr std::size_t mib = std::size_t{1} << 20;
    const std::string_view bytes = file.bytes();
    const std::string_view head = bytes.substr(0, mib);
    const std::string_view tail = bytes.substr(bytes.size() - std::min(mib, bytes.size()));
    return to_hex(Sha256().field(std::to_string(bytes.size())).field(head).field(tail).finish()).substr(0, 16);
}

}  // namespace turbotune
