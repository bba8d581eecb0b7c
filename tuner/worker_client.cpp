#include "worker_client.h"

#include <fmt/format.h>

#include <cstdlib>

#include "outcome_json.h"
#include "turbotune/base/error.h"
#include "turbotune/base/files.h"

namespace turbotune {

namespace {

// A candidate this many times slower than the plain reference is as good as hung.
constexpr double kSlowest = 20;
// Making test data with float64 results takes long on few cores, and no candidate runs meanwhile.
constexpr double kOpenPatience = 20;

std::string text_of(const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

double watchdog_seconds() {
    constexpr double kDefault = 30;
    auto text = environment("TURBOTUNE_WATCHDOG_S");
    if (!text) return kDefault;
    char* end = nullptr;
    double seconds = std::strtod(text->c_str(), &end);
    if (*end != '\0' || !(seconds > 0))
        throw InvalidArgument("TURBOTUNE_WATCHDOG_S", fmt::format("\"{}\" is not a number of seconds", *text));
    return seconds;
}

WorkerClient::WorkerClient(std::string program, std::string device, Store::Options store,
                           const std::atomic<int>* interrupts)
    : process_(std::move(program), std::move(device)), store_(std::move(store)), interrupts_(interrupts) {}

double WorkerClient::patience(double execution_ms) const {
    return watchdog_seconds() + kSlowest * (reference_ms_ + execution_ms) / 1000;
}

Exchange WorkerClient::ask(const std::string& request, double silence_s) {
    Exchange exchange = process_.exchange(request, silence_s, interrupts_);
    if (exchange.died()) {
        greeted_ = opened_ = false;
        return exchange;
    }
    // A lost device context: the worker has answered and leaves.
    if (exchange.answer.find("\"leaving\":true") != std::string::npos) {
        process_.reap();
        greeted_ = opened_ = false;
    }
    return exchange;
}

bool WorkerClient::ready(std::string* why) {
    if (!greeted_) {
        Json hello{
            {"do", "hello"},
            {"store",
             {{"directory", store_.directory}, {"max_bytes", store_.max_bytes}, {"memory_only", store_.memory_only}}}};
        Exchange exchange = ask(text_of(hello), watchdog_seconds());
        if (exchange.died()) {
            *why = exchange.reason == "interrupted"
                       ? exchange.reason
                       : fmt::format("the worker process does not start: {}: {}", exchange.reason, exchange.detail);
            return false;
        }
        greeted_ = true;
    }
    if (opened_) return true;
    Json request{{"do", "open"},
                 {"operation", workload_.operation},
                 {"workload", to_json(workload_.fields)},
                 {"seed", seed_},
                 {"timing", timing_}};
    Exchange exchange = ask(text_of(request), kOpenPatience * watchdog_seconds());
    if (exchange.died()) {
        *why = exchange.reason == "interrupted"
                   ? exchange.reason
                   : fmt::format("the worker died while it made test data: {}: {}", exchange.reason, exchange.detail);
        return false;
    }
    Json json = parse_json(exchange.answer, "worker");
    JsonReader reader(json, "worker");
    if (!reader.boolean("ok")) {
        *why = reader.text("reason") + ": " + reader.text("detail");
        return false;
    }
    opened_as_ = {};
    opened_as_.memory = reader.text("memory");
    opened_as_.rotated_bytes = reader.number("rotated_bytes", 0, 1e18);
    opened_as_.l2_bytes = reader.number("l2_bytes", 0, 1e18);
    reference_ms_ = reader.number("reference_ms", 0, 1e12);
    opened_ = true;
    return true;
}

OpenedWorkload WorkerClient::open(const Workload& workload, std::uint64_t seed, bool timing) {
    workload_ = workload;
    seed_ = seed;
    timing_ = timing;
    opened_ = false;
    std::string why;
    if (!ready(&why)) {
        OpenedWorkload failed;
        failed.failure = why;
        return failed;
    }
    return opened_as_;
}

CandidateOutcome WorkerClient::measure(const Config& config, int samples) {
    return ask_outcome(text_of(Json{{"do", "measure"}, {"config", to_json(config)}, {"samples", samples}}), config);
}

CandidateOutcome WorkerClient::check(const Config& config) {
    CandidateOutcome outcome = ask_outcome(text_of(Json{{"do", "check"}, {"config", to_json(config)}}), config);
    outcome.latency = {};
    return outcome;
}

CandidateOutcome WorkerClient::ask_outcome(const std::string& request, const Config& config) {
    CandidateOutcome outcome;
    outcome.workload = workload_;
    outcome.config = config;
    std::string why;
    if (!ready(&why)) {
        outcome.reason = why == "interrupted" ? why : "no_worker";
        outcome.detail = why;
        return outcome;
    }
    Exchange exchange = ask(request, patience(0));
    if (exchange.died()) {
        outcome.reason = exchange.reason;
        outcome.detail = exchange.detail;
        return outcome;
    }
    Json json = parse_json(exchange.answer, "worker");
    JsonReader reader(json, "worker");
    if (!reader.boolean("ok")) {
        outcome.reason = reader.text("reason");
        outcome.detail = reader.text("detail");
        return outcome;
    }
    Json record = json.at("outcome");
    JsonReader record_reader(record, "worker");
    return outcome_from_json(record_reader);
}

RoundAnswer WorkerClient::round(const std::vector<Config>& configs, int samples) {
    RoundAnswer answer;
    answer.samples.resize(configs.size());
    std::string why;
    if (!ready(&why)) {
        answer.interrupted = why == "interrupted";
        if (!answer.interrupted) answer.no_worker = why;
        return answer;
    }
    Json list = Json::array();
    for (const Config& config : configs) list.push_back({{"config", to_json(config)}});
    Exchange exchange = ask(text_of(Json{{"do", "round"}, {"configs", list}, {"samples", samples}}), patience(0));
    if (exchange.died()) {
        answer.interrupted = exchange.reason == "interrupted";
        int guilty = exchange.in_flight;
        if (!answer.interrupted && guilty >= 0 && guilty < int(configs.size()))
            answer.failures.push_back({guilty, exchange.reason, exchange.detail});
        else if (!answer.interrupted)
            for (std::size_t i = 0; i < configs.size(); ++i)
                answer.failures.push_back({int(i), exchange.reason, exchange.detail});
        return answer;
    }
    Json json = parse_json(exchange.answer, "worker");
    JsonReader reader(json, "worker");
    if (!reader.boolean("ok")) {
        std::string reason = reader.text("reason"), detail = reader.text("detail");
        std::int64_t last = std::int64_t(configs.size()) - 1;
        std::int64_t from = reader.has("index") ? reader.integer("index", 0, last) : 0;
        std::int64_t to = reader.has("index") ? from : last;
        for (std::int64_t i = from; i <= to; ++i) answer.failures.push_back({int(i), reason, detail});
        return answer;
    }
    for (std::size_t i = 0; i < configs.size(); ++i)
        answer.samples[i] = json.at("samples").at(i).get<std::vector<double>>();
    return answer;
}

void WorkerClient::close() {
    process_.stop();
}

}  // namespace turbotune
