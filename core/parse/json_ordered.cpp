// See json.h.
#include "parse/json.h"
#include "parse/json_reader.h"

template class nlohmann::basic_json<nlohmann::ordered_map>;

namespace mortise::parse {

Outcome<nlohmann::ordered_json, JsonFault> parse_ordered_json(std::string_view text, const JsonLimits& limits) {
  return read_value<nlohmann::ordered_json>(text, limits);
}

Outcome<nlohmann::ordered_json, JsonFault> parse_cbor(std::string_view bytes, const JsonLimits& limits) {
  return read_value<nlohmann::ordered_json>(bytes, limits, nlohmann::json::input_format_t::cbor);
}

}  // namespace mortise::parse
