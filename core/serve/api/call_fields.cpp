// See call_fields.h.
#include "serve/api/call_fields.h"

#include <fmt/core.h>

#include "foundation/base/text.h"
#include "foundation/formats/json_number.h"

namespace mortise {
namespace {

bool asks_for_nothing(const Json& value) {
  if (value.is_null() || value == false) return true;
  if (value.is_number()) return value.get<double>() == 0.0;
  return (value.is_string() || value.is_array() || value.is_object()) && value.empty();
}

}  // namespace

Error bad_field(std::string_view name, const std::string& what, const std::string& next) {
  return {ErrorKind::kData, fmt::format("{} {}", quote(name), what), "", next};
}

const Json* CallFields::take(std::string_view name) {
  read_.emplace(name);
  const Json* const value = json_find(*object_, name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

Result<int64_t> CallFields::integer(std::string_view name, int64_t fallback, int64_t least, int64_t most) {
  const Json* const value = take(name);
  if (value == nullptr) return fallback;
  const bool fits = value->is_number_integer() && (!value->is_number_unsigned() || value->get<uint64_t>() <= INT64_MAX);
  if (!fits || value->get<int64_t>() < least || value->get<int64_t>() > most)
    return bad_field(name, fmt::format("must be an integer from {} to {}", least, most));
  return value->get<int64_t>();
}

Result<double> CallFields::number(std::string_view name, double fallback, double least, double most) {
  const Json* const value = take(name);
  if (value == nullptr) return fallback;
  if (!value->is_number() || !(value->get<double>() >= least && value->get<double>() <= most))
    return bad_field(name, fmt::format("must be a number from {} to {}", least, most));
  return value->get<double>();
}

Result<bool> CallFields::boolean(std::string_view name, bool fallback) {
  const Json* const value = take(name);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return bad_field(name, "must be true or false");
  return value->get<bool>();
}

Result<std::optional<std::string>> CallFields::text(std::string_view name) {
  const Json* const value = take(name);
  if (value == nullptr) return std::optional<std::string>();
  if (!value->is_string()) return bad_field(name, "must be a text");
  return std::optional<std::string>(value->get<std::string>());
}

Result<std::vector<std::string>> CallFields::texts(std::string_view name) {
  std::vector<std::string> out;
  const Json* const value = take(name);
  if (value == nullptr) return out;
  if (value->is_string()) {
    out.push_back(value->get<std::string>());
    return out;
  }
  if (!value->is_array()) return bad_field(name, "must be a text or a list of texts");
  for (const Json& one : *value) {
    if (!one.is_string()) return bad_field(name, "must be a text or a list of texts");
    out.push_back(one.get<std::string>());
  }
  return out;
}

Result<std::vector<int64_t>> read_token_ids(const Json& list, std::string_view field) {
  std::vector<int64_t> out;
  if (!list.is_array()) return bad_field(field, "must be a list of token ids");
  out.reserve(list.size());
  for (const Json& id : list) {
    if (!is_i64(id)) return bad_field(field, "must be a list of token ids");
    out.push_back(id.get<int64_t>());
  }
  return out;
}

Result<std::vector<int64_t>> CallFields::ids(std::string_view name) {
  const Json* const value = take(name);
  if (value == nullptr) return std::vector<int64_t>();
  return read_token_ids(*value, name);
}

void CallFields::ignore(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) read_.emplace(name);
}

Result<> CallFields::refuse(std::string_view name, const std::string& why) {
  const Json* const value = take(name);
  if (value == nullptr || asks_for_nothing(*value)) return {};
  return bad_field(name, "is not supported: " + why, "leave it out");
}

Result<> CallFields::check_all_read() const {
  for (const auto& [name, value] : object_->items()) {
    if (!read_.contains(name) && !value.is_null()) return bad_field(name, "is unknown", "leave it out");
  }
  return {};
}

}  // namespace mortise
