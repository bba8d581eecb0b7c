// The compiler's log, of whatever version.
#include "fuzz.h"
#include "ptxas_report.h"

using namespace turbotune;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const PtxasReport report = parse_ptxas_report(std::string(fuzz::view(data, size)), "kernel");
    fuzz::require(report.metadata.kernel_name == "kernel", "the report is of the kernel asked for");
    for (const int number : {report.metadata.registers, report.metadata.local_bytes, report.metadata.spill_store_bytes,
                             report.metadata.spill_load_bytes, report.metadata.static_shared_bytes})
        fuzz::require(number >= -1, "what is not known is -1");
    return 0;
}
