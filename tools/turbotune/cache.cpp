#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "commands.h"
#include "exit_code.h"
#include "output.h"
#include "table.h"
#include "turbotune/base/error.h"
#include "turbotune/kernel/store.h"

namespace turbotune::cli {
namespace {

struct CacheOptions {
    std::string directory;
    bool json = false;
};

// A mistyped directory would else look like an empty store.
void check_directory(const std::string& directory) {
    if (directory.empty()) return;
    std::error_code error;
    const auto status = std::filesystem::status(directory, error);
    if (status.type() == std::filesystem::file_type::not_found)
        throw InvalidArgument("--directory", directory + " does not exist");
    if (error) throw InvalidArgument("--directory", directory + ": " + error.message());
    if (!std::filesystem::is_directory(status)) throw InvalidArgument("--directory", directory + " is no directory");
}

// A store that programs would refuse, such as one that others can write to, is no store that is good.
void check_usable(const std::string& directory) {
    if (directory.empty()) return;
    Store store({.directory = directory});
    if (store.directory().empty()) throw Error(ErrorCode::store, store.reason());
}

Json stored_json(const StoreEntryInfo& entry) {
    Json out;
    out["key"] = entry.key;
    out["path"] = entry.path;
    out["bytes"] = entry.bytes;
    out["kernel"] = entry.metadata.kernel_name;
    out["registers"] = entry.metadata.registers;
    out["local_bytes"] = entry.metadata.local_bytes;
    out["compile_ms"] = entry.metadata.compile_ms;
    out["problem"] = entry.problem;
    return out;
}

std::string where(Store& store) {
    return store.directory().empty() ? "no directory: " + store.reason()
                                     : fmt::format("{} ({})", store.directory(), store.reason());
}

int list(const CacheOptions& options, bool verify) {
    Store store({.directory = options.directory});
    const std::vector<StoreEntryInfo> entries = store.list(verify);
    std::int64_t bytes = 0, bad = 0;
    for (const StoreEntryInfo& entry : entries) bytes += entry.bytes, bad += !entry.problem.empty();
    if (options.json) {
        Json out;
        out["directory"] = store.directory();
        out["reason"] = store.reason();
        out["count"] = entries.size();
        out["bytes"] = bytes;
        out["bad"] = bad;
        out["entries"] = Json::array();
        for (const StoreEntryInfo& entry : entries) out["entries"].push_back(stored_json(entry));
        print_json(out);
        return verify && bad > 0 ? kFailures : kDone;
    }
    fmt::print("{}\n", where(store));
    Table table({"key", ">size", "kernel", ">registers", ">compile ms", "problem"});
    for (const StoreEntryInfo& entry : entries) {
        if (verify && entry.problem.empty()) continue;  // verify names the bad ones
        const bool known = entry.problem.empty();
        table.add({entry.key.substr(0, 16), byte_count(entry.bytes), entry.metadata.kernel_name,
                   known && entry.metadata.registers >= 0 ? std::to_string(entry.metadata.registers) : "",
                   known ? fmt::format("{:.0f}", entry.metadata.compile_ms) : "", entry.problem});
    }
    if (!table.empty()) fmt::print("{}", table.to_string());
    fmt::print("{}, {}{}\n", counted(std::int64_t(entries.size()), "entry", "entries"), byte_count(bytes),
               verify ? fmt::format(", {} bad", bad) : "");
    return verify && bad > 0 ? kFailures : kDone;
}

int clear(const CacheOptions& options) {
    Store store({.directory = options.directory});
    const std::string directory = store.directory();
    const std::int64_t removed = store.clear();
    const std::vector<StoreEntryInfo> left = store.list(false);
    if (options.json) {
        Json out;
        out["directory"] = directory;
        out["removed"] = removed;
        out["left"] = Json::array();
        for (const StoreEntryInfo& each : left) out["left"].push_back({{"path", each.path}, {"problem", each.problem}});
        print_json(out);
    } else {
        fmt::print("{}\n{} removed\n", where(store), counted(removed, "entry", "entries"));
        for (const StoreEntryInfo& each : left)
            fmt::print("left: {}: {}\n", each.path, each.problem.empty() ? "cannot be removed" : each.problem);
    }
    const bool stuck = std::any_of(left.begin(), left.end(), [](const auto& each) { return each.problem.empty(); });
    return stuck ? kFailures : kDone;
}

}  // namespace

void add_cache(CLI::App& app, Action& chosen) {
    CLI::App* cache = app.add_subcommand("cache",
                                         "List, check, empty or fill the store of compiled kernels\n"
                                         "Compiled kernels are kept on disk, so that each is compiled once. Losing "
                                         "them costs only the time to compile again.");
    cache->require_subcommand(1);
    cache->footer("Example:\n  turbotune cache verify");
    struct Verb {
        const char* name;
        const char* help;
        int (*run)(const CacheOptions&);
    };
    const Verb verbs[] = {
        {"list", "Show every entry", [](const CacheOptions& options) { return list(options, false); }},
        {"verify", "Read every entry and check its digest; exit 1 when one is bad",
         [](const CacheOptions& options) { return list(options, true); }},
        {"clear", "Remove every entry", clear},
    };
    for (const Verb& verb : verbs) {
        auto options = std::make_shared<CacheOptions>();
        CLI::App* command = cache->add_subcommand(verb.name, verb.help);
        command->add_option("--directory", options->directory, "The store; default: the one that programs here use")
            ->type_name("DIR");
        command->add_flag("--json", options->json, "One JSON object");
        command->footer(fmt::format("Example:\n  turbotune cache {}", verb.name));
        command->callback([options, run = verb.run, &chosen] {
            chosen = [options, run] {
                check_directory(options->directory);
                check_usable(options->directory);
                return run(*options);
            };
        });
    }
    add_cache_warm(*cache, chosen);
}

}  // namespace turbotune::cli
