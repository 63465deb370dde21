// See json.h. This file has what the packs need. json_ordered.cpp is separate, so that packs do not contain it.
#include "parse/json.h"

#include "parse/json_reader.h"

namespace mortise::parse {
namespace {

// Follows only the structure.
class JsonWalk : public JsonEvents {
 public:
  using JsonEvents::JsonEvents;
  bool null() { return count(); }
  bool boolean(bool) { return count(); }
  bool number_integer(number_integer_t) { return count(); }
  bool number_unsigned(number_unsigned_t) { return count(); }
  bool number_float(number_float_t, const string_t& text) { return check_float(text) && count(); }
  bool string(string_t& text) { return count_text(text); }
  bool key(string_t& name) { return count_key(name); }
  bool start_object(std::size_t) { return enter(/*is_object=*/true); }
  bool start_array(std::size_t) { return enter(/*is_object=*/false); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

 private:
  bool close() {
    leave();
    return true;
  }
};

}  // namespace

std::string JsonFault::to_string() const {
  return "line " + std::to_string(line) + ", column " + std::to_string(column) + ": " + what;
}

Outcome<nlohmann::json, JsonFault> parse_json(std::string_view text, const JsonLimits& limits) {
  return read_value<nlohmann::json>(text, limits);
}

std::optional<JsonFault> check_json(std::string_view text, const JsonLimits& limits) {
  JsonWalk walk(limits);
  return run_parser<nlohmann::json>(text, limits, walk);
}

}  // namespace mortise::parse
