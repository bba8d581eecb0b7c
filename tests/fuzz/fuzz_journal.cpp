// A journal with any content opens, and then takes a record. The first byte says whether the lines are sums and all, or
// records that are sealed here, so that the fuzzer gets past the sums.
#include <filesystem>

#include "fuzz.h"
#include "turbotune/base/error.h"
#include "turbotune/base/files.h"
#include "turbotune/base/sha256.h"
#include "turbotune/tuner/journal.h"

using namespace turbotune;

namespace {

// In memory where the system has a file system there: a disk would take most of the time.
class Folder {
  public:
    Folder() {
        std::string pattern =
            directory_exists("/dev/shm") ? "/dev/shm/turbotune-fuzz-XXXXXX" : "/tmp/turbotune-fuzz-XXXXXX";
        fuzz::require(::mkdtemp(pattern.data()) != nullptr, "a folder can be made");
        path = pattern;
    }
    ~Folder() {
        std::error_code ignored;
        std::filesystem::remove_all(path, ignored);
    }
    std::string path;
};

std::string sealed_lines(std::string_view records) {
    std::string text;
    while (!records.empty()) {
        const std::size_t end = std::min(records.find('\n'), records.size());
        const std::string_view record = records.substr(0, end);
        const std::string sum = to_hex(sha256(record.data(), record.size())).substr(0, 16);
        text += "{\"sum\":\"" + sum + "\",\"record\":" + std::string(record) + "}\n";
        records.remove_prefix(std::min(end + 1, records.size()));
    }
    return text;
}

void put_file(const std::string& path, const std::string& text) {
    std::FILE* file = std::fopen(path.c_str(), "wb");
    fuzz::require(file != nullptr, "the journal can be written");
    std::fwrite(text.data(), 1, text.size(), file);
    std::fclose(file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const Folder folder;
    if (size == 0) return 0;
    const std::string_view rest = fuzz::view(data + 1, size - 1);
    const std::string path = folder.path + "/p.json.journal";
    put_file(path, data[0] % 2 == 0 ? std::string(rest) : sealed_lines(rest));
    const JournalHeader header{"0.1.0", "x86_64-2sm", "cc-1", {{"toy", "d1"}}};
    CandidateOutcome outcome;
    outcome.workload = {"toy", Fields().set("length", 64)};
    outcome.config.set("tier", "host");
    outcome.reason = "fault";
    int before = 0;
    bool known = false;
    {
        Journal journal(path, header);
        before = journal.entries();
        known = journal.find(outcome.workload, outcome.config) != nullptr;
        journal.append(outcome);
        if (!journal.previous().empty()) std::filesystem::remove(journal.previous());
    }
    const Journal again(path, header);
    fuzz::require(again.entries() == before + (known ? 0 : 1), "nothing that was read is lost by an append");
    const CandidateOutcome* found = again.find(outcome.workload, outcome.config);
    fuzz::require(found != nullptr && found->reason == "fault", "what was appended is read again");
    return 0;
}
