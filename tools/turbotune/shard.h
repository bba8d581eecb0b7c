// Which share of the workloads this process takes.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace turbotune::cli {

struct Shard {
    int index = 1, count = 1;  // 1-based
    std::string source;        // of "auto": what said so, such as "SLURM_ARRAY_TASK_ID"
};

using Environment = std::function<std::optional<std::string>(const char* name)>;

// "K/N", or "auto": from Slurm's array and its tasks, Open MPI or PMI, by the variables that they set. An array whose
// elements start several tasks each is shared among all of them. Throws InvalidArgument naming --shard.
Shard parse_shard(const std::string& text, const Environment& variables);

}  // namespace turbotune::cli
