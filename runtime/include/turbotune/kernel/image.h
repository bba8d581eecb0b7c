// What a compiler returns: the loadable bytes and what is known about them.
#pragma once

#include <string>

namespace turbotune {

struct KernelMetadata {
    std::string kernel_name;
    int registers = -1;            // per thread, from the ptxas report; -1: not known (host)
    int local_bytes = -1;          // stack frame per thread
    int spill_store_bytes = -1;
    int spill_load_bytes = -1;
    int static_shared_bytes = -1;  // per block
    double compile_ms = 0;         // wall time of the compile that made it
};

struct Image {
    std::string bytes;             // a cubin, or a shared object
    KernelMetadata metadata;
    std::string log;               // the compiler's output, warnings included; not kept in the store
};

}  // namespace turbotune
