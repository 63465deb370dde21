// ms-swift's reward functions and reward models as [[reward]] tables.
#include <fmt/core.h>

#include "foundation/base/text.h"
#include "import/frameworks.h"

namespace mortise {

std::string_view swift_length_name(const Translation& t) {
  std::string_view length = "max_completion_length";
  for (const std::string_view older : {"max_new_tokens", "response_length"}) {
    if (!t.is_null(older)) length = older;
  }
  return length;
}

namespace {

// A reward that uses ms-swift's `accuracy` to judge the answer.
std::string add_accuracy(Translation& t, std::string_view reward) {
  const std::string_view from = "reward_funcs";
  std::string table = t.add_reward(reward, {from});
  t.set(table + ".column", "solution", {from});
  t.set(table + ".extract", "marked", {from});
  t.set(table + ".tag", "answer", {from});
  t.set(table + ".gold", "marked", {from});
  t.set(table + ".on_unreadable_gold", "miss", {from}, "a solution that math-verify finds nothing in");
  return table;
}

std::string add_cosine(Translation& t) {
  std::string table = add_accuracy(t, "cosine");
  if (!t.is_null("cosine_max_len")) t.set(table + ".max_length", t.integer("cosine_max_len"), {"cosine_max_len"});
  constexpr std::pair<std::string_view, std::string_view> kEnds[] = {{"correct_start", "cosine_min_len_value_correct"},
                                                                     {"correct_end", "cosine_max_len_value_correct"},
                                                                     {"wrong_start", "cosine_min_len_value_wrong"},
                                                                     {"wrong_end", "cosine_max_len_value_wrong"}};
  for (const auto& [parameter, name] : kEnds) t.set(fmt::format("{}.{}", table, parameter), t.number(name), {name});
  return table;
}

// The index of the table, or nothing if there is no such reward.
std::string add_reward(Translation& t, const std::string& function) {
  const std::string_view from = "reward_funcs";
  if (function == "accuracy") return add_accuracy(t, "math_equal");
  if (function == "soft_overlong") {
    if (t.is_null("soft_cache_length")) {
      t.problem(from, "soft_overlong needs soft_cache_length", "set it");
      return "";
    }
    std::string table = t.add_reward("length", {from});
    t.set(table + ".name", "soft_overlong", {from});
    if (!t.is_null("soft_max_length")) t.set(table + ".limit", t.integer("soft_max_length"), {"soft_max_length"});
    t.set(table + ".buffer", t.integer("soft_cache_length"), {"soft_cache_length"}, "never below -1 here");
    if (!t.is_null("soft_max_length") && t.integer("soft_max_length") < t.integer(swift_length_name(t)))
      t.warn("soft_max_length", kNoFloor);
    return table;
  }
  if (function == "format" || function == "react_format") {
    std::string table = t.add_reward("format", {from});
    t.set(table + ".name", function, {from});
    t.set(table + ".layout", function == "format" ? "think_answer" : "react", {from});
    return table;
  }
  if (function == "cosine") return add_cosine(t);
  if (function == "repetition") {
    std::string table = t.add_reward("repetition", {from});
    t.set(table + ".unit", "words", {from});
    t.set(table + ".ngram_size", t.integer("repetition_n_grams"), {"repetition_n_grams"});
    t.set(table + ".max_penalty", t.number("repetition_max_penalty"), {"repetition_max_penalty"});
    return table;
  }
  t.problem(from, fmt::format("the reward {} does not exist in Mortise", quote(function)),
            "call its Python function by a [[reward]] table with use = \"python\" (docs/plugins/python_rewards.md)");
  return "";
}

}  // namespace

// ms-swift counts the reward models behind the functions.
void translate_swift_rewards(Translation& t) {
  const std::vector<std::string> functions = t.texts("reward_funcs"), models = t.texts("reward_model");
  if (functions.empty() && models.empty()) return ask_for_rewards(t, "one table for each reward function");
  const std::string_view counted = models.empty() ? "reward_funcs" : "reward_funcs and reward models";
  const auto weights = reward_weights(t, functions.size() + models.size(), counted);
  if (!weights) return;
  size_t place = 0;
  for (const std::string& function : functions) set_reward_weight(t, add_reward(t, function), *weights, place++);
  for (const std::string& model : models)
    set_reward_weight(t, add_reward_model(t, model, "reward_model"), *weights, place++);
}

}  // namespace mortise
