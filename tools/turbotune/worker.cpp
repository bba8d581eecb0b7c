#include <memory>

#include "commands.h"
#include "turbotune/tuner/sweep.h"

namespace turbotune::cli {

void add_worker(CLI::App& app, Action& chosen) {
    auto device = std::make_shared<std::string>("auto");
    CLI::App* command =
        app.add_subcommand("worker", "Measure candidates for a tuning process, over standard input and output");
    command->group("");  // started by the tuner, not by people
    command->add_option("--device", *device, "The device")->type_name("N|cpu|auto");
    command->callback([device, &chosen] {
        chosen = [device] {
            return worker_main(*device, {});  // the store comes with the first request
        };
    });
}

}  // namespace turbotune::cli
