// --shard auto: which share a process takes, from what Slurm, Open MPI and PMI say.
#include "shard.h"

#include <map>

#include "catch.h"
#include "program.h"
#include "turbotune/base/error.h"

using namespace turbotune;
using namespace turbotune::test;

namespace {

using Variables = std::map<std::string, std::string>;

std::string shard_of(const Variables& variables, const std::string& text = "auto") {
    const cli::Shard shard = cli::parse_shard(text, [&](const char* name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
    });
    return std::to_string(shard.index) + '/' + std::to_string(shard.count);
}

std::string refusal(const Variables& variables, const std::string& text = "auto") {
    try {
        return "accepted as " + shard_of(variables, text);
    } catch (const InvalidArgument& error) {
        CHECK(error.argument() == "--shard");
        return error.what();
    }
}

bool has(const std::string& text, const std::string& part) {
    INFO(text);
    return text.find(part) != std::string::npos;
}

Variables array(const std::string& id, const std::string& count, const std::string& least = "",
                const std::string& most = "", const std::string& step = "") {
    Variables out = {{"SLURM_ARRAY_TASK_ID", id}, {"SLURM_ARRAY_TASK_COUNT", count}};
    if (!least.empty()) out["SLURM_ARRAY_TASK_MIN"] = least;
    if (!most.empty()) out["SLURM_ARRAY_TASK_MAX"] = most;
    if (!step.empty()) out["SLURM_ARRAY_TASK_STEP"] = step;
    return out;
}

Variables with(Variables variables, const Variables& more) {
    variables.insert(more.begin(), more.end());
    return variables;
}

}  // namespace

TEST_CASE("A share by hand is K/N", "[shard]") {
    CHECK(shard_of({}, "1/1") == "1/1");
    CHECK(shard_of({}, "8/8") == "8/8");
    CHECK(shard_of({{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "9"}}, "2/3") == "2/3");  // what is said wins
    for (const char* text : {"", "0/2", "3/2", "-1/2", "1/2x", "1", "/2", "1/", "1/0", "Auto", "1 /2", "99999999999/3"})
        CHECK(has(refusal({}, text), "is not auto or K/N"));
}

TEST_CASE("An array's element takes its share, wherever the indices begin", "[shard]") {
    CHECK(shard_of(array("0", "4", "0", "3", "1")) == "1/4");
    CHECK(shard_of(array("3", "4", "0", "3", "1")) == "4/4");
    CHECK(shard_of(array("1", "4", "1", "4", "1")) == "1/4");
    CHECK(shard_of(array("7", "3", "1", "7", "3")) == "3/3");  // --array=1-9:3
    CHECK(shard_of(array("7", "3", "1", "9", "3")) == "3/3");
    CHECK(shard_of(array("2", "4")) == "3/4");
}

TEST_CASE("An array with gaps is refused, as no share would be right", "[shard]") {
    CHECK(has(refusal(array("5", "3", "1", "7", "1")), "--shard K/N"));  // --array=1,5,7
    CHECK(has(refusal(array("8", "4", "0", "3", "1")), "--shard K/N"));
    CHECK(has(refusal(array("2", "3", "1", "7", "3")), "--shard K/N"));
    CHECK(has(refusal(array("0", "0", "0", "0", "1")), "--shard K/N"));
    CHECK(has(refusal({{"SLURM_ARRAY_TASK_ID", "1"}}), "SLURM_ARRAY_TASK_COUNT"));
    CHECK(has(refusal(array("one", "3")), "not a number"));
    CHECK(has(refusal(array("1", "3", "-2147483648")), "not a number up to"));
}

TEST_CASE("More shares than anybody has are refused, not wrapped around", "[shard]") {
    CHECK(has(refusal(array("1", "2000000000", "0")), "not a number up to"));
    Variables both = array("1", "1000000", "0");
    both["OMPI_COMM_WORLD_RANK"] = "3", both["OMPI_COMM_WORLD_SIZE"] = "4";
    CHECK(has(refusal(both), "1000000 times 4"));
}

TEST_CASE("The tasks of srun, Open MPI and PMI take one share each", "[shard]") {
    CHECK(shard_of({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}) == "1/4");
    CHECK(shard_of({{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_ID", "7"}}) ==
          "4/4");
    // A step of fewer tasks than the job.
    CHECK(shard_of({{"SLURM_PROCID", "1"},
                    {"SLURM_NTASKS", "8"},
                    {"SLURM_STEP_NUM_TASKS", "2"},
                    {"SLURM_STEP_ID", "1"},
                    {"SLURM_JOB_ID", "7"}}) == "2/2");
    CHECK(shard_of({{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "3"}}) == "3/3");
    CHECK(shard_of({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}) == "1/2");
    CHECK(shard_of({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}) == "1/1");
}

TEST_CASE("Under mpirun within a Slurm job Open MPI's rank counts, not that of its daemon", "[shard]") {
    CHECK(shard_of({{"SLURM_PROCID", "0"},
                    {"SLURM_NTASKS", "1"},
                    {"SLURM_STEP_ID", "0"},
                    {"SLURM_JOB_ID", "7"},
                    {"OMPI_COMM_WORLD_RANK", "5"},
                    {"OMPI_COMM_WORLD_SIZE", "6"}}) == "6/6");
}

TEST_CASE("An array of several tasks each is shared among all of them", "[shard]") {
    const Variables element = array("1", "3", "0", "2", "1");
    std::vector<std::string> shares;
    for (const char* rank : {"0", "1"})
        shares.push_back(shard_of(with(
            element, {{"SLURM_PROCID", rank}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_ID", "7"}})));
    CHECK(shares == std::vector<std::string>{"3/6", "4/6"});
    CHECK(shard_of(with(element, {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}})) == "4/6");
}

TEST_CASE("A batch script is no task: Slurm sets its rank to 0 all the same", "[shard]") {
    const Variables batch = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "7"}};
    CHECK(has(refusal(batch), "srun"));
    CHECK(shard_of({{"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "7"}}) == "1/1");
    CHECK(shard_of(with(array("2", "4", "0", "3", "1"), batch)) == "3/4");
}

TEST_CASE("Ranks that make no sense are refused by name, and so is having none", "[shard]") {
    CHECK(has(refusal({{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "3"}}), "OMPI_COMM_WORLD_RANK=3"));
    CHECK(has(refusal({{"PMI_RANK", "-1"}, {"PMI_SIZE", "3"}}), "PMI_RANK=-1"));
    CHECK(has(refusal({{"PMI_RANK", "1"}}), "PMI_SIZE"));
    CHECK(has(refusal({{"PMI_RANK", "x"}, {"PMI_SIZE", "3"}}), "PMI_RANK is 'x'"));
    const std::string none = refusal({});
    for (const char* part : {"SLURM_ARRAY_TASK_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "--shard K/N"})
        CHECK(has(none, part));
}

TEST_CASE("The program plans the share that its environment gives", "[shard]") {
    const TempDir home;
    const std::vector<std::string> plan = {"--preset",  "quick",   "--device", "cpu",       "--passes",
                                           "inference", "--shard", "auto",     "--dry-run", "--json"};
    const Outcome second = run_turbotune(home, plan, {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
    INFO(second.err);
    CHECK(second.exit_code == 0);
    CHECK(has(second.out, "\"count\": 1"));
    const Outcome none = run_turbotune(
        home, plan,
        {{"PMI_RANK", ""}, {"OMPI_COMM_WORLD_RANK", ""}, {"SLURM_PROCID", ""}, {"SLURM_ARRAY_TASK_ID", ""}});
    CHECK(none.exit_code == 2);
    CHECK(has(none.err, "--shard: auto: neither"));
}
