#include "turbotune/base/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string_view>

namespace turbotune {

namespace {

struct NamedLevel {
    std::string_view name;
    LogLevel level;
};
constexpr NamedLevel kLevels[] = {{"debug", LogLevel::debug},  {"info", LogLevel::info},   {"warn", LogLevel::warn},
                                  {"warning", LogLevel::warn}, {"error", LogLevel::error}, {"off", LogLevel::off}};

spdlog::level::level_enum to_spdlog(LogLevel level) {
    switch (level) {
        case LogLevel::debug:
            return spdlog::level::debug;
        case LogLevel::info:
            return spdlog::level::info;
        case LogLevel::warn:
            return spdlog::level::warn;
        case LogLevel::error:
            return spdlog::level::err;
        case LogLevel::off:
            break;
    }
    return spdlog::level::off;
}

class Logger {
  public:
    // Never destroyed: destructors of other static objects may still report.
    static Logger& get() {
        static Logger* logger = new Logger;
        return *logger;
    }

    LogLevel level() const { return level_.load(std::memory_order_relaxed); }
    void set_level(LogLevel level) { level_.store(level, std::memory_order_relaxed); }

    void set_sink(LogSink sink) {
        auto shared = sink ? std::make_shared<LogSink>(std::move(sink)) : nullptr;
        std::lock_guard<std::recursive_mutex> hold(mutex_);
        sink_.swap(shared);
    }

    // One message at a time, so that a sink needs no lock of its own; a sink may report or be replaced
    // from within itself. What a sink throws must not end the work that reported.
    void write(LogLevel level, const std::string& message) noexcept {
        try {
            std::lock_guard<std::recursive_mutex> hold(mutex_);
            const std::shared_ptr<LogSink> sink = sink_;
            if (sink) {
                (*sink)(level, message);
            } else {
                default_.log(to_spdlog(level), spdlog::string_view_t(message.data(), message.size()));
            }
        } catch (...) {
        }
    }

  private:
    Logger() : default_("turbotune", std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
        default_.set_level(spdlog::level::trace);
        default_.set_pattern("turbotune: %l: %v");
        default_.flush_on(spdlog::level::trace);
        const char* wanted = std::getenv("TURBOTUNE_LOG");
        if (!wanted || !*wanted) return;
        for (const NamedLevel& named : kLevels) {
            if (named.name == wanted) {
                set_level(named.level);
                return;
            }
        }
        write(LogLevel::warn, "TURBOTUNE_LOG: expected off, error, warn, info or debug, got \"" + std::string(wanted) +
                                  "\"; using warn");
    }

    std::atomic<LogLevel> level_{LogLevel::warn};
    std::recursive_mutex mutex_;
    std::shared_ptr<LogSink> sink_;
    spdlog::logger default_;
};

}  // namespace

void set_log_sink(LogSink sink) {
    Logger::get().set_sink(std::move(sink));
}

void set_log_level(LogLevel level) {
    Logger::get().set_level(level);
}

LogLevel log_level() {
    return Logger::get().level();
}

void log(LogLevel level, const std::string& message) {
    Logger& logger = Logger::get();
    if (level == LogLevel::off || level < logger.level()) return;
    logger.write(level, message);
}

}  // namespace turbotune
