#include "turbotune/ops/operation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "turbotune/base/error.h"
#include "turbotune/ops/disentangled_attention/attention.h"

namespace turbotune {

const char* to_string(Preset preset) {
    switch (preset) {
        case Preset::quick:
            return "quick";
        case Preset::standard:
            return "standard";
        case Preset::exhaustive:
            return "exhaustive";
    }
    return "unknown";
}

Preset parse_preset(const std::string& name) {
    std::vector<std::string> names;
    for (const Preset preset : {Preset::quick, Preset::standard, Preset::exhaustive}) {
        if (name == to_string(preset)) return preset;
        names.push_back(to_string(preset));
    }
    throw InvalidArgument("preset", fmt::format("'{}' is none of {}", name, fmt::join(names, ", ")));
}

const std::vector<const Operation*>& operations() {
    static const std::vector<const Operation*> all = {&disentangled_attention::operation()};
    return all;
}

const Operation& find_operation(const std::string& name) {
    std::vector<std::string> names;
    for (const Operation* operation : operations()) {
        if (operation->name() == name) return *operation;
        names.push_back(operation->name());
    }
    throw InvalidArgument("operation", fmt::format("'{}' is none of {}", name, fmt::join(names, ", ")));
}

}  // namespace turbotune
