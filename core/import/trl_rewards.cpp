// TRL's reward functions and its reward model as [[reward]] tables.
#include <fmt/core.h>

#include "foundation/base/text.h"
#include "import/frameworks.h"

namespace mortise {
namespace {

// The table of one of reward_funcs; empty if there is no such reward, which is a problem.
std::string add_reward(Translation& t, const std::string& function) {
  const std::string_view from = "reward_funcs";
  if (function == "accuracy_reward" || function == "reasoning_accuracy_reward") {
    std::string table = t.add_reward("math_equal", {from});
    t.set(table + ".name", function, {from});
    t.set(table + ".column", "solution", {from});
    t.set(table + ".extract", "marked", {from});
    t.set(table + ".gold", "marked", {from});
    t.set(table + ".on_unreadable_gold", "skip", {from}, "TRL skips rows whose solution math-verify finds nothing in");
    if (function != "accuracy_reward") t.set(table + ".after", "</think>", {from});
    return table;
  }
  if (function == "think_format_reward") return t.add_reward("think_format", {from});
  if (function == "get_soft_overlong_punishment") {
    std::string table = t.add_reward("length", {from});
    t.set(table + ".limit", 1280, {from});
    t.set(table + ".buffer", 256, {from});
    return table;
  }
  if (function.find('/') != std::string::npos) return add_reward_model(t, function, from);  // a model's name or folder
  if (function.find('.') != std::string::npos) return add_python_reward(t, function, from);
  t.problem(from, fmt::format("the reward {} does not exist in Mortise", quote(function)),
            "give a Python path, package.module.function, or the folder of a reward model, with a / in it");
  return "";
}

}  // namespace

// `trl grpo` puts the reward model before the functions; the weights count in that order.
void translate_trl_rewards(Translation& t) {
  const std::string_view model = "reward_model_name_or_path";
  const std::vector<std::string> functions = t.texts("reward_funcs");
  const bool has_model = !t.is_null(model);
  if (functions.empty() && !has_model) return ask_for_rewards(t, "TRL's rewards are given in Python: name one here");
  const std::string_view counted = has_model ? "reward_funcs and the reward model" : "reward_funcs";
  const auto weights = reward_weights(t, functions.size() + (has_model ? 1 : 0), counted);
  if (!weights) return;
  size_t place = 0;
  if (has_model) set_reward_weight(t, add_reward_model(t, t.text(model), model), *weights, place++);
  for (const std::string& function : functions) set_reward_weight(t, add_reward(t, function), *weights, place++);
}

}  // namespace mortise
