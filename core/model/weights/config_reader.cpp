// See config_reader.h.
#include "model/weights/config_reader.h"

#include <fmt/core.h>
#include <cmath>

#include "foundation/base/text.h"

namespace mortise {

// A value in an error: as JSON, and no longer than people read.
static std::string shown(const Json& value) {
  constexpr size_t kMaxBytes = 200;
  const std::string text = dump_json(value);
  return text.size() <= kMaxBytes ? text : quote(text, kMaxBytes);
}

const Json* ConfigReader::find(std::string_view key) const {
  const Json* value = json_find(object_, key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

bool ConfigReader::is_null(std::string_view key) const {
  const Json* value = json_find(object_, key);
  return value != nullptr && value->is_null();
}

Error ConfigReader::wrong(std::string_view key, std::string_view must_be) const {
  const Json* value = find(key);
  const std::string name = fmt::format("key '{}{}'", prefix_, key);
  if (value == nullptr)
    return {ErrorKind::kData, fmt::format("{} is missing; it must be {}", name, must_be), where_, {}};
  return {ErrorKind::kData, fmt::format("{} must be {}, is {}", name, must_be, shown(*value)), where_, {}};
}

Error ConfigReader::unsupported(std::string_view key, std::string_view supported) const {
  const Json* value = find(key);
  return {ErrorKind::kData,
          fmt::format("key '{}{}' = {} would change the numbers and is not supported", prefix_, key,
                      value == nullptr ? "(absent)" : shown(*value)),
          where_, "supported: " + std::string(supported)};
}

Result<int64_t> ConfigReader::positive(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr || !value->is_number_integer() || value->get<int64_t>() <= 0) {
    return wrong(key, "a whole number above 0");
  }
  return value->get<int64_t>();
}

Result<int64_t> ConfigReader::whole(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr || !value->is_number_integer() || value->get<int64_t>() < 0) {
    return wrong(key, "a whole number, 0 or more");
  }
  return value->get<int64_t>();
}

Result<int64_t> ConfigReader::positive_or(std::string_view key, int64_t fallback) const {
  return has(key) ? positive(key) : Result<int64_t>(fallback);
}

Result<double> ConfigReader::number_or(std::string_view key, double fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_number() || !std::isfinite(value->get<double>())) return wrong(key, "a number");
  return value->get<double>();
}

Result<bool> ConfigReader::flag_or(std::string_view key, bool fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return wrong(key, "true or false");
  return value->get<bool>();
}

Result<std::string> ConfigReader::text_or(std::string_view key, std::string_view fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) return wrong(key, "a text");
  return value->get<std::string>();
}

Result<std::optional<int64_t>> ConfigReader::token_id(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::optional<int64_t>();
  if (!value->is_number_integer()) return wrong(key, "a token id");
  return std::optional<int64_t>(value->get<int64_t>());
}

Result<std::vector<int64_t>> ConfigReader::token_ids(std::string_view key) const {
  const Json* value = find(key);
  std::vector<int64_t> ids;
  if (value == nullptr) return ids;
  if (!value->is_array()) {
    if (!value->is_number_integer()) return wrong(key, "a token id or a list of them");
    ids.push_back(value->get<int64_t>());
    return ids;
  }
  for (const Json& item : *value) {
    if (!item.is_number_integer()) return wrong(key, "a token id or a list of them");
    ids.push_back(item.get<int64_t>());
  }
  return ids;
}

}  // namespace mortise
