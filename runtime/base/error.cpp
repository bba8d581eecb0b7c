#include "turbotune/base/error.h"

namespace turbotune {

const char* to_string(ErrorCode code) {
    switch (code) {
        case ErrorCode::unsupported:
            return "unsupported";
        case ErrorCode::invalid_argument:
            return "invalid_argument";
        case ErrorCode::compile:
            return "compile";
        case ErrorCode::device:
            return "device";
        case ErrorCode::profile_miss:
            return "profile_miss";
        case ErrorCode::store:
            return "store";
    }
    return "unknown";
}

}  // namespace turbotune
