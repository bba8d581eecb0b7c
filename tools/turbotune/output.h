// What several subcommands print: devices, workloads and profile entries, as text and as JSON.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "turbotune/base/json.h"
#include "turbotune/profile/profile.h"

namespace turbotune::cli {

std::string device_id(const DeviceInfo& info);    // what --device takes: "cpu", "0", ...
std::string device_line(const DeviceInfo& info);  // "cpu: AMD EPYC (x86_64-avx512-...)"
// {"id", "kind", "name", "class", "target", "tiers"}
Json device_json(const DeviceInfo& info);
// The identity of the compiler that serves the device; "" where there is none, with the reason in `why`.
std::string compiler_of(const DeviceInfo& info, std::string* why = nullptr);

Json workload_json(const Workload& workload);  // the operation's name first, then the fields
Json latency_json(const Latency& latency);
Json outputs_json(const std::vector<OutputParity>& outputs);
// Everything that the profile holds of one workload.
Json entry_json(const ProfileEntry& entry);

// One table per operation: fields that vary, latency, the winner's config.
std::string winners_text(const std::vector<ProfileEntry>& entries, std::size_t limit);

// To standard output or error. Where the latter is closed or full nobody hears, which must not cost what the former
// gets.
void tell_text(std::FILE* stream, const std::string& text);
template <typename... Arguments>
void tell(std::FILE* stream, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    tell_text(stream, fmt::format(format, std::forward<Arguments>(arguments)...));
}

void print_json(const Json& value);  // standard output, indented, with a newline
// Writes out what waits in the buffer. Throws Error (store) when that, or an earlier write, failed.
void flush_output();

// As a shell takes it: quoted when it has to be.
std::string shell_word(const std::string& word);

// The path of the running program, whose `worker` subcommand a sweep starts. Throws Error.
std::string this_program();

// "a,b" -> {"a", "b"}; throws InvalidArgument naming the flag when an element is empty.
std::vector<std::string> split_list(const std::string& flag, const std::string& text);

}  // namespace turbotune::cli
