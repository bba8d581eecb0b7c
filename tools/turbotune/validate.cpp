#include "turbotune/tuner/validate.h"

#include <fmt/format.h>

#include <memory>

#include "commands.h"
#include "exit_code.h"
#include "interrupts.h"
#include "output.h"
#include "progress.h"
#include "table.h"

namespace turbotune::cli {
namespace {

struct ValidateCommand {
    ValidateOptions validate;
    bool json = false;
};

std::string errors_text(const std::vector<OutputParity>& outputs) {
    std::string out;
    for (const OutputParity& each : outputs)
        out += fmt::format("{}{} {:.1e} of {:.0e}", out.empty() ? "" : ", ", each.output, each.error, each.tolerance);
    return out;
}

const char* verdict(const ValidatedCase& each) {
    return each.skipped ? "skipped" : each.passed ? "passed" : "FAILED";
}

Json case_json(const ValidatedCase& each) {
    Json out;
    out["case"] = each.name;
    out["operation"] = each.operation;
    out["pass"] = each.pass;
    out["tier"] = each.tier;
    out["dtype"] = each.dtype;
    out["config"] = to_json(each.config);
    out["passed"] = each.passed;
    out["skipped"] = each.skipped;
    out["reason"] = each.reason;
    out["outputs"] = outputs_json(each.outputs);
    return out;
}

int run_validate(const ValidateCommand& options) {
    Progress progress(stderr);  // kernels are compiled on the way: on a cold store a minute and more
    int done = 0;
    const Interrupts interrupts;
    const ValidateReport report = validate(
        options.validate,
        [&](const ValidatedCase& each) {
            progress.update(fmt::format("[{}] {} {} {} {}: {}", ++done, each.name, each.pass, each.tier, each.dtype,
                                        verdict(each)));
        },
        interrupts.count());
    progress.clear();
    if (options.json) {
        Json out;
        out["device"] = device_json(report.device);
        out["cases"] = Json::array();
        for (const ValidatedCase& each : report.cases) out["cases"].push_back(case_json(each));
        out["passed"] = report.passed;
        out["failed"] = report.failed;
        out["skipped"] = report.skipped;
        out["interrupted"] = report.interrupted;
        print_json(out);
    } else {
        fmt::print("{}\n", device_line(report.device));
        Table table({"case", "operation", "pass", "tier", "dtype", "verdict", "error of tolerance", "reason"});
        for (const ValidatedCase& each : report.cases)
            table.add({each.name, each.operation, each.pass, each.tier, each.dtype, verdict(each),
                       errors_text(each.outputs), each.reason});
        fmt::print("{}{} passed, {} failed, {} skipped{}\n", table.to_string(), report.passed, report.failed,
                   report.skipped, report.interrupted ? "; interrupted, the other cases did not run" : "");
    }
    return report.interrupted ? kInterrupted : report.failed > 0 ? kFailures : kDone;
}

}  // namespace

void add_validate(CLI::App& app, Action& chosen) {
    auto options = std::make_shared<ValidateCommand>();
    CLI::App* command = app.add_subcommand(
        "validate",
        "Run cases with known results through every kernel tier of the device\n"
        "Each *.safetensors file of DIR holds tensors in.* and out.*, and a metadata entry `case` (JSON; `op` names "
        "the operation). Errors are relative to the largest value of their tensor. Exit 1 when a case fails.");
    command->add_option("--cases", options->validate.directory, "The directory")->type_name("DIR")->required();
    command
        ->add_option("--device", options->validate.device,
                     "auto (first GPU, else the CPU; default), cpu, or a GPU's number")
        ->type_name("N|cpu|auto");
    command->add_option("--tier", options->validate.tier, "Only this tier; `turbotune devices` lists them")
        ->type_name("T");
    command->add_flag("--json", options->json, "One JSON object with a list `cases`");
    command->footer("Example:\n  turbotune validate --cases tests/data --device cpu");
    command->callback([options, &chosen] { chosen = [options] { return run_validate(*options); }; });
}

}  // namespace turbotune::cli
