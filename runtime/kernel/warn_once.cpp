#include "warn_once.h"

#include <mutex>
#include <set>

#include "turbotune/base/log.h"

namespace turbotune {

void warn_once(const std::string& reason, const std::string& message) {
    static std::mutex mutex;
    static auto* said = new std::set<std::string>;
    {
        const std::lock_guard lock(mutex);
        if (!said->insert(reason).second) return;
    }
    log(LogLevel::warn, message);
}

}  // namespace turbotune
