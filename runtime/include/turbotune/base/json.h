// Strict reading of JSON: every access checks the type, every object knows which keys were read,
// and every error carries the file and the JSON path ("profile.json: /entries/3/latency/median").
// Include only from .cpp files and tests: it brings in the JSON library.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "turbotune/base/fields.h"

namespace turbotune {

using Json = nlohmann::ordered_json;

// Parses, refusing duplicate keys, non-finite numbers and trailing text. Throws InvalidArgument.
Json parse_json(const std::string& text, const std::string& name_for_errors);

class JsonReader {
  public:
    JsonReader(const Json& value, std::string file, std::string path = "");

    bool has(const std::string& key) const;
    JsonReader object(const std::string& key);             // throws when missing or not an object
    std::vector<JsonReader> array(const std::string& key); // one reader per element
    std::string text(const std::string& key);
    std::int64_t integer(const std::string& key, std::int64_t low, std::int64_t high);
    double number(const std::string& key, double low, double high);
    bool boolean(const std::string& key);
    Fields fields(const std::string& key);                 // flat object of scalars
    std::vector<std::string> texts(const std::string& key);

    const Json& value() const { return *value_; }
    // Throws InvalidArgument naming the first key that nobody read.
    void finish() const;
    [[noreturn]] void fail(const std::string& key, const std::string& why) const;

  private:
    const Json& need(const std::string& key);
    const Json* value_;
    std::string file_, path_;
    std::set<std::string> read_;
};

Json to_json(const Fields& fields);

}  // namespace turbotune
