// Resolves each setting of a loss: the config's value, the paper's value, or the default.
#include "learn/objective/loss_settings.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "config/fields.h"
#include "experience/engine_params.h"
#include "foundation/base/choice.h"
#include "foundation/base/text.h"
#include "plugin/host/kinds/policy_loss.h"
#include "plugin/host/params.h"
#include "plugin/host/registry.h"

namespace mortise {

namespace {

constexpr std::string_view kPublished = "published_";
constexpr std::string_view kUnset = "none";  // the default of a number that falls back on another

std::optional<std::string> default_of(const PluginInfo& loss, const std::string& name) {
  const ParamInfo* const param = loss.find_param(name);
  return param == nullptr ? std::nullopt : param->default_text;
}

// "clip_ratio" of clip_ratio_low and clip_ratio_high; empty for other names.
std::string both_sides_of(const std::string& name) {
  for (const std::string_view side : {"_low", "_high"}) {
    if (name.ends_with(side)) return name.substr(0, name.size() - side.size());
  }
  return "";
}

bool is_given(const Json& params, const std::string& name) {
  const std::string both = both_sides_of(name);
  return params.contains(name) || (!both.empty() && params.contains(both));
}

// The names X that have a published_X, in the order of the table.
std::vector<std::string> published_names(const PluginInfo& loss) {
  std::vector<std::string> names;
  for (const ParamInfo& param : loss.params) {
    if (!param.name.starts_with(kPublished)) continue;
    std::string name = param.name.substr(kPublished.size());
    if (loss.find_param(name) != nullptr) names.push_back(std::move(name));
  }
  return names;
}

// What the config sets.
Json given_params(const PluginInfo& loss, const RunConfig& config) {
  return offer_params(loss, config.actor.policy_loss.params, offered_params(config, "policy_loss"));
}

// As people write it: 0.0003, and texts without quotes.
std::string value_text(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

// The number of a default ("3e-4") in the form of value_text.
std::string shown_default(const std::string& text) {
  const std::optional<double> number = parse_f64(text);
  return number ? value_text(Json(*number)) : text;
}

// The loss's own value of a parameter; empty if it has none.
std::string own_value(const PluginInfo& loss, const std::string& name) {
  for (const std::string& holder : {std::string(kPublished) + name, name, both_sides_of(name)}) {
    const std::optional<std::string> text = holder.empty() ? std::nullopt : default_of(loss, holder);
    if (text && *text != kUnset) return shown_default(*text);
  }
  return "";
}

// The place of the key that sets the parameter; empty if none does.
std::string place_of(const LoadedConfig& loaded, const std::string& name) {
  for (const std::string& leaf : {name, std::string(kPublished) + name, both_sides_of(name)}) {
    if (leaf.empty()) continue;
    for (const std::string table : {"actor.policy_loss.", "actor."}) {
      if (loaded.is_set(table + leaf)) return loaded.where(table + leaf);
    }
  }
  return "";
}

LossSetting aggregation_setting(const PluginInfo& loss, const LoadedConfig& loaded) {
  const ActorConfig& actor = loaded.config.actor;
  LossSetting setting{"loss_agg_mode", std::string(choice_name(actor.loss_agg_mode)), default_loss_agg_mode(loss), ""};
  if (!actor.loss_agg_mode.is_auto()) {
    setting.where = loaded.where("actor.loss_agg_mode");
  } else if (const Json* given = json_find(actor.policy_loss.params, "loss_agg_mode")) {
    setting.value = value_text(*given);
    setting.where = loaded.where("actor.policy_loss.loss_agg_mode");
  } else {
    setting.value = setting.own;
  }
  return setting;
}

}  // namespace

Json policy_loss_params(const PluginInfo& loss, const RunConfig& config) {
  Json params = given_params(loss, config);
  for (const std::string& name : published_names(loss)) {
    if (is_given(params, name)) continue;
    const std::string holder = std::string(kPublished) + name;
    const ParamInfo* const param = loss.find_param(holder);
    if (const Json* given = json_find(params, holder)) {
      params[name] = *given;
    } else if (param->default_text) {
      Result<Json> value = default_value(*param);
      if (value && !value->is_null()) params[name] = *std::move(value);
    }
  }
  return params;
}

std::vector<LossSetting> loss_settings(const PluginInfo& loss, const LoadedConfig& loaded) {
  const Json params = policy_loss_params(loss, loaded.config);
  std::vector<std::string> names = published_names(loss);
  // A preset or a file for another loss may have set the range of the ratio.
  for (const ParamInfo& param : loss.params) {
    const Json* given = json_find(params, param.name);
    const bool is_range = param.name.starts_with("clip_ratio") && given != nullptr && !given->is_null();
    const bool departs = is_range && value_text(*given) != own_value(loss, param.name);
    if (departs && std::ranges::find(names, param.name) == names.end()) names.push_back(param.name);
  }
  std::vector<LossSetting> settings;
  for (const std::string& name : names) {
    const Json* value = json_find(params, name);
    if (value == nullptr) value = json_find(params, both_sides_of(name));
    if (value == nullptr) continue;
    settings.push_back({name, value_text(*value), own_value(loss, name), place_of(loaded, name)});
  }
  settings.push_back(aggregation_setting(loss, loaded));
  return settings;
}

std::string describe_loss(const PluginInfo& loss, const LoadedConfig& loaded) {
  std::vector<std::string> parts;
  for (const LossSetting& setting : loss_settings(loss, loaded)) {
    std::string part = fmt::format("{} {}", setting.name, setting.value);
    if (setting.value != setting.own) part += fmt::format(" ({}; its own: {})", setting.where, setting.own);
    parts.push_back(std::move(part));
  }
  return fmt::format("policy loss {}: {}", loss.name, join(parts, ", "));
}

std::map<std::string, std::string> loss_remarks(const PluginInfo& loss, const LoadedConfig& loaded) {
  const ActorConfig& actor = loaded.config.actor;
  const Json given = given_params(loss, loaded.config);
  std::map<std::string, std::string> remarks;
  for (const auto& [leaf, value] : offered_params(loaded.config, "policy_loss")) {
    const std::string name(leaf);
    const bool has_sides = default_of(loss, fmt::format("{}{}_low", kPublished, name)).has_value();
    const bool is_open = loss.find_param(name) != nullptr && !is_given(given, name) && !has_sides;
    if (const std::string own = own_value(loss, name); is_open && !own.empty())
      remarks["actor." + name] = fmt::format("{}: {}", loss.name, own);
  }
  const LossSetting aggregation = aggregation_setting(loss, loaded);
  if (actor.loss_agg_mode.is_auto())
    remarks["actor.loss_agg_mode"] = fmt::format("{}: {}", loss.name, aggregation.value);
  return remarks;
}

std::map<std::string, std::string> loss_remarks(const PluginRegistry& registry, const LoadedConfig& loaded) {
  const auto loss = registry.find("policy_loss", loaded.config.actor.policy_loss.loss_mode);
  return loss.ok() ? loss_remarks(*loss->plugin, loaded) : std::map<std::string, std::string>{};
}

}  // namespace mortise
