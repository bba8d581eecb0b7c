#include "guard.h"

#include <new>

namespace turbotune::capi {

namespace {

std::string& last_error() {
    thread_local std::string message;
    return message;
}

// The compiler's log is what tells why; the message alone names the kernel.
std::string with_log(const CompileError& error) {
    return error.log().empty() ? error.what() : std::string(error.what()) + '\n' + error.log();
}

}  // namespace

turbotune_status failed(turbotune_status status, const char* message) noexcept {
    try {
        last_error() = message;
    } catch (...) {
        // No memory for the sentence: an older one would mislead.
        last_error().clear();
    }
    return status;
}

turbotune_status failed_by_exception() noexcept {
    try {
        throw;
    } catch (const CompileError& error) {
        try {
            return failed(TURBOTUNE_COMPILE_ERROR, with_log(error).c_str());
        } catch (...) {
            return failed(TURBOTUNE_COMPILE_ERROR, error.what());
        }
    } catch (const Error& error) {
        return failed(static_cast<turbotune_status>(error.code()), error.what());
    } catch (const std::bad_alloc&) {
        return failed(TURBOTUNE_OUT_OF_MEMORY, "the host is out of memory");
    } catch (const std::exception& error) {
        return failed(TURBOTUNE_INTERNAL_ERROR, error.what());
    } catch (...) {
        return failed(TURBOTUNE_INTERNAL_ERROR, "an exception of unknown type");
    }
}

}  // namespace turbotune::capi

using namespace turbotune;

static_assert(TURBOTUNE_UNSUPPORTED == int(ErrorCode::unsupported));
static_assert(TURBOTUNE_INVALID_ARGUMENT == int(ErrorCode::invalid_argument));
static_assert(TURBOTUNE_COMPILE_ERROR == int(ErrorCode::compile));
static_assert(TURBOTUNE_DEVICE_ERROR == int(ErrorCode::device));
static_assert(TURBOTUNE_PROFILE_MISS == int(ErrorCode::profile_miss));
static_assert(TURBOTUNE_STORE_ERROR == int(ErrorCode::store));

const char* turbotune_version(void) {
    return TURBOTUNE_VERSION;
}

const char* turbotune_status_name(int status) {
    switch (status) {
        case TURBOTUNE_OK:
            return "ok";
        case TURBOTUNE_OUT_OF_MEMORY:
            return "out_of_memory";
        case TURBOTUNE_INTERNAL_ERROR:
            return "internal_error";
        case TURBOTUNE_UNSUPPORTED:
        case TURBOTUNE_INVALID_ARGUMENT:
        case TURBOTUNE_COMPILE_ERROR:
        case TURBOTUNE_DEVICE_ERROR:
        case TURBOTUNE_PROFILE_MISS:
        case TURBOTUNE_STORE_ERROR:
            return to_string(static_cast<ErrorCode>(status));
    }
    return "unknown";
}

const char* turbotune_last_error(void) {
    return capi::last_error().c_str();
}
