// Checks each parameter's name, type and range, and fills in the defaults.
#include "plugin/host/params.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "foundation/base/home_path.h"
#include "foundation/base/secrets.h"
#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "foundation/formats/json_number.h"

namespace mortise {
namespace {

std::string type_phrase(ParamType type) {
  switch (type) {
    case ParamType::kF64:
      return "a number";
    case ParamType::kI64:
      return "an integer";
    case ParamType::kBool:
      return "true or false";
    case ParamType::kText:
      return "text";
  }
  return "unknown";
}

std::string spell(const ParamInfo& param, double value) {
  return param.type == ParamType::kI64 ? std::to_string(static_cast<int64_t>(value)) : format_f64(value);
}

// One end of a range. An exclusive one is declared as the next number behind it, such as 5e-324 for "above 0"; its
// neighbour then takes far fewer digits, and is what people read.
struct End {
  std::string text;
  bool exclusive = false;
};
End end_of_range(const ParamInfo& param, double value, double outwards) {
  if (!std::isfinite(value)) return {};
  End end{spell(param, value)};
  if (param.type != ParamType::kF64) return end;
  const std::string neighbour = spell(param, std::nextafter(value, outwards));
  if (neighbour.size() + 4 < end.text.size()) end = {neighbour, true};
  return end;
}

std::string choices_phrase(const std::vector<std::string>& choices) {
  std::vector<std::string> names;
  names.reserve(choices.size());
  for (const std::string& choice : choices) names.push_back(quote(choice));
  return join(names, ", ");
}

// A number whose default is "none" may be left unset: JSON null, which the plugin reads as NaN.
bool may_be_unset(const ParamInfo& param) {
  return param.type == ParamType::kF64 && param.default_text && *param.default_text == "none";
}

// The value as the declared type (an integer is a fine f64), or nothing.
std::optional<Json> converted(const ParamInfo& param, const Json& value) {
  switch (param.type) {
    case ParamType::kF64:
      if (value.is_null() && may_be_unset(param)) return value;
      if (value.is_number() && !std::isnan(value.get<double>())) return Json(value.get<double>());
      if (value == "inf" || value == "-inf")
        return Json(value == "inf" ? HUGE_VAL : -HUGE_VAL);  // JSON has no such number
      return std::nullopt;
    case ParamType::kI64:
      if (is_i64(value)) return Json(value.get<int64_t>());
      return std::nullopt;
    case ParamType::kBool:
      return value.is_boolean() ? std::optional<Json>(value) : std::nullopt;
    case ParamType::kText:
      return value.is_string() ? std::optional<Json>(value) : std::nullopt;
  }
  return std::nullopt;
}

// A secret's value is in no message; one that is too short for redacted() to find could show up anywhere.
std::optional<ParamError> check_secret(const ParamInfo& param, const Json& value) {
  constexpr std::string_view kEnvNext = "give the name of an environment variable that holds it: env:NAME";
  if (!value.is_string()) return ParamError{param.name, quote(param.name) + " must be text", std::string(kEnvNext)};
  const std::string text = value.get<std::string>();
  if (text == "$" + param.name) {
    return ParamError{param.name, quote(param.name) + " is a secret that a run removed when it wrote its config",
                      std::string(kEnvNext)};
  }
  if (text.empty() || text.size() >= kShortestSecret || !secret_reference(text).empty()) return std::nullopt;
  return ParamError{param.name,
                    fmt::format("{} is a secret of fewer than {} bytes, which logs could not hide", quote(param.name),
                                kShortestSecret),
                    std::string(kEnvNext)};
}

std::optional<ParamError> check_value(const ParamInfo& param, const Json& value) {
  if (param.role == ParamRole::kSecret) return check_secret(param, value);
  const auto typed = converted(param, value);
  if (!typed) {
    return ParamError{
        param.name,
        fmt::format("{} must be {}, is {}", quote(param.name), type_phrase(param.type), quote(dump_json(value))), ""};
  }
  if (typed->is_null()) return std::nullopt;
  if (param.range && (param.type == ParamType::kF64 || param.type == ParamType::kI64)) {
    const double number = typed->get<double>();
    if (number < param.range->min || number > param.range->max) {
      return ParamError{param.name, fmt::format("{} is {}, out of its range", quote(param.name), dump_json(*typed)),
                        "give a number " + range_text(param)};
    }
  }
  if (!param.choices.empty() && param.type == ParamType::kText) {
    const std::string text = typed->get<std::string>();
    if (std::find(param.choices.begin(), param.choices.end(), text) == param.choices.end()) {
      const std::string hint = did_you_mean(text, param.choices);
      return ParamError{
          param.name,
          fmt::format("{} is {}, not one of {}", quote(param.name), quote(text), choices_phrase(param.choices)), hint};
    }
  }
  return std::nullopt;
}

std::vector<std::string> param_names(const PluginInfo& info) {
  std::vector<std::string> names;
  for (const ParamInfo& param : info.params) names.push_back(param.name);
  return names;
}

ParamError unknown(const PluginInfo& info, const std::string& key) {
  const auto names = param_names(info);
  std::string next = did_you_mean(key, names);
  if (next.empty()) next = names.empty() ? "it has no parameters" : "it has: " + join(names, ", ");
  return {key, fmt::format("{} has no parameter {}", quote(info.name), quote(key)), std::move(next)};
}

}  // namespace

void hide_secrets(const PluginInfo& info, const Json& params) {
  for (const ParamInfo& param : info.params) {
    const Json* const value = param.role == ParamRole::kSecret ? json_find(params, param.name) : nullptr;
    if (value == nullptr || !value->is_string()) continue;
    const std::string text = value->get<std::string>();
    if (!secret_reference(text).empty()) continue;
    add_secret_setting(param.name, text);
    const std::string spelled = dump_json(*value);  // with escapes, as TOML and JSON have it
    add_secret_setting(param.name, std::string_view(spelled).substr(1, spelled.size() - 2));
  }
}

std::string range_text(const ParamInfo& param) {
  if (!param.choices.empty()) return join(param.choices, " | ");
  if (!param.range) return "";
  const ParamRange& range = *param.range;
  const End low = end_of_range(param, range.min, -HUGE_VAL), high = end_of_range(param, range.max, HUGE_VAL);
  const bool has_low = std::isfinite(range.min), has_high = std::isfinite(range.max);
  if (has_low && has_high && !low.exclusive && !high.exclusive)
    return fmt::format("from {} to {}", low.text, high.text);
  std::vector<std::string> parts;
  if (has_low) parts.push_back((low.exclusive ? "above " : "at least ") + low.text);
  if (has_high) parts.push_back((high.exclusive ? "below " : "at most ") + high.text);
  return join(parts, " and ");
}

Result<Json> parse_param_text(const ParamInfo& param, std::string_view text) {
  Json value;
  if (may_be_unset(param) && (text == "none" || text == "null")) return value;
  switch (param.type) {
    case ParamType::kF64:
      if (text == "inf" || text == "-inf")
        value = text == "inf" ? HUGE_VAL : -HUGE_VAL;
      else if (const auto number = parse_f64(text))
        value = *number;
      break;
    case ParamType::kI64:
      if (const auto number = parse_i64(text)) value = *number;
      break;
    case ParamType::kBool:
      if (text == "true" || text == "false") value = text == "true";
      break;
    case ParamType::kText:
      value = std::string(text);
      break;
  }
  if (value.is_null()) {
    return Error{ErrorKind::kConfig,
                 fmt::format("{} must be {}, is {}", quote(param.name), type_phrase(param.type), quote(text)), "",
                 "give such a value, or leave it out"};
  }
  if (auto fault = check_value(param, value)) return Error{ErrorKind::kConfig, fault->what, "", fault->next};
  return value;
}

Result<Json> default_value(const ParamInfo& param) {
  if (!param.default_text) return Error{ErrorKind::kInternal, quote(param.name) + " has no default", "", ""};
  return parse_param_text(param, *param.default_text);
}

std::vector<ParamError> check_params(const PluginInfo& info, const Json& params) {
  std::vector<ParamError> faults;
  if (!params.is_object() && !params.is_null()) {
    faults.push_back({"", fmt::format("the parameters of {} must be a table", quote(info.name)), ""});
    return faults;
  }
  for (const auto& item : params.items()) {
    const ParamInfo* param = info.find_param(item.key());
    if (param == nullptr) {
      faults.push_back(unknown(info, item.key()));
    } else if (auto fault = check_value(*param, item.value())) {
      faults.push_back(*std::move(fault));
    }
  }
  for (const ParamInfo& param : info.params) {
    if (!param.default_text && json_find(params, param.name) == nullptr) {
      const std::string meaning = param.doc.empty() ? "" : fmt::format(" ({})", param.doc);
      faults.push_back({param.name,
                        fmt::format("{} needs the parameter {}{}", quote(info.name), quote(param.name), meaning),
                        "give " + type_phrase(param.type)});
    }
  }
  return faults;
}

Result<Json> validate_params(const PluginInfo& info, const Json& params, std::string_view where_prefix) {
  const auto faults = check_params(info, params);
  if (!faults.empty()) {
    const ParamError& first = faults.front();
    std::string where(where_prefix);
    if (!first.key.empty()) where += (where.empty() ? "" : ".") + first.key;
    Error error{ErrorKind::kConfig, first.what, std::move(where), first.next};
    for (size_t i = 1; i < faults.size(); ++i) {
      error.next += fmt::format("\n{}{}: {}", where_prefix.empty() ? std::string() : std::string(where_prefix) + ".",
                                faults[i].key, faults[i].what);
      if (!faults[i].next.empty()) error.next += "; " + faults[i].next;
    }
    return error;
  }
  Json full = Json::object();
  for (const ParamInfo& param : info.params) {
    const Json* given = json_find(params, param.name);
    Json& value = full[param.name];
    value = given != nullptr ? *converted(param, *given) : TRY(default_value(param));
    if (names_place(param.role) && value.is_string()) value = expand_home(value.get<std::string>());
  }
  return full;
}

}  // namespace mortise
