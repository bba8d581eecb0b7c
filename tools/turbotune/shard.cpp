#include "shard.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <vector>

#include "turbotune/base/error.h"

namespace turbotune::cli {
namespace {

[[noreturn]] void refuse(const std::string& why) {
    throw InvalidArgument("--shard", why);
}

bool parse_number(const std::string& text, int* value) {
    const char* const end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, *value);
    return parsed.ec == std::errc() && parsed.ptr == end;
}

// Of ranks, sizes, indices and steps: so products of two fit in 64 bits.
constexpr int kMost = 1'000'000;

// The variable's number; nothing when it is not set.
std::optional<int> number(const Environment& variables, const char* name) {
    const auto text = variables(name);
    if (!text) return std::nullopt;
    int value = 0;
    if (!parse_number(*text, &value) || value < -kMost || value > kMost)
        refuse(fmt::format("{} is '{}', not a number up to {}", name, *text, kMost));
    return value;
}

int need(const Environment& variables, const char* name, const char* beside) {
    const auto value = number(variables, name);
    if (!value) refuse(fmt::format("{} is set, but {} is not; give --shard K/N", beside, name));
    return *value;
}

// Zero-based.
struct Rank {
    int rank = 0, size = 1;
    std::string source;
};

Rank checked(int rank, int size, const char* rank_name, const char* size_name) {
    if (size < 1 || rank < 0 || rank >= size)
        refuse(fmt::format("{}={} is not one of {}={} ranks", rank_name, rank, size_name, size));
    return {rank, size, rank_name};
}

std::optional<Rank> slurm_array(const Environment& variables) {
    const char* const kId = "SLURM_ARRAY_TASK_ID";
    const auto id = number(variables, kId);
    if (!id) return std::nullopt;
    const int count = need(variables, "SLURM_ARRAY_TASK_COUNT", kId);
    const int least = number(variables, "SLURM_ARRAY_TASK_MIN").value_or(0);
    const int step = number(variables, "SLURM_ARRAY_TASK_STEP").value_or(1);
    const auto given = number(variables, "SLURM_ARRAY_TASK_MAX");
    const std::int64_t most = given ? *given : least + std::int64_t{count - 1} * step;
    if (step < 1 || count < 1 || (most - least) / step + 1 != count || *id < least || (*id - least) % step != 0 ||
        (*id - least) / step >= count)
        refuse(
            fmt::format("the array's index {} is not one of {} from {} on by {}; give --shard K/N where an array has "
                        "gaps",
                        *id, count, least, step));
    return Rank{(*id - least) / step, count, kId};
}

std::optional<Rank> pair(const Environment& variables, const char* rank_name, const char* size_name) {
    const auto rank = number(variables, rank_name);
    if (!rank) return std::nullopt;
    return checked(*rank, need(variables, size_name, rank_name), rank_name, size_name);
}

// The tasks of srun. Slurm sets SLURM_PROCID=0 in a batch script, too, which is no task.
std::optional<Rank> slurm_task(const Environment& variables, bool in_array) {
    const char* const kRank = "SLURM_PROCID";
    const auto rank = number(variables, kRank);
    if (!rank) return std::nullopt;
    const char* const size_name = variables("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
    const bool batch_script = variables("SLURM_JOB_ID") && !variables("SLURM_STEP_ID") && *rank == 0;
    const auto size = number(variables, size_name);
    if (batch_script && in_array) return std::nullopt;
    if (batch_script && size.value_or(1) > 1)
        refuse(
            fmt::format("this is the batch script itself, not one of its {} tasks; start turbotune with srun", *size));
    if (!size && batch_script) return Rank{0, 1, kRank};
    return checked(*rank, need(variables, size_name, kRank), kRank, size_name);
}

Shard from_environment(const Environment& variables) {
    const auto array = slurm_array(variables);
    // mpirun under Slurm leaves the variables of its own daemons: what is nearest to the process comes first.
    auto task = pair(variables, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
    if (!task) task = pair(variables, "PMI_RANK", "PMI_SIZE");
    if (!task) task = slurm_task(variables, array.has_value());
    if (!array && !task)
        refuse(
            "auto: neither Slurm (SLURM_ARRAY_TASK_ID, SLURM_PROCID), Open MPI (OMPI_COMM_WORLD_RANK) nor PMI "
            "(PMI_RANK) started this process; give --shard K/N");
    const Rank outer = array.value_or(Rank{}), inner = task.value_or(Rank{});
    if (std::int64_t{outer.size} * inner.size > kMost)
        refuse(fmt::format("auto: {} times {} shares are more than {}", outer.size, inner.size, kMost));
    return {outer.rank * inner.size + inner.rank + 1, outer.size * inner.size,
            outer.source + (array && task ? ", " : "") + inner.source};
}

}  // namespace

Shard parse_shard(const std::string& text, const Environment& variables) {
    if (text == "auto") return from_environment(variables);
    Shard shard;
    const std::size_t slash = text.find('/');
    const bool good = slash != std::string::npos && parse_number(text.substr(0, slash), &shard.index) &&
                      parse_number(text.substr(slash + 1), &shard.count);
    if (!good || shard.index < 1 || shard.index > shard.count)
        refuse(fmt::format("'{}' is not auto or K/N with 1 <= K <= N, such as 2/8", text));
    return shard;
}

}  // namespace turbotune::cli
