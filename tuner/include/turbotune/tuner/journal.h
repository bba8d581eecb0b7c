// The journal of a sweep: one checksummed line for each candidate, beside the profile (PATH.journal), so that nothing
// measured is lost whenever a sweep is killed.
#pragma once

#include <sys/types.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "turbotune/profile/profile.h"

namespace turbotune {

// What became of one candidate.
struct CandidateOutcome {
    Workload workload;
    Config config;
    std::string reason;  // of RejectedCandidate; empty: measured
    std::string detail;
    Latency latency;  // the rest: when measured
    Parity parity;
    int registers = -1, local_bytes = -1, shared_bytes = -1;

    bool measured() const { return reason.empty(); }
};

// Under what the outcomes hold. A journal that was kept under another device class, compiler or template digest is
// set aside.
struct JournalHeader {
    std::string version;  // of TurboTune: told, not compared
    std::string device_class;
    std::string compiler;
    std::map<std::string, std::string> templates;  // operation -> digest
};

// The same for equal fields in any order; tells text from numbers.
std::string canonical(const Fields& fields);

class Journal {
  public:
    // Reads what is there and valid; a torn last line and damaged lines are passed over. Touches nothing until the
    // first append, except that a journal of another header is renamed to PATH.previous. Throws StoreError naming path
    // and cause when it cannot be read.
    Journal(std::string path, JournalHeader header);

    // The last outcome of the config, or nullptr. Threads may share a journal as long as each asks and tells of
    // workloads of its own.
    const CandidateOutcome* find(const Workload& workload, const Config& config) const;

    // Written and synced when it returns. Several processes may append to one journal. Throws StoreError; the file
    // then ends where it did. Also when another process with another header has meanwhile set the journal aside.
    void append(const CandidateOutcome& outcome);

    const std::string& path() const { return path_; }
    int entries() const { return int(outcomes_.size()); }  // distinct candidates
    int damaged_lines() const { return damaged_lines_; }
    // Where a journal of another header went; empty: there was none.
    const std::string& previous() const { return previous_; }

  private:
    struct Content {
        std::map<std::string, CandidateOutcome> outcomes;
        std::map<std::string, std::string> templates;
        bool header = false;
        bool headless = false;  // something is there, but no header
        bool foreign = false;   // written under other conditions
        int damaged_lines = 0;
    };
    void read();
    Content read_all() const;
    bool read_header(const std::string& record, Content& content) const;
    void take(Content content);

    std::string path_, previous_;
    JournalHeader header_;
    std::map<std::string, std::string> templates_on_file_;
    bool header_on_file_ = false;
    std::pair<dev_t, ino_t> written_{};  // the file that was written last
    int damaged_lines_ = 0;
    mutable std::mutex mutex_;
    std::map<std::string, CandidateOutcome> outcomes_;
};

}  // namespace turbotune
