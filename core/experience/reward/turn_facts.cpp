// Counts the turns of a row, and sorts their rewards by who answered them.
#include "experience/reward/turn_facts.h"

#include <vector>

namespace mortise {
namespace {

// The environment's reward for each turn of the model; it is at the turn's last token.
std::vector<double> rewards_of_turns(const SampleTurns& turns) {
  std::vector<double> rewards;
  for (size_t i = 0; i < turns.is_sampled.size(); ++i) {
    const bool ends = turns.is_sampled[i] != 0 && (i + 1 == turns.is_sampled.size() || turns.is_sampled[i + 1] == 0);
    if (ends) rewards.push_back(i < turns.rewards.size() ? turns.rewards[i] : 0.0);
  }
  return rewards;
}

std::string_view role_of(const Json& message) {
  const Json* const role = json_find(message, "role");
  return role != nullptr && role->is_string() ? std::string_view(role->get_ref<const std::string&>()) : "";
}

}  // namespace

Json turn_facts(const Sample& sample) {
  const SampleTurns& turns = sample.turns;
  const std::vector<double> rewards = rewards_of_turns(turns);
  const auto parsed = parse_json(turns.messages, "the messages of a row");
  const Json messages = parsed.ok() && parsed->is_array() ? *parsed : Json::array();
  Json tool_rewards = Json::array(), turn_scores = Json::array();
  int64_t num_answers = 0;
  size_t turn = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (role_of(messages[i]) != "assistant") continue;
    const double reward = turn < rewards.size() ? rewards[turn] : 0.0;
    ++turn;
    const std::string_view next = i + 1 < messages.size() ? role_of(messages[i + 1]) : "";
    if (!next.empty()) ++num_answers;
    if (next == "tool")
      tool_rewards.push_back(reward);
    else if (!next.empty() || turns.end == TurnEnd::kDone || reward != 0)  // the last turn has no answer to read
      turn_scores.push_back(reward);
  }
  return {{"num_turns", turns.num_assistant + num_answers + 1},
          {"tool_rewards", std::move(tool_rewards)},
          {"turn_scores", std::move(turn_scores)}};
}

}  // namespace mortise
