// See json.h.
#include "foundation/formats/json.h"

#include <fmt/core.h>
#include <utility>

#include "foundation/base/text.h"
#include "foundation/formats/json_number.h"

namespace mortise {
namespace {

Error type_error(std::string_view key, std::string_view wanted, const Json* found, std::string_view where) {
  const std::string what = found == nullptr
                               ? fmt::format("key {} is missing", quote(key))
                               : fmt::format("key {} must be {}, is {}", quote(key), wanted, found->type_name());
  return {ErrorKind::kData, what, std::string(where), ""};
}

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view where, const JsonOptions& options) {
  auto parsed = parse::parse_ordered_json(text, options.limits);
  if (parsed) return *std::move(parsed);
  const parse::JsonFault& fault = parsed.fault();
  if (options.error_offset != nullptr) *options.error_offset = fault.offset;
  return Error{options.error_kind, fault.what,
               fmt::format("{}:{}:{}", where, fault.line + options.first_line - 1, fault.column),
               "correct the JSON there"};
}

Result<Json> read_json_file(Env& env, const Path& path, const JsonOptions& options) {
  const std::string text = TRY(env.read_file(path, limits::kMaxTextFileBytes));
  return parse_json(text, path.string(), options);
}

std::string dump_json(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

const Json* json_find(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  for (const auto& member : object.get_ref<const Json::object_t&>()) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

Result<std::string> json_string(const Json& object, std::string_view key, std::string_view where) {
  const Json* value = json_find(object, key);
  if (value == nullptr || !value->is_string()) return type_error(key, "a string", value, where);
  return value->get_ref<const std::string&>();
}

Result<int64_t> json_int(const Json& object, std::string_view key, std::string_view where) {
  const Json* value = json_find(object, key);
  if (value == nullptr || !is_i64(*value)) return type_error(key, "an integer of 64 bits", value, where);
  return value->get<int64_t>();
}

Result<double> json_double(const Json& object, std::string_view key, std::string_view where) {
  const Json* value = json_find(object, key);
  if (value == nullptr || !value->is_number()) return type_error(key, "a number", value, where);
  return value->get<double>();
}

Result<bool> json_bool(const Json& object, std::string_view key, std::string_view where) {
  const Json* value = json_find(object, key);
  if (value == nullptr || !value->is_boolean()) return type_error(key, "true or false", value, where);
  return value->get<bool>();
}

}  // namespace mortise
