#include "turbotune/base/json.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <unordered_set>

#include "turbotune/base/error.h"

namespace turbotune {

namespace {

// Far beyond any file of ours; keeps what walks a document recursively within its stack.
constexpr std::size_t kDeepest = 128;

// Builds the document while it checks what the library's own builder lets pass: duplicate keys and depth.
class Builder : public nlohmann::json_sax<Json> {
  public:
    Json result;
    std::string error;

    bool null() override { return add(nullptr); }
    bool boolean(bool value) override { return add(value); }
    bool number_integer(number_integer_t value) override { return add(value); }
    bool number_unsigned(number_unsigned_t value) override { return add(value); }
    bool number_float(number_float_t value, const string_t&) override { return add(value); }
    bool string(string_t& value) override { return add(std::move(value)); }
    bool binary(binary_t&) override { return false; }

    bool start_object(std::size_t) override { return open(Json::object()); }
    bool start_array(std::size_t) override { return open(Json::array()); }
    bool end_object() override { return close(); }
    bool end_array() override { return close(); }

    bool key(string_t& name) override {
        if (!open_.back().keys.insert(name).second) {
            error = fmt::format("duplicate key \"{}\"", name);
            return false;
        }
        key_ = std::move(name);
        return true;
    }

    bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& problem) override {
        error = problem.what();
        // The library puts its own error number in front, in brackets.
        const std::size_t text = error.find("] ");
        if (text != std::string::npos && error.front() == '[') error.erase(0, text + 2);
        return false;
    }

  private:
    struct Open {
        Json* value;
        std::unordered_set<std::string> keys;
    };

    Json* place(Json value) {
        if (open_.empty()) {
            result = std::move(value);
            return &result;
        }
        Json& parent = *open_.back().value;
        if (parent.is_array()) {
            parent.push_back(std::move(value));
            return &parent.back();
        }
        // The keys are known to differ, so the search that an insertion would make is spared.
        auto& object = parent.get_ref<Json::object_t&>();
        object.emplace_back(std::move(key_), std::move(value));
        return &object.back().second;
    }

    bool add(Json value) {
        place(std::move(value));
        return true;
    }

    bool open(Json empty) {
        if (open_.size() == kDeepest) {
            error = fmt::format("nested deeper than {} levels", kDeepest);
            return false;
        }
        Json* placed = place(std::move(empty));
        open_.push_back({placed, {}});
        return true;
    }

    bool close() {
        open_.pop_back();
        return true;
    }

    std::vector<Open> open_;
    std::string key_;
};

// A key as a token of a JSON pointer (RFC 6901).
std::string pointer_token(const std::string& key) {
    std::string token = "/";
    for (char c : key) {
        if (c == '~')
            token += "~0";
        else if (c == '/')
            token += "~1";
        else
            token += c;
    }
    return token;
}

// The value as it stands in the file, cut short.
std::string excerpt(const Json& value) {
    constexpr std::size_t kLongest = 60;
    if (value.is_object()) return "an object";
    if (value.is_array()) return "an array";
    std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
    return text;
}

std::string describe_integer(std::int64_t low, std::int64_t high) {
    const bool any_low = low == std::numeric_limits<std::int64_t>::min();
    const bool any_high = high == std::numeric_limits<std::int64_t>::max();
    if (any_low && any_high) return "an integer";
    if (any_high) return fmt::format("an integer of at least {}", low);
    if (any_low) return fmt::format("an integer of at most {}", high);
    return fmt::format("an integer in [{}, {}]", low, high);
}

std::string describe_number(double low, double high) {
    const bool any_low = low <= -std::numeric_limits<double>::max();
    const bool any_high = high >= std::numeric_limits<double>::max();
    if (any_low && any_high) return "a number";
    if (any_high) return fmt::format("a number of at least {}", low);
    if (any_low) return fmt::format("a number of at most {}", high);
    return fmt::format("a number in [{}, {}]", low, high);
}

bool fits_int64(const Json& value) {
    if (!value.is_number_integer()) return false;
    return !value.is_number_unsigned() ||
           value.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
}

}  // namespace

Json parse_json(const std::string& text, const std::string& name_for_errors) {
    // The library takes a zero byte for the end of the text.
    if (text.find('\0') != std::string::npos) throw InvalidArgument(name_for_errors, "holds a zero byte");
    Builder builder;
    if (!Json::sax_parse(text, &builder)) {
        throw InvalidArgument(name_for_errors, builder.error.empty() ? "not valid JSON" : builder.error);
    }
    return std::move(builder.result);
}

JsonReader::JsonReader(const Json& value, std::string file, std::string path)
    : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

bool JsonReader::has(const std::string& key) const {
    return value_->is_object() && value_->contains(key);
}

void JsonReader::fail(const std::string& key, const std::string& why) const {
    const std::string place = key.empty() ? path_ : path_ + pointer_token(key);
    throw InvalidArgument(file_ + ": " + (place.empty() ? "/" : place), why);
}

const Json& JsonReader::need(const std::string& key) {
    if (!value_->is_object()) fail("", "expected an object, got " + excerpt(*value_));
    const auto found = value_->find(key);
    if (found == value_->end()) fail(key, "missing key");
    read_.insert(key);
    return *found;
}

JsonReader JsonReader::object(const std::string& key) {
    const Json& value = need(key);
    if (!value.is_object()) fail(key, "expected an object, got " + excerpt(value));
    return JsonReader(value, file_, path_ + pointer_token(key));
}

std::vector<JsonReader> JsonReader::array(const std::string& key) {
    const Json& value = need(key);
    if (!value.is_array()) fail(key, "expected an array, got " + excerpt(value));
    std::vector<JsonReader> elements;
    elements.reserve(value.size());
    for (const Json& element : value) {
        elements.emplace_back(element, file_, path_ + pointer_token(key) + "/" + std::to_string(elements.size()));
    }
    return elements;
}

std::string JsonReader::text(const std::string& key) {
    const Json& value = need(key);
    if (!value.is_string()) fail(key, "expected a text, got " + excerpt(value));
    return value.get<std::string>();
}

std::int64_t JsonReader::integer(const std::string& key, std::int64_t low, std::int64_t high) {
    const Json& value = need(key);
    if (fits_int64(value)) {
        const std::int64_t number = value.get<std::int64_t>();
        if (number >= low && number <= high) return number;
    }
    fail(key, "expected " + describe_integer(low, high) + ", got " + excerpt(value));
}

double JsonReader::number(const std::string& key, double low, double high) {
    const Json& value = need(key);
    if (value.is_number()) {
        const double number = value.get<double>();
        if (std::isfinite(number) && number >= low && number <= high) return number;
    }
    fail(key, "expected " + describe_number(low, high) + ", got " + excerpt(value));
}

bool JsonReader::boolean(const std::string& key) {
    const Json& value = need(key);
    if (!value.is_boolean()) fail(key, "expected true or false, got " + excerpt(value));
    return value.get<bool>();
}

Fields JsonReader::fields(const std::string& key) {
    const JsonReader inner = object(key);
    Fields fields;
    for (const auto& item : inner.value_->items()) {
        const Json& value = item.value();
        if (value.is_boolean()) {
            fields.set(item.key(), FieldValue(value.get<bool>()));
        } else if (value.is_string()) {
            fields.set(item.key(), FieldValue(value.get<std::string>()));
        } else if (fits_int64(value)) {
            fields.set(item.key(), FieldValue(value.get<std::int64_t>()));
        } else {
            inner.fail(item.key(), "expected a boolean, an integer or a text, got " + excerpt(value));
        }
    }
    return fields;
}

std::vector<std::string> JsonReader::texts(const std::string& key) {
    std::vector<std::string> result;
    for (const JsonReader& element : array(key)) {
        if (!element.value_->is_string()) element.fail("", "expected a text, got " + excerpt(*element.value_));
        result.push_back(element.value_->get<std::string>());
    }
    return result;
}

void JsonReader::finish() const {
    if (!value_->is_object()) fail("", "expected an object, got " + excerpt(*value_));
    for (const auto& item : value_->items()) {
        if (!read_.count(item.key())) fail(item.key(), "unknown key");
    }
}

Json to_json(const Fields& fields) {
    Json object = Json::object();
    for (const auto& [name, value] : fields.entries()) {
        std::visit([&, &key = name](const auto& scalar) { object[key] = scalar; }, value);
    }
    return object;
}

}  // namespace turbotune
