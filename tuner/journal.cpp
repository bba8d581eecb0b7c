#include "turbotune/tuner/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include "outcome_json.h"
#include "set_aside.h"
#include "turbotune/base/error.h"
#include "turbotune/base/files.h"
#include "turbotune/base/log.h"
#include "turbotune/base/sha256.h"

namespace turbotune {

namespace {

constexpr int kJournalFormat = 1;
// A line is {"sum":"<16 digits>","record":<JSON>}: JSON as a whole, and the summed bytes can be cut out unparsed.
constexpr std::string_view kSum = "{\"sum\":\"";
constexpr std::string_view kRecord = "\",\"record\":";
constexpr std::size_t kSumDigits = 16;

std::string sum_of(std::string_view record) {
    return to_hex(sha256(record.data(), record.size())).substr(0, kSumDigits);
}

std::string sealed(const std::string& record) {
    return fmt::format("{}{}{}{}}}\n", kSum, sum_of(record), kRecord, record);
}

// The record of an intact line; empty for any other.
std::string unsealed(std::string_view line) {
    std::size_t head = kSum.size() + kSumDigits + kRecord.size();
    if (line.size() <= head + 1 || line.back() != '}' || line.substr(0, kSum.size()) != kSum ||
        line.substr(kSum.size() + kSumDigits, kRecord.size()) != kRecord)
        return "";
    std::string_view record = line.substr(head, line.size() - head - 1);
    return line.substr(kSum.size(), kSumDigits) == sum_of(record) ? std::string(record) : "";
}

std::string key_of(const Workload& workload, const Config& config) {
    return workload.operation + "\n" + canonical(workload.fields) + "\n" + canonical(config);
}

Json header_to_json(const JournalHeader& header) {
    return Json{{"journal", kJournalFormat},
                {"version", header.version},
                {"device_class", header.device_class},
                {"compiler", header.compiler},
                {"templates", header.templates}};
}

// The journal open for appending, locked against other writers for as long as it lives.
class LockedFile {
  public:
    explicit LockedFile(const std::string& path) : path_(path) {
        for (;;) {
            descriptor_ =
                uninterrupted([&] { return ::open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0644); });
            if (descriptor_ < 0) fail("open", errno);
            locked_ = lock();
            struct stat mine {
            }, named{};
            // Another process may have set the file aside while this one waited.
            if (uninterrupted([&] { return ::fstat(descriptor_, &mine); }) == 0 &&
                uninterrupted([&] { return ::stat(path.c_str(), &named); }) == 0 && mine.st_ino == named.st_ino) {
                size_ = mine.st_size;
                identity_ = {mine.st_dev, mine.st_ino};
                return;
            }
            ::close(descriptor_);
            descriptor_ = -1;
        }
    }
    ~LockedFile() {
        if (descriptor_ >= 0) ::close(descriptor_);  // drops the lock
    }
    LockedFile(const LockedFile&) = delete;
    LockedFile& operator=(const LockedFile&) = delete;

    bool empty() const { return size_ == 0; }
    const std::pair<dev_t, ino_t>& identity() const { return identity_; }
    bool ends_in_torn_line() const {
        char last = '\n';
        return size_ > 0 && uninterrupted([&] { return ::pread(descriptor_, &last, 1, size_ - 1); }) == 1 &&
               last != '\n';
    }
    void append(std::string_view bytes) {
        while (!bytes.empty()) {
            ssize_t written = uninterrupted([&] { return ::write(descriptor_, bytes.data(), bytes.size()); });
            if (written <= 0) undo_and_fail(written < 0 ? errno : ENOSPC);
            bytes.remove_prefix(std::size_t(written));
        }
        if (uninterrupted([&] { return ::fsync(descriptor_); }) != 0 && errno != EINVAL) undo_and_fail(errno);
    }

  private:
    // A stopped process must not stop the others, and some network file systems know no locks: after a while, or there,
    // the record goes in unlocked, which O_APPEND and one write keep whole.
    bool lock() const {
        constexpr int kTries = 400;
        for (int tries = 0; tries < kTries; ++tries) {
            if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return true;
            if (errno != EWOULDBLOCK && errno != EINTR) return false;
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
        }
        log(LogLevel::warn, path_ + ": another process holds its lock; going on without");
        return false;
    }
    void undo_and_fail(int code) {
        // Best effort: a torn line is dropped by every reader anyway. Without the lock another's record may stand
        // behind.
        if (locked_ && ::ftruncate(descriptor_, size_) != 0) log(LogLevel::debug, path_ + ": a torn line stays");
        fail("write", code);
    }
    void fail(const char* what, int code) {
        if (descriptor_ >= 0) ::close(descriptor_);
        descriptor_ = -1;
        throw StoreError(fmt::format("{}: cannot {}: {}", path_, what, std::strerror(code)));
    }

    std::string path_;
    int descriptor_ = -1;
    bool locked_ = false;
    off_t size_ = 0;
    std::pair<dev_t, ino_t> identity_{};
};

}  // namespace

std::string canonical(const Fields& fields) {
    std::vector<std::string> parts;
    for (const auto& [name, value] : fields.entries())
        parts.push_back(fmt::format("{}={}:{}", name, value.index(), to_string(value)));
    std::sort(parts.begin(), parts.end());
    return fmt::format("{}", fmt::join(parts, " "));
}

Journal::Journal(std::string path, JournalHeader header) : path_(std::move(path)), header_(std::move(header)) {
    read();
}

// False when the journal was kept under other conditions.
bool Journal::read_header(const std::string& text, Content& content) const {
    Json json = parse_json(text, path_);
    JsonReader reader(json, path_);
    if (reader.integer("journal", 0, 1 << 30) != kJournalFormat) return false;
    reader.text("version");
    if (reader.text("device_class") != header_.device_class || reader.text("compiler") != header_.compiler)
        return false;
    JsonReader templates = reader.object("templates");
    for (const auto& [operation, digest] : templates.value().items()) {
        if (!digest.is_string()) return false;
        auto mine = header_.templates.find(operation);
        if (mine != header_.templates.end() && mine->second != digest.get<std::string>()) return false;
        content.templates[operation] = digest.get<std::string>();
    }
    content.header = true;
    return true;
}

void Journal::read() {
    Content content = read_all();
    std::optional<LockedFile> locked;
    if (content.foreign || content.headless) {
        // Another process may have set the file aside and begun a new one meanwhile: judge again under the lock.
        locked.emplace(path_);
        content = read_all();
    }
    if (content.foreign || content.headless) {
        previous_ = set_aside(path_);
        return;
    }
    take(std::move(content));
}

// Everything on file, or that it was written under other conditions.
Journal::Content Journal::read_all() const {
    Content content;
    std::optional<std::string> text = read_file(path_);
    if (!text) {
        if (errno == ENOENT) return content;
        throw StoreError(fmt::format("{}: cannot read: {}", path_, std::strerror(errno)));
    }
    bool& foreign = content.foreign;
    for (std::size_t start = 0; start < text->size() && !foreign;) {
        std::size_t end = text->find('\n', start);
        bool torn = end == std::string::npos;
        std::string record = torn ? "" : unsealed(std::string_view(*text).substr(start, end - start));
        bool blank = !torn && end == start;
        start = torn ? text->size() : end + 1;
        if (blank) continue;
        if (record.empty()) {
            ++content.damaged_lines;
            continue;
        }
        try {
            if (record.rfind("{\"journal\":", 0) == 0) {
                foreign = !read_header(record, content);
                continue;
            }
            Json json = parse_json(record, path_);
            JsonReader reader(json, path_);
            CandidateOutcome outcome = outcome_from_json(reader);
            // Before a header is seen nothing says under which conditions an outcome holds.
            if (!content.header)
                foreign = true;
            else
                content.outcomes[key_of(outcome.workload, outcome.config)] = std::move(outcome);
        } catch (const InvalidArgument&) {
            foreign = true;  // intact, yet not of this format: another version wrote it
        }
    }
    content.headless = !content.header && !text->empty();
    return content;
}

// What is known already stays, and stays where it is: others hold pointers to it.
void Journal::take(Content content) {
    header_on_file_ = content.header;
    templates_on_file_ = std::move(content.templates);
    damaged_lines_ = std::max(damaged_lines_, content.damaged_lines);
    outcomes_.merge(content.outcomes);
}

const CandidateOutcome* Journal::find(const Workload& workload, const Config& config) const {
    const std::lock_guard lock(mutex_);
    auto found = outcomes_.find(key_of(workload, config));
    return found == outcomes_.end() ? nullptr : &found->second;
}

void Journal::append(const CandidateOutcome& outcome) {
    const std::lock_guard lock(mutex_);
    LockedFile file(path_);
    if (file.identity() != written_) {  // another process may have set this object's journal aside, and begun its own
        Content content = read_all();
        if (content.foreign)
            throw StoreError(fmt::format(
                "{}: another sweep, with another compiler, device class or version of the kernels, has "
                "begun a journal of its own there; what this one measured before was moved aside, to a name "
                "with .previous",
                path_));
        take(std::move(content));
    }
    bool covered = header_on_file_ && !file.empty();
    for (const auto& [operation, digest] : header_.templates)
        covered = covered && templates_on_file_.count(operation) > 0;
    std::string lines = file.ends_in_torn_line() ? "\n" : "";
    if (!covered) lines += sealed(header_to_json(header_).dump());
    // Compiler logs and messages of libraries are not always UTF-8: what is not is replaced.
    file.append(lines + sealed(outcome_to_json(outcome).dump(-1, ' ', false, Json::error_handler_t::replace)));
    written_ = file.identity();
    header_on_file_ = true;
    templates_on_file_.insert(header_.templates.begin(), header_.templates.end());
    outcomes_[key_of(outcome.workload, outcome.config)] = outcome;
}

}  // namespace turbotune
