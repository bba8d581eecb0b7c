// The records of journal and worker protocol as JSON. Brings in the JSON library: include from .cpp files only.
#pragma once

#include "turbotune/base/json.h"
#include "turbotune/tuner/journal.h"

namespace turbotune {

Json latency_to_json(const Latency& latency);
Json parity_to_json(const Parity& parity);
Json outcome_to_json(const CandidateOutcome& outcome);

// Strict, as parse_profile is: throw InvalidArgument.
Latency latency_from_json(JsonReader& reader);
Parity parity_from_json(JsonReader& reader);
CandidateOutcome outcome_from_json(JsonReader& reader);

}  // namespace turbotune
