#include "turbotune/kernel/store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>

#include "store_directory.h"
#include "store_entry.h"
#include "store_files.h"
#include "turbotune/base/log.h"
#include "warn_once.h"

namespace turbotune {
namespace {

constexpr std::int64_t kStampLife = 100000000;  // ns; a use renews an older stamp, so that what is in use stays
constexpr std::int64_t kLargestEntry = std::int64_t{1} << 30;

std::chrono::milliseconds compile_wait() {
    double seconds = 120;
    if (const auto text = environment("TURBOTUNE_COMPILE_WAIT_S")) {
        char* end = nullptr;
        const double value = std::strtod(text->c_str(), &end);
        if (end != text->c_str() && value >= 0 && value <= 86400) seconds = value;
    }
    return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

void tell_of_holder(const std::string& path, int pid) {
    log(LogLevel::warn,
        fmt::format("process {} holds {} and compiles; waiting up to {} s before compiling it here as well", pid, path,
                    compile_wait().count() / 1000));
}

class Descriptor {
  public:
    Descriptor(const std::string& path, int flags)
        : number_(uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC); })) {}
    ~Descriptor() {
        if (number_ >= 0) ::close(number_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int get() const { return number_; }

  private:
    int number_;
};

bool look_at(const std::string& path, struct stat* status) {
    return uninterrupted([&] { return ::stat(path.c_str(), status); }) == 0;
}

bool look_at(int descriptor, struct stat* status) {
    return uninterrupted([&] { return ::fstat(descriptor, status); }) == 0;
}

// At most `limit` bytes; false with errno set.
bool read_bytes(int descriptor, std::size_t limit, std::string* bytes) {
    bytes->resize(limit);
    std::size_t used = 0;
    while (used < limit) {
        const ssize_t got = uninterrupted([&] { return ::read(descriptor, bytes->data() + used, limit - used); });
        if (got < 0) return false;
        if (got == 0) break;
        used += static_cast<std::size_t>(got);
    }
    bytes->resize(used);
    return true;
}

// "" when the open file may be an entry of this user's store.
std::string refuse_file(const struct stat& status) {
    if (!S_ISREG(status.st_mode)) return "it is not a regular file";
    if (status.st_size > kLargestEntry) return "it is larger than any entry";
    const std::string why = distrust(status);
    return why.empty() ? why : "it " + why;
}

void renew_stamp(int descriptor, const struct stat& status) {
    struct timespec now {};
    ::clock_gettime(CLOCK_REALTIME, &now);
    const std::int64_t age =
        (std::int64_t{now.tv_sec} - status.st_mtim.tv_sec) * 1000000000 + now.tv_nsec - status.st_mtim.tv_nsec;
    if (age <= kStampLife) return;
    const struct timespec times[2] = {{0, UTIME_OMIT}, {0, UTIME_NOW}};
    [[maybe_unused]] const int failed = ::futimens(descriptor, times);  // a read-only store keeps its stamps
}

// By its first bytes; an empty file is what a writer left that had no space.
bool is_ours(const StoreFile& file) {
    const Descriptor opened(file.path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    std::string bytes;
    return file.bytes == 0 || (opened.get() >= 0 && read_bytes(opened.get(), 8, &bytes) && has_entry_magic(bytes));
}

// Sizes and numbers make no other reason.
std::string without_digits(std::string text) {
    std::erase_if(text, [](char c) { return c >= '0' && c <= '9'; });
    return text;
}

// Faults of the moment; every other one means that the folder cannot be written.
bool is_passing(int error) {
    return error == EMFILE || error == ENFILE || error == ENOMEM || error == EINTR || error == ENOENT ||
           error == ESTALE;
}

}  // namespace

StoreKey store_key(const std::string& source, const std::vector<std::string>& options, const std::string& target,
                   const std::string& compiler_identity, const std::string& kernel_name) {
    Sha256 hash;
    hash.field(std::to_string(kStoreSchema)).field(source).field(std::to_string(options.size()));
    for (const std::string& option : options) hash.field(option);
    hash.field(target).field(compiler_identity).field(kernel_name);
    return {hash.finish()};
}

struct Store::State {
    explicit State(Options given) : options(std::move(given)) {}

    const std::string& directory() {
        std::call_once(searched, [this] { search(); });
        return found.path;
    }

    void search() {
        if (options.memory_only) {
            found.reason = "memory only (asked for)";
        } else if (!options.directory.empty()) {
            const std::string problem = unusable_directory(options.directory);
            found.path = problem.empty() ? options.directory : "";
            found.reason = problem.empty() ? "explicit" : "memory only (explicit: " + problem + ")";
            found.fell_back = !problem.empty();
        } else {
            found = find_store_directory();
        }
        if (found.fell_back)
            warn_once(found.reason,
                      fmt::format("store: {}: {}",
                                  found.path.empty() ? "compiled kernels are not kept on disk" : "using " + found.path,
                                  found.reason));
    }

    std::optional<Image> find_in_memory(const std::string& hex) {
        const std::lock_guard lock(mutex);
        const auto it = images.find(hex);
        if (it == images.end()) return std::nullopt;
        return it->second;
    }

    void remember(const std::string& hex, const Image& image) {
        const std::lock_guard lock(mutex);
        if (!images.emplace(hex, image).second) return;
        order.push_back(hex);
        image_bytes += static_cast<std::int64_t>(image.bytes.size());
        while (image_bytes > options.max_bytes && order.size() > 1) {
            const auto oldest = images.find(order.front());
            image_bytes -= static_cast<std::int64_t>(oldest->second.bytes.size());
            images.erase(oldest);
            order.pop_front();
        }
    }

    std::optional<Image> find_on_disk(const StoreKey& key, const std::string& hex) {
        const std::string path = entry_path(directory(), hex);
        struct stat status {};
        if (!look_at(path.substr(0, path.rfind('/')), &status)) return std::nullopt;
        if (const std::string why = distrust(status); !why.empty()) {
            warn_once("folder:" + why, fmt::format("store: {} is not read: its folder {}", path, why));
            return std::nullopt;
        }
        const Descriptor file(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
        if (file.get() < 0) {
            if (errno != ENOENT)
                warn_once(fmt::format("open:{}", errno), fmt::format("store: {}: {}", path, std::strerror(errno)));
            return std::nullopt;
        }
        if (!look_at(file.get(), &status)) return std::nullopt;
        std::string bytes, problem = refuse_file(status);
        if (problem.empty() && !read_bytes(file.get(), static_cast<std::size_t>(status.st_size), &bytes)) {
            warn_once(fmt::format("read:{}", errno), fmt::format("store: {}: {}", path, std::strerror(errno)));
            return std::nullopt;
        }
        Image image;
        if (problem.empty()) problem = decode_entry(bytes, key.digest, &image);
        if (!problem.empty()) {
            set_aside(path, status, problem);
            return std::nullopt;
        }
        renew_stamp(file.get(), status);
        return image;
    }

    void set_aside(const std::string& path, const struct stat& seen, const std::string& problem) {
        warn_once("bad:" + without_digits(problem),
                  fmt::format("store: {} is not used: {}; it is compiled anew", path, problem));
        {
            const std::lock_guard lock(mutex);
            ++statistics.bad;
        }
        // Somebody else may have published a good one since.
        struct stat now {};
        if (uninterrupted([&] { return ::lstat(path.c_str(), &now); }) == 0 && now.st_ino == seen.st_ino &&
            now.st_dev == seen.st_dev)
            uninterrupted([&] { return ::rename(path.c_str(), (path + ".bad").c_str()); });
    }

    // 0 or errno.
    int write(const std::string& hex, const std::string& entry) {
        const std::string path = entry_path(directory(), hex);
        const std::string folder = path.substr(0, path.rfind('/'));
        int error = 0;
        // Twice: the folder may be removed between the two steps.
        for (int attempt = 0; attempt < 2; ++attempt) {
            if (!directory_exists(folder)) {
                error = make_directories(directory(), found.private_mode ? 0700 : 0755);
                if (error == 0) error = make_directories(folder);
                if (error != 0) return error;
            }
            struct stat status {};
            if (look_at(directory(), &status) && !distrust(status).empty()) return EPERM;
            if (look_at(folder, &status) && !distrust(status).empty()) return EPERM;
            error = write_file_atomic(path, entry);
            if (error != ENOENT) break;
        }
        return error;
    }

    void stop_writing(int error) {
        if (!is_passing(error)) {
            const std::lock_guard lock(mutex);
            writing = false;
        }
        warn_once(fmt::format("write:{}", error),
                  fmt::format("store: {} cannot be written: {}; compiled kernels stay in memory", directory(),
                              std::strerror(error)));
    }

    // Counts what was written, and makes room.
    void account(const std::string& hex, std::int64_t bytes) {
        const std::lock_guard lock(mutex);
        ++statistics.writes;
        ++statistics.entries;
        statistics.bytes += bytes;
        since_count += bytes;
        // Other processes write too, so the own sum is only good for a while.
        if (!counted || since_count > options.max_bytes / 16) count();
        if (statistics.bytes <= options.max_bytes) return;
        const FileLock evicting =
            FileLock::acquire(eviction_lock_path(make_lock_folder()), std::chrono::milliseconds(0));
        if (!evicting.held()) return;  // somebody else makes room
        // A tenth more than needed, so that not every write has to.
        const StoreCount left = shrink_store(directory(), options.max_bytes / 10 * 9, entry_path(directory(), hex));
        statistics.entries = left.entries;
        statistics.bytes = left.bytes;
        statistics.evictions += left.evicted;
        since_count = 0;
    }

    void count() {
        statistics.entries = statistics.bytes = 0;
        for (const StoreFile& file : scan_store(directory())) {
            if (file.kind != StoreFileKind::entry) continue;
            ++statistics.entries;
            statistics.bytes += file.bytes;
        }
        counted = true;
        since_count = 0;
    }

    const std::string& make_lock_folder() {
        const std::string& path = directory();
        if (!directory_exists(path + "/locks") && make_directories(path, found.private_mode ? 0700 : 0755) == 0)
            make_directories(path + "/locks");
        return path;
    }

    bool may_write() {
        const std::lock_guard lock(mutex);
        return writing;
    }

    const Options options;
    std::once_flag searched;
    StoreDirectory found;

    std::mutex mutex;  // of everything below
    StoreStatistics statistics;
    bool writing = true, counted = false;
    std::int64_t since_count = 0;         // bytes written since the folder was counted
    std::map<std::string, Image> images;  // what has no place on disk
    std::deque<std::string> order;
    std::int64_t image_bytes = 0;
    std::set<Digest> compiling;  // missed already: the second look under the lock is no miss of its own
};

Store::Store(Options options) : state_(new State(std::move(options))) {}

Store::~Store() {
    delete state_;
}

std::optional<Image> Store::find(const StoreKey& key) {
    const std::string hex = key.hex();
    std::optional<Image> image = state_->find_in_memory(hex);
    if (!image && !state_->directory().empty()) image = state_->find_on_disk(key, hex);
    const std::lock_guard lock(state_->mutex);
    if (image) {
        ++state_->statistics.hits;
        state_->compiling.erase(key.digest);
    } else if (state_->compiling.count(key.digest) == 0) {
        ++state_->statistics.misses;
    }
    return image;
}

void Store::put(const StoreKey& key, const Image& image) {
    const std::string hex = key.hex();
    {
        const std::lock_guard lock(state_->mutex);
        state_->compiling.erase(key.digest);
    }
    Image kept{image.bytes, image.metadata, {}};
    if (state_->directory().empty() || !state_->may_write()) return state_->remember(hex, kept);
    const std::string entry = encode_entry(key.digest, kept);
    if (static_cast<std::int64_t>(entry.size()) > state_->options.max_bytes) return state_->remember(hex, kept);
    if (const int error = state_->write(hex, entry); error != 0) {
        state_->stop_writing(error);
        return state_->remember(hex, kept);
    }
    state_->account(hex, static_cast<std::int64_t>(entry.size()));
}

FileLock Store::lock_for_compile(const StoreKey& key) {
    {
        const std::lock_guard lock(state_->mutex);
        state_->compiling.insert(key.digest);
    }
    if (state_->directory().empty() || !state_->may_write()) return {};
    return FileLock::acquire(lock_path(state_->make_lock_folder(), key.hex()), compile_wait(), tell_of_holder);
}

std::string Store::directory() {
    return state_->directory();
}

std::string Store::reason() {
    state_->directory();
    return state_->found.reason;
}

std::vector<StoreEntryInfo> Store::list(bool verify) {
    std::vector<StoreEntryInfo> entries;
    if (state_->directory().empty()) {
        const std::lock_guard lock(state_->mutex);
        for (const auto& [hex, image] : state_->images)
            entries.push_back({hex, "", static_cast<std::int64_t>(image.bytes.size()), image.metadata, ""});
        return entries;
    }
    for (const StoreFile& found : scan_store(state_->directory())) {
        if (found.kind != StoreFileKind::entry) continue;
        StoreEntryInfo info{found.key, found.path, found.bytes, {}, {}};
        Digest key{};
        parse_key(found.key, &key);
        struct stat status {};
        const Descriptor file(found.path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
        std::string bytes;
        if (file.get() < 0 || !look_at(file.get(), &status)) {
            if (errno == ENOENT) continue;  // evicted meanwhile
            info.problem = std::strerror(errno);
        } else {
            info.problem = refuse_file(status);
        }
        struct stat folder {};
        if (info.problem.empty() && look_at(found.path.substr(0, found.path.rfind('/')), &folder))
            if (const std::string why = distrust(folder); !why.empty()) info.problem = "its folder " + why;
        const std::size_t limit = verify ? static_cast<std::size_t>(status.st_size) : std::size_t{65536};
        if (info.problem.empty() && !read_bytes(file.get(), limit, &bytes)) info.problem = std::strerror(errno);
        if (info.problem.empty() && verify) {
            Image image;
            info.problem = decode_entry(bytes, key, &image);
            info.metadata = image.metadata;
        } else if (info.problem.empty()) {
            info.problem = decode_entry_head(bytes, static_cast<std::uint64_t>(status.st_size), key, &info.metadata);
        }
        entries.push_back(std::move(info));
    }
    std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
    return entries;
}

std::int64_t Store::clear() {
    const std::string directory = state_->directory();
    const std::lock_guard lock(state_->mutex);
    std::int64_t removed = 0;
    if (directory.empty()) {
        removed = static_cast<std::int64_t>(state_->images.size());
    } else {
        for (const StoreFile& file : scan_store(directory)) {
            if (file.kind == StoreFileKind::entry && !is_ours(file)) continue;
            if (uninterrupted([&] { return ::unlink(file.path.c_str()); }) == 0 && file.kind == StoreFileKind::entry)
                ++removed;
        }
        state_->count();
    }
    state_->images.clear();
    state_->order.clear();
    state_->image_bytes = 0;
    return removed;
}

StoreStatistics Store::statistics() {
    const std::lock_guard lock(state_->mutex);
    return state_->statistics;
}

}  // namespace turbotune
