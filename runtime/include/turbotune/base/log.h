// The library reports through one sink and never prints by itself to standard output. The default
// sink writes warnings and errors to standard error ("turbotune: warning: ..."); TURBOTUNE_LOG =
// off | error | warn | info | debug changes the level.
#pragma once

#include <functional>
#include <string>

namespace turbotune {

enum class LogLevel { debug, info, warn, error, off };

using LogSink = std::function<void(LogLevel, const std::string&)>;

void set_log_sink(LogSink sink);        // an empty function restores the default
void set_log_level(LogLevel level);
LogLevel log_level();
void log(LogLevel level, const std::string& message);

}  // namespace turbotune
