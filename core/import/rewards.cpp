// Rewards that several frameworks ask for in their own words.
#include <fmt/core.h>

#include <algorithm>

#include "foundation/base/text.h"
#include "import/frameworks.h"

namespace mortise {

std::string add_python_reward(Translation& t, const std::string& path, std::string_view name) {
  const size_t dot = path.rfind('.');
  const std::string function = path.substr(dot + 1);
  bool is_taken = false;  // by a function of another file
  for (size_t i = 0; i < t.num_rewards(); ++i)
    is_taken = is_taken || t.value_set(fmt::format("reward.{}.name", i)) == Json(function);
  const std::string table = t.add_reward("python", {name});
  t.set(table + ".name", is_taken ? path : function, {name});
  std::string file = path.substr(0, dot);
  std::replace(file.begin(), file.end(), '.', '/');
  t.set(table + ".path", file + ".py", {name});
  t.set(table + ".function", function, {name});
  return table;
}

std::string add_reward_model(Translation& t, const std::string& folder, std::string_view name) {
  const size_t place = t.num_rewards();
  const std::string table = t.add_reward("reward_model", {name});
  bool is_first = true;  // rewards of one plugin need names
  for (size_t i = 0; i < place; ++i) is_first = is_first && !t.is_set(fmt::format("reward.{}.model", i));
  if (!is_first) t.set(table + ".name", "reward_model_" + std::to_string(place + 1), {name});
  t.set(table + ".model", folder, {name}, "a folder; write hf:// before a name of the hub");
  return table;
}

void ask_for_rewards(Translation& t, std::string_view hint) {
  const std::vector<double> weights = t.numbers("reward_weights");
  for (size_t i = 0; i < std::max<size_t>(1, weights.size()); ++i) {
    t.ask("reward", fmt::format("[[reward]]  # {}; `mortise plugin list` shows them", hint));
    t.ask("reward", "use = \"...\"");
    if (!weights.empty()) t.ask("reward", fmt::format("weight = {}  # reward_weights", format_f64(weights[i])));
  }
  if (!weights.empty()) t.note("reward_weights", "go into the [[reward]] tables that are to be written");
}

std::optional<std::vector<double>> reward_weights(Translation& t, size_t num_rewards, std::string_view of) {
  std::vector<double> weights = t.numbers("reward_weights");
  if (weights.empty() || weights.size() == num_rewards) return weights;
  t.problem("reward_weights", fmt::format("{} reward_weights for {} {}", weights.size(), num_rewards, of), "");
  return std::nullopt;
}

void set_reward_weight(Translation& t, const std::string& table, const std::vector<double>& weights, size_t place) {
  if (!table.empty() && !weights.empty()) t.set(table + ".weight", weights[place], {"reward_weights"});
}

}  // namespace mortise
