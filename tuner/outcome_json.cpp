#include "outcome_json.h"

#include <limits>

namespace turbotune {

namespace {

constexpr double kLongest = 1e9;  // ms
constexpr int kMostInt = std::numeric_limits<int>::max();

int small_integer(JsonReader& reader, const char* key) {
    return int(reader.integer(key, -1, kMostInt));
}

}  // namespace

Json latency_to_json(const Latency& latency) {
    return Json{{"min", latency.min},
                {"p10", latency.p10},
                {"median", latency.median},
                {"p90", latency.p90},
                {"samples", latency.samples}};
}

Latency latency_from_json(JsonReader& reader) {
    Latency latency;
    latency.min = reader.number("min", 0, kLongest);
    latency.p10 = reader.number("p10", 0, kLongest);
    latency.median = reader.number("median", 0, kLongest);
    latency.p90 = reader.number("p90", 0, kLongest);
    latency.samples = int(reader.integer("samples", 1, kMostInt));
    reader.finish();
    if (!(latency.min <= latency.p10 && latency.p10 <= latency.median && latency.median <= latency.p90))
        reader.fail("median", "min, p10, median and p90 are out of order");
    return latency;
}

Json parity_to_json(const Parity& parity) {
    Json outputs = Json::array();
    for (const OutputParity& output : parity.outputs)
        outputs.push_back({{"output", output.output}, {"error", output.error}, {"tolerance", output.tolerance}});
    return Json{{"outputs", std::move(outputs)}, {"patterns", parity.patterns}};
}

Parity parity_from_json(JsonReader& reader) {
    Parity parity;
    for (JsonReader& item : reader.array("outputs")) {
        OutputParity output;
        output.output = item.text("output");
        output.error = item.number("error", 0, std::numeric_limits<double>::max());
        output.tolerance = item.number("tolerance", 0, std::numeric_limits<double>::max());
        item.finish();
        parity.outputs.push_back(std::move(output));
    }
    parity.patterns = reader.texts("patterns");
    reader.finish();
    return parity;
}

Json outcome_to_json(const CandidateOutcome& outcome) {
    Json json{{"operation", outcome.workload.operation},
              {"workload", to_json(outcome.workload.fields)},
              {"config", to_json(outcome.config)}};
    if (!outcome.measured()) {
        json["reason"] = outcome.reason;
        json["detail"] = outcome.detail;
        return json;
    }
    json["latency"] = latency_to_json(outcome.latency);
    json["parity"] = parity_to_json(outcome.parity);
    json["registers"] = outcome.registers;
    json["local_bytes"] = outcome.local_bytes;
    json["shared_bytes"] = outcome.shared_bytes;
    return json;
}

CandidateOutcome outcome_from_json(JsonReader& reader) {
    CandidateOutcome outcome;
    outcome.workload.operation = reader.text("operation");
    outcome.workload.fields = reader.fields("workload");
    outcome.config = reader.fields("config");
    if (reader.has("reason")) {
        outcome.reason = reader.text("reason");
        outcome.detail = reader.text("detail");
        if (outcome.reason.empty()) reader.fail("reason", "is empty");
    } else {
        JsonReader latency = reader.object("latency");
        outcome.latency = latency_from_json(latency);
        JsonReader parity = reader.object("parity");
        outcome.parity = parity_from_json(parity);
        outcome.registers = small_integer(reader, "registers");
        outcome.local_bytes = small_integer(reader, "local_bytes");
        outcome.shared_bytes = small_integer(reader, "shared_bytes");
    }
    reader.finish();
    return outcome;
}

}  // namespace turbotune
