// The JSON Schema of a config file, made from the list of keys.
#include <algorithm>
#include <cmath>

#include "config/explain.h"
#include "config/fields.h"
#include "config/presets.h"

namespace mortise {
namespace {

Json number_limits(const Field& field, Json schema, bool integer) {
  const auto put = [&](const char* name, double value) {
    if (!std::isfinite(value)) return;
    schema[name] = integer ? Json(static_cast<int64_t>(value)) : Json(value);
  };
  put(field.min_is_open ? "exclusiveMinimum" : "minimum", field.min);
  put(field.max_is_open ? "exclusiveMaximum" : "maximum", field.max);
  return schema;
}

Json text_schema(const Field& field) {
  Json schema = {{"type", "string"}};
  if (!field.choices.empty()) schema["enum"] = field.choices;
  if (field.takes_number) schema["type"] = Json::array({"string", "number"});
  return schema;
}

Json or_null(Json schema) { return {{"anyOf", Json::array({std::move(schema), Json{{"const", "null"}}})}}; }

struct SchemaOfType {
  const Field& field;
  Json operator()(const bool*) const { return {{"type", "boolean"}}; }
  Json operator()(const int64_t*) const { return number_limits(field, {{"type", "integer"}}, true); }
  Json operator()(const double*) const { return number_limits(field, {{"type", "number"}}, false); }
  Json operator()(const std::string*) const { return text_schema(field); }
  Json operator()(const std::chrono::milliseconds*) const {
    return {{"type", "string"}, {"pattern", "^([0-9.]+h)?([0-9.]+m)?([0-9.]+s)?([0-9.]+ms)?$"}, {"minLength", 1}};
  }
  Json operator()(const std::optional<bool>*) const { return or_null({{"type", "boolean"}}); }
  Json operator()(const std::optional<int64_t>*) const {
    return or_null(number_limits(field, {{"type", "integer"}}, true));
  }
  Json operator()(const std::optional<double>*) const {
    return or_null(number_limits(field, {{"type", "number"}}, false));
  }
  Json operator()(const std::optional<std::string>*) const { return or_null(text_schema(field)); }
  Json operator()(const std::vector<std::string>*) const {
    return {{"anyOf", Json::array({text_schema(field), Json{{"type", "array"}, {"items", text_schema(field)}}})}};
  }
  Json operator()(const std::vector<int64_t>*) const {
    return {{"type", "array"}, {"items", number_limits(field, {{"type", "integer"}}, true)}};
  }
  Json operator()(const std::vector<double>*) const {
    Json schema = {{"type", "array"}, {"items", number_limits(field, {{"type", "number"}}, false)}};
    if (field.num_items != 0) schema["minItems"] = schema["maxItems"] = field.num_items;
    return schema;
  }
  Json operator()(const Json*) const { return {{"type", "object"}}; }
  Json operator()(const ChoiceRef& choice) const {
    if (choice.shape == ChoiceRef::Shape::kList) return (*this)(static_cast<const std::vector<std::string>*>(nullptr));
    return choice.shape == ChoiceRef::Shape::kNullable ? or_null(text_schema(field)) : text_schema(field);
  }
};

Json field_schema(const Field& field) {
  RunConfig run;
  RewardConfig reward;
  const FieldRef ref = field.in_run ? field.in_run(run) : field.in_reward(reward);
  Json schema = std::visit(SchemaOfType{field}, ref);
  schema["description"] = field.doc;
  const Json value = field_value(ref);
  if (!value.is_null() && field.key != "reward.*.use" && field.key != "reward.*.name") schema["default"] = value;
  return schema;
}

Json closed_table(const std::string& doc) {
  Json table = {{"type", "object"}};
  if (!doc.empty()) table["description"] = doc;
  table["properties"] = Json::object();
  table["additionalProperties"] = false;
  return table;
}

// The schema of the table `name` below `root`, made on the way.
Json& table_at(Json& root, const std::string& name) {
  Json* table = &root;
  for (size_t at = 0; at < name.size();) {
    const size_t end = std::min(name.find('.', at), name.size());
    Json& properties = (*table)["properties"];
    const std::string part = name.substr(at, end - at);
    if (!properties.contains(part)) {
      const TableInfo* info = find_table(name.substr(0, end));
      properties[part] = closed_table(info != nullptr ? info->doc : "");
    }
    table = &properties[part];
    at = end + 1;
  }
  return *table;
}

}  // namespace

Json config_schema() {
  Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
               {"title", "Mortise run configuration"},
               {"type", "object"},
               {"properties", Json::object()},
               {"additionalProperties", false}};
  root["properties"]["base"] = {{"type", "string"},
                                {"description", "Another TOML file, relative to this one, that this one builds on."}};
  Json reward = closed_table(find_table("reward.*")->doc);
  for (const Field& field : all_fields()) {
    const size_t dot = field.key.rfind('.');
    const std::string leaf = field.key.substr(dot + 1);  // npos + 1 = 0: the whole key
    Json& table = field.in_reward ? reward : table_at(root, dot == std::string::npos ? "" : field.key.substr(0, dot));
    if (!field.inline_params) {
      table["properties"][leaf] = field_schema(field);
    } else if (field.key == "rollout.params") {
      table["additionalProperties"] = {{"type", "object"}, {"description", field.doc}};
    } else {
      table["additionalProperties"] = true;
    }
  }
  reward["required"] = Json::array({"use"});
  root["properties"]["reward"] = {{"type", "array"}, {"items", std::move(reward)}};
  Json names = Json::array();
  for (const Preset& preset : all_presets()) names.push_back(preset.name);
  names.push_back("null");
  root["properties"]["preset"] = {{"enum", names}, {"description", find_field("preset")->doc}};
  Json alias = closed_table("verl's prefix: the same tables as at the top.");
  for (const char* name : {"model", "actor", "ref", "rollout"}) {
    alias["properties"][name] = {{"$ref", "#/properties/" + std::string(name)}};
  }
  root["properties"]["actor_rollout_ref"] = std::move(alias);
  return root;
}

}  // namespace mortise
