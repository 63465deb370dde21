// Parameters of a plugin: checks a user's values against the pack's note, and fills in defaults.
//
// A number whose default is `none` may stay unset: null here, NaN for the plugin. Needs no loaded pack. Every error
// names the key, so that config can add file:line:column. Threading: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"
#include "plugin/pack/pack_info.h"

namespace mortise {

struct ParamError {
  std::string key;  // "clip_ratio"; empty when the whole table is wrong
  std::string what;
  std::string next;
};

// All that is wrong at once: unknown (with the nearest name), wrong type, out of range, not a choice, missing.
[[nodiscard]] std::vector<ParamError> check_params(const PluginInfo& info, const nlohmann::ordered_json& params);

// The full table in declared order, defaults filled in, or one Error with every fault; `where` of the error starts
// with `where_prefix` ("actor.policy_loss"), and the key follows it.
[[nodiscard]] Result<nlohmann::ordered_json> validate_params(const PluginInfo& info,
                                                             const nlohmann::ordered_json& params,
                                                             std::string_view where_prefix = "");

// From now on redacted() replaces the values of parameters with the role `secret`, "env:NAME" aside, which shows nothing.
void hide_secrets(const PluginInfo& info, const nlohmann::ordered_json& params);

// The values that a parameter allows: "from 0 to 1", "above 0", "at least 1", "a | b". Empty if it allows anything.
[[nodiscard]] std::string range_text(const ParamInfo& param);

// The default of one parameter as JSON. Precondition: it has one.
[[nodiscard]] Result<nlohmann::ordered_json> default_value(const ParamInfo& param);

// "0.2" -> 0.2 of the declared type; what `--set key=value` on the command line means.
[[nodiscard]] Result<nlohmann::ordered_json> parse_param_text(const ParamInfo& param, std::string_view text);

}  // namespace mortise
