#include "device_failure.h"

#include <new>

namespace turbotune {

namespace {

// Journal and profile hold a line or two, not a whole compiler log.
std::string shortened(std::string text, std::size_t most = 800) {
    if (text.size() > most) text = text.substr(0, most) + " ...";
    return text;
}

// Whether these are a compiler's words about what is around it, not about the source.
bool was_hindered(const std::string& log) {
    for (const char* words : {"No space left on device", "Disk quota exceeded", "Killed signal", "terminated program",
                              "Cannot allocate memory", "virtual memory exhausted"})
        if (log.find(words) != std::string::npos) return true;
    return false;
}

}  // namespace

bool is_out_of_memory(const DeviceError& error) {
    constexpr int kOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY
    return error.driver_code() == kOutOfMemory || std::string(error.what()).find("out of memory") != std::string::npos;
}

bool may_pass(const std::string& reason) {
    return reason == "out_of_memory" || reason == "compiler_failed" || reason == "killed" || reason == "no_worker";
}

bool is_sticky(int driver_code) {
    switch (driver_code) {
        case 700:  // CUDA_ERROR_ILLEGAL_ADDRESS
        case 702:  // CUDA_ERROR_LAUNCH_TIMEOUT
        case 709:  // CUDA_ERROR_CONTEXT_IS_DESTROYED
        case 710:  // CUDA_ERROR_ASSERT
        case 714:  // CUDA_ERROR_HARDWARE_STACK_ERROR
        case 715:  // CUDA_ERROR_ILLEGAL_INSTRUCTION
        case 716:  // CUDA_ERROR_MISALIGNED_ADDRESS
        case 717:  // CUDA_ERROR_INVALID_ADDRESS_SPACE
        case 718:  // CUDA_ERROR_INVALID_PC
        case 719:  // CUDA_ERROR_LAUNCH_FAILED
        case 721:  // CUDA_ERROR_TENSOR_MEMORY_LEAK
        case 214:  // CUDA_ERROR_ECC_UNCORRECTABLE
        case 220:  // CUDA_ERROR_NVLINK_UNCORRECTABLE
        case 226:  // CUDA_ERROR_CONTAINED
        case 999:  // CUDA_ERROR_UNKNOWN
            return true;
        default:
            return false;
    }
}

CandidateFailure describe_failure(std::exception_ptr failure) {
    try {
        std::rethrow_exception(failure);
    } catch (const CompileError& error) {
        std::string detail = error.what();
        if (detail.find(error.log()) == std::string::npos) detail += "\n" + error.log();
        // Without a word from the compiler the source is not at fault either: the compiler is missing or was killed.
        const bool hindered = error.log().empty() || was_hindered(error.log());
        return {hindered ? "compiler_failed" : "compile_error", shortened(detail), false};
    } catch (const DeviceError& error) {
        if (is_out_of_memory(error)) return {"out_of_memory", shortened(error.what()), false};
        bool sticky = is_sticky(error.driver_code());
        return {sticky ? "fault" : "launch_error", shortened(error.what()), sticky};
    } catch (const std::bad_alloc&) {
        return {"out_of_memory", "host memory ran out", false};
    } catch (const std::exception& error) {
        return {"launch_error", shortened(error.what()), false};
    }
}

}  // namespace turbotune
