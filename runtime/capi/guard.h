// Between C and C++: exceptions become a status and a message of the calling thread.
#pragma once

#include <string>
#include <utility>

#include "turbotune/base/error.h"
#include "turbotune/turbotune.h"

namespace turbotune::capi {

// Leaves `message` for turbotune_last_error and returns the status.
turbotune_status failed(turbotune_status status, const char* message) noexcept;
// The same for the exception that is being handled.
turbotune_status failed_by_exception() noexcept;

template <typename Body>
turbotune_status guarded(Body&& body) noexcept {
    try {
        std::forward<Body>(body)();
        return TURBOTUNE_OK;
    } catch (...) {
        return failed_by_exception();
    }
}

template <typename T>
T& need(T* pointer, const char* argument) {
    if (!pointer) throw InvalidArgument(argument, "is null");
    return *pointer;
}

}  // namespace turbotune::capi
