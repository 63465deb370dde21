// See component.h.
#include "text/tokenizer/component.h"

#include <fmt/core.h>

#include "text/tokenizer/bounds.h"

namespace mortise {

Result<std::string> component_type(const Json& spec, const ComponentPlace& place) {
  const Json* type = json_find(spec, "type");
  if (type == nullptr || !type->is_string()) return place.fail("an object with a text 'type' is expected");
  return type->get<std::string>();
}

Result<std::string> component_string(const Json& spec, std::string_view key, const ComponentPlace& place) {
  const Json* value = json_find(spec, key);
  if (value == nullptr || !value->is_string()) return place.fail(fmt::format("'{}' has to be text", key));
  return value->get<std::string>();
}

Result<bool> component_bool(const Json& spec, std::string_view key, bool fallback, const ComponentPlace& place) {
  const Json* value = json_find(spec, key);
  if (value == nullptr || value->is_null()) return fallback;
  if (!value->is_boolean()) return place.fail(fmt::format("'{}' has to be true or false", key));
  return value->get<bool>();
}

Result<int64_t> component_int(const Json& spec, std::string_view key, int64_t fallback, const ComponentPlace& place) {
  const Json* value = json_find(spec, key);
  if (value == nullptr || value->is_null()) return fallback;
  if (!value->is_number_integer()) return place.fail(fmt::format("'{}' has to be a whole number", key));
  return value->get<int64_t>();
}

Result<Regex> component_pattern(const Json& spec, const ComponentPlace& place) {
  const Json* pattern = json_find(spec, "pattern");
  if (pattern != nullptr) {
    if (const Json* text = json_find(*pattern, "String"); text != nullptr && text->is_string()) {
      return Regex::literal(text->get_ref<const std::string&>(), place.file);
    }
    if (const Json* text = json_find(*pattern, "Regex"); text != nullptr && text->is_string()) {
      return Regex::compile(text->get_ref<const std::string&>(), place.file);
    }
  }
  return place.fail("'pattern' has to be {\"String\": ...} or {\"Regex\": ...}");
}

static size_t num_stages(const Json& spec, std::string_view list_key) {
  const Json* list = json_find(spec, list_key);
  if (list == nullptr || !list->is_array()) return 1;
  size_t count = 1;  // an empty Sequence takes time as well
  for (const Json& part : *list) count += num_stages(part, list_key);
  return count;
}

Result<> check_num_stages(const Json& spec, std::string_view list_key, const ComponentPlace& place) {
  const size_t count = num_stages(spec, list_key);
  if (count <= kMaxStages) return {};
  return place.fail(fmt::format("a chain of {} stages, at most {} are allowed", count, kMaxStages));
}

Result<const Json*> component_list(const Json& spec, std::string_view key, const ComponentPlace& place) {
  const Json* value = json_find(spec, key);
  if (value == nullptr || !value->is_array()) return place.fail(fmt::format("'{}' has to be a list", key));
  return value;
}

}  // namespace mortise
