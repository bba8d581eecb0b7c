// What the reader and the writer of profiles share.
#pragma once

#include <string>

#include "turbotune/base/json.h"
#include "turbotune/base/sha256.h"

namespace turbotune {

// One line without spaces. Bytes that are no UTF-8 (a compiler's log, a device name) become U+FFFD.
inline std::string canonical_text(const Json& value) {
    return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Over the document without its `checksum` member: layout may change, no value may.
inline std::string profile_checksum(const Json& document) {
    const std::string text = canonical_text(document);
    return to_hex(sha256(text.data(), text.size()));
}

}  // namespace turbotune
