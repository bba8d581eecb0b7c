// A shared object loaded from bytes in memory.
#pragma once

#include <string>

namespace turbotune {

// The bytes that were verified are the bytes that run: they never touch a path that somebody else could change. Throws
// DeviceError with the loader's words.
class SharedObject {
  public:
    explicit SharedObject(const std::string& bytes);
    ~SharedObject();
    SharedObject(const SharedObject&) = delete;
    SharedObject& operator=(const SharedObject&) = delete;
    void* symbol(const std::string& name) const;  // nullptr when there is none

  private:
    void* handle_ = nullptr;
};

}  // namespace turbotune
