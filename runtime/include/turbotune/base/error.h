// The one error hierarchy. Every error thrown by the library is one of these, so that a caller can
// decide by type what to do; the message always names the argument, rule or file at fault.
#pragma once

#include <stdexcept>
#include <string>

namespace turbotune {

enum class ErrorCode {
    unsupported = 1,
    invalid_argument = 2,
    compile = 3,
    device = 4,
    profile_miss = 5,
    store = 6,
};

// "unsupported", "invalid_argument", ...
const char* to_string(ErrorCode code);

class Error : public std::runtime_error {
  public:
    Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
    ErrorCode code() const { return code_; }

  private:
    ErrorCode code_;
};

// The problem is well formed, but outside the envelope. `rule` names the limit.
class Unsupported : public Error {
  public:
    explicit Unsupported(const std::string& rule) : Error(ErrorCode::unsupported, rule) {}
};

// A mistake of the caller (or in an input file): names the argument (for a file "FILE: /json/path")
// and the value given.
class InvalidArgument : public Error {
  public:
    InvalidArgument(const std::string& argument, const std::string& why)
        : Error(ErrorCode::invalid_argument, argument + ": " + why), argument_(argument) {}
    const std::string& argument() const { return argument_; }

  private:
    std::string argument_;
};

// The compiler is missing, or refused the source. `log` is the compiler's own output.
class CompileError : public Error {
  public:
    CompileError(const std::string& message, std::string log = {}, std::string options = {},
                 std::string source_path = {})
        : Error(ErrorCode::compile, message),
          log_(std::move(log)),
          options_(std::move(options)),
          source_path_(std::move(source_path)) {}
    const std::string& log() const { return log_; }
    const std::string& options() const { return options_; }
    // A copy of the rendered source, where one could be written; else empty.
    const std::string& source_path() const { return source_path_; }

  private:
    std::string log_, options_, source_path_;
};

// A driver call failed, or no usable device is there. `name` is the driver's own name of the code,
// such as CUDA_ERROR_ILLEGAL_ADDRESS; empty when no driver call was made.
class DeviceError : public Error {
  public:
    explicit DeviceError(const std::string& message, int driver_code = 0, std::string name = {})
        : Error(ErrorCode::device, message), driver_code_(driver_code), name_(std::move(name)) {}
    int driver_code() const { return driver_code_; }
    const std::string& name() const { return name_; }

  private:
    int driver_code_;
    std::string name_;
};

// Policy profile_only, and no loaded profile holds the workload. The message says why each did not.
class ProfileMiss : public Error {
  public:
    explicit ProfileMiss(const std::string& message) : Error(ErrorCode::profile_miss, message) {}
};

// The image store failed. Never leaves the runtime on a path that can still run without the store.
class StoreError : public Error {
  public:
    explicit StoreError(const std::string& message) : Error(ErrorCode::store, message) {}
};

}  // namespace turbotune
