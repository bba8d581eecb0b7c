#include "turbotune/tuner/compile_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "thread_group.h"
#include "turbotune/base/error.h"
#include "turbotune/kernel/compiler.h"
#include "turbotune/kernel/kernel_spec.h"

namespace turbotune {

namespace {

struct Job {
    KernelSpec spec;
    Resources resources;
    DeviceInfo device;
    std::string config;
};

std::vector<Job> jobs_of(const Operation& operation, const CompileMatrixOptions& options) {
    std::vector<Job> jobs;
    for (const std::string& target : options.targets) {
        const DeviceInfo device = model_device(target);
        std::set<std::string> seen, shapes;
        for (const Workload& workload : operation.workloads(options.query)) {
            if (!operation.unavailable(workload, device).empty()) continue;
            for (const Fields& problem : operation.problems(workload, device))
                for (const Config& config : operation.candidates(workload, device)) {
                    const Verdict verdict = operation.filter(workload, config, device);
                    if (!verdict.fits) continue;
                    for (KernelSpec& spec : operation.kernels(problem, config, device)) {
                        const std::string name = spec.to_string();
                        if (seen.insert(name).second)
                            jobs.push_back({std::move(spec), verdict.resources, device, config.to_string()});
                    }
                }
        }
    }
    if (options.every > 1) {
        std::vector<Job> sample;
        for (std::size_t i = 0; i < jobs.size(); i += static_cast<std::size_t>(options.every))
            sample.push_back(jobs[i]);
        jobs = std::move(sample);
    }
    return jobs;
}

std::string judge(const CompileRow& row, const DeviceInfo& device, bool spills_allowed) {
    if (row.registers > row.predicted_registers)
        return fmt::format("{} registers, predicted at most {}", row.registers, row.predicted_registers);
    if (row.predicted_shared_bytes + row.static_shared_bytes > device.device_class.shared_per_block)
        return fmt::format("{} + {} bytes of shared memory, the device has {}", row.predicted_shared_bytes,
                           row.static_shared_bytes, device.device_class.shared_per_block);
    if (!spills_allowed && row.spill_store_bytes > 0) return fmt::format("spills {} bytes", row.spill_store_bytes);
    return "";
}

CompileRow compile(const Job& job, bool spills_allowed) {
    CompileRow row;
    row.target = job.spec.target;
    row.kernel = job.spec.to_string();
    row.config = job.config;
    row.threads = job.resources.threads;
    row.predicted_registers = job.resources.registers;
    row.predicted_shared_bytes = job.resources.shared_bytes;
    try {
        const Image image =
            nvrtc_compiler().compile({render(job.spec), job.spec.kernel_name, job.spec.target, row.kernel});
        row.registers = image.metadata.registers;
        row.local_bytes = image.metadata.local_bytes;
        row.spill_store_bytes = image.metadata.spill_store_bytes;
        row.spill_load_bytes = image.metadata.spill_load_bytes;
        row.static_shared_bytes = image.metadata.static_shared_bytes;
        row.compile_ms = image.metadata.compile_ms;
        row.problem = judge(row, job.device, spills_allowed);
    } catch (const CompileError& error) {
        row.problem = fmt::format("compile error: {}\n{}", error.what(), error.log());
    }
    return row;
}

}  // namespace

std::vector<CompileRow> compile_matrix(const Operation& operation, const CompileMatrixOptions& options) {
    const std::vector<Job> jobs = jobs_of(operation, options);
    std::vector<CompileRow> rows(jobs.size());
    std::atomic<std::size_t> next{0};
    std::vector<std::thread> threads = start_threads(options.jobs > 0 ? options.jobs : compile_jobs(), [&] {
        for (std::size_t i; (i = next++) < jobs.size();) rows[i] = compile(jobs[i], options.spills_allowed);
    });
    for (std::thread& thread : threads) thread.join();
    return rows;
}

}  // namespace turbotune
