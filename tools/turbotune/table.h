// Plain text tables with aligned columns.
#pragma once

#include <string>
#include <vector>

#include "turbotune/profile/profile.h"

namespace turbotune::cli {

class Table {
  public:
    // A header that begins with '>' names a column aligned to the right.
    explicit Table(std::vector<std::string> headers);
    void add(std::vector<std::string> row);  // missing cells are empty
    bool empty() const { return rows_.empty(); }
    // Header, a rule, the rows; columns without any text are left out.
    std::string to_string() const;

  private:
    std::vector<std::string> headers_;
    std::vector<bool> right_;
    std::vector<std::vector<std::string>> rows_;
};

// How a list of workloads of one operation is shown: fields that all share are said once, the others are columns.
class WorkloadColumns {
  public:
    explicit WorkloadColumns(const std::vector<Workload>& workloads);
    const std::string& common() const { return common_; }             // "layout=padded head_dim=64"
    const std::vector<std::string>& names() const { return names_; }  // fields that vary, in field order
    std::vector<std::string> cells(const Workload& workload) const;

  private:
    std::string common_;
    std::vector<std::string> names_;
};

// The operations of a list of workloads, in order of appearance.
std::vector<std::string> operations_of(const std::vector<Workload>& workloads);

std::string milliseconds(double ms);   // "0.0321", "1.234", "123.4": four figures
std::string duration(double seconds);  // "42 s", "3 min 10 s", "2 h 05 min"
// "1 workload", "3 workloads"; `many` where the plural is not `one` and an s.
std::string counted(std::int64_t count, const std::string& one, const std::string& many = "");
std::string byte_count(std::int64_t bytes);  // "123 B", "4.5 KiB", "1.2 MiB"

}  // namespace turbotune::cli
