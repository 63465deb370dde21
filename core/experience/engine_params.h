// Engine keys that a plugin may ask for. `actor.clip_ratio`, `algorithm.norm_adv_by_std_in_grpo` and the like are in
// their own config tables, and reach a plugin if its parameter table declares a parameter of that name.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "foundation/formats/json.h"
#include "plugin/pack/pack_info.h"

namespace mortise {

// What a rollout backend declares if it takes rollout.structured_outputs_regex.
inline constexpr std::string_view kGuideParam = "structured_outputs_regex";

// `params` (the parameters that the user set) and, for each of `offered` that the plugin declares and the user did not
// set there, the engine's value. Null values count as not set.
[[nodiscard]] inline Json offer_params(const PluginInfo& info, Json params,
                                       const std::vector<std::pair<std::string_view, Json>>& offered) {
  for (const auto& [name, value] : offered) {
    if (value.is_null() || params.contains(name) || info.find_param(name) == nullptr) continue;
    params[std::string(name)] = value;
  }
  return params;
}

}  // namespace mortise
